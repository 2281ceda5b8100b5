"""Finds values that recur from draw to draw: a program could prepare such outputs, or cache results of such inputs.

The reference runs on many sets (docs/threats.md, H63, H65). Windows of input elements adjacent along a dimension are
searched in all later draws at any position: a row of a table, a rotated tensor, columns between others. Other recurring
elements are searched at the same position. For outputs, the two draws with most in common count, at the same positions
or shifted, because a program can prepare a few cases as well as one, and may return a view of them. The sampled
positions are secret; otherwise a task could put new values only there.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from cudal1_worker import protocol as wire
from cudal1_worker.oracle.distributions import reals

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

_FEWEST, _SECONDS = 8, 2.0
"""After `_SECONDS` seconds, `_FEWEST` draws suffice."""
_SOME = 1 << 11
"""Number of groups or windows sampled from a tensor."""
_MOST = 1 << 19
"""Maximum elements of a tensor to examine; of a larger input, `_CHUNKS` parts are taken."""
_CHUNKS = 64
_GROUP = 8
"""Elements written together: 32 bytes of float32, the smallest write of a GPU's memory."""
_KEPT_BITS = 17
"""Bits of a significand to compare; smaller differences are within most tolerances."""
_BITS = 64.0
"""Mean entropy of a window. Of random windows with half of it, less than 1 % recur in 64 draws of a million."""
_PAIRS = 1 << 12
"""Maximum pairs of neighbours for estimating an element's entropy."""
_FEW = 64
"""With fewer distinct values, the conditional entropy given the neighbour counts, because masks have long runs."""
_CHANGES = 3
"""Windows with fewer changes of value do not count: fills and edges recur by chance."""
SHARE = 0.01
"""An input is reported if more than this share recurs."""
_LEAST_EQUAL = 8
"""Fewer equal elements of two draws do not count, if there are more: in bfloat16, two of 160 often are by chance."""
_RARE = 1.0 / 512
"""A single element counts if its value is at most this frequent: more frequent values recur by chance."""
_FACTOR = 0x5851F42D4C957F2D
"""Multiplier of a polynomial hash modulo 2 ** 64 (Knuth's)."""
_INVERSE = pow(_FACTOR, -1, 1 << 64) - (1 << 64 if pow(_FACTOR, -1, 1 << 64) >> 63 else 0)
"""Inverse of `_FACTOR`, as a signed number."""
_SPARSE = 32
"""A lookup table has about this many places for each hash in it."""


def recurrence(oracle: Oracle, message: wire.Message, fds: list[int]) -> wire.Message:
    """Return `outputs`, the recurring share of each (by bytes to move), and `inputs`, positions of recurring ones.

    `fixed` has the positions of outputs that are the same in all draws.
    """
    began, drawn, secret = time.monotonic(), list[list[torch.Tensor]](), message["seeds"][0]
    inputs, outputs = dict[int, list[Windows]](), list[Shifts]()
    for number, seed in enumerate(message["seeds"]):
        if number >= _FEWEST and time.monotonic() - began > _SECONDS:
            break
        values = oracle.fresh_inputs(seed, "own")
        tensors = {k: one for k, one in enumerate(values) if isinstance(one, torch.Tensor)}
        for k, one in tensors.items():
            lines = _sequences(reals(one), secret)
            for windows, line in zip(inputs.setdefault(k, [Windows(secret) for _ in lines]), lines, strict=True):
                windows.add(line)
        found = oracle.run(oracle.models.plain, values)
        outputs = outputs or [Shifts(secret) for _ in found]
        for one, shifts in zip(found, outputs, strict=True):
            shifts.add(one)
        drawn.append([some_groups(one, secret) for one in found])
    stacked = [torch.stack(one) for one in zip(*drawn, strict=True)]
    pairs = zip(stacked, outputs, strict=True)
    return {
        "outputs": [max(again(one), 2.0 * shifts.share) for one, shifts in pairs],
        "inputs": [k for k, found in inputs.items() if any(windows.share > SHARE for windows in found)],
        "fixed": [k for k, one in enumerate(stacked) if one.numel() and bool((one == one[0]).all())],
    }


def _integers(groups: torch.Tensor) -> torch.Tensor:
    if not groups.is_floating_point():
        return groups.long()
    lost = 23 - _KEPT_BITS
    return (groups.float().contiguous().view(torch.int32).long() + (1 << lost - 1)) >> lost


def _places(size: int, secret: int, like: torch.Tensor) -> torch.Tensor:
    """Return `_SOME` positions below a size, the same for each call."""
    return torch.randint(size, (_SOME,), generator=torch.Generator().manual_seed(secret)).to(like.device)


def some_groups(value: torch.Tensor, secret: int) -> torch.Tensor:
    """Return groups of adjacent elements, at the same positions each time, as integers, shape (groups, elements)."""
    flat = value.reshape(-1)
    groups = flat[: flat.numel() // _GROUP * _GROUP].view(-1, _GROUP) if flat.numel() > _GROUP else flat[None]
    if len(groups) > _SOME:
        groups = groups[_places(len(groups), secret, flat)]
    return _integers(groups)


def again(drawn: torch.Tensor) -> float:
    """Return the share of equal groups in the two draws with most in common, weighted by bytes to move.

    A group of one value is only written; a group of several values is also read, and counts twice.

    Args:
        drawn: Groups of all draws, shape (draws, groups, elements).
    """
    if not drawn.numel() or len(drawn) < 2:
        return 0.0
    weights = 1.0 + (drawn != drawn[..., :1]).any(-1).double()
    pairs = [((drawn[k + 1 :] == drawn[k]).all(-1) * weights[k]).mean(-1).max() for k in range(len(drawn) - 1)]
    return float(torch.stack(pairs).max())


def _sequences(value: torch.Tensor, secret: int) -> list[torch.Tensor]:
    """Return a tensor's elements as integers in memory order, and along each dimension but the last: `_MOST` of each.

    They are at the same positions each time.
    """
    return [_most_of(value, secret), *(_lines(value.movedim(dim, -1), secret) for dim in range(value.dim() - 1))]


def _lines(value: torch.Tensor, secret: int) -> torch.Tensor:
    """Return some lines along the last dimension, joined."""
    count, size = math.prod(value.shape[:-1]), value.shape[-1]
    if count * size > _MOST:
        generator = torch.Generator().manual_seed(secret)
        some = torch.randperm(count, generator=generator)[: max(1, _MOST // size)].to(value.device)
        places = list[torch.Tensor]()
        for length in reversed(value.shape[:-1]):  # `torch.unravel_index` imports sympy
            places.insert(0, some % length)
            some = some // length
        value = value[tuple(places)]
    return _integers(value.reshape(-1)[:_MOST])


def _most_of(value: torch.Tensor, secret: int) -> torch.Tensor:
    """Return at most `_MOST` elements of a tensor as integers, flat, at the same positions each time."""
    flat = value.reshape(-1)
    if flat.numel() > _MOST:
        cell, chunk = len(flat) // _CHUNKS, _MOST // _CHUNKS
        apart = torch.randint(cell - chunk + 1, (_CHUNKS,), generator=torch.Generator().manual_seed(secret)).tolist()
        flat = torch.cat([flat[k * cell + one : k * cell + one + chunk] for k, one in enumerate(apart)])
    return _integers(flat)


def window_length(flat: torch.Tensor) -> int:
    """Return how many adjacent integers have `_BITS` bits of entropy, estimated from the first pairs."""
    part = flat[: _PAIRS + 1]
    if len(part) < 2:
        return 1 << 62
    values, place, counts = part.unique(return_inverse=True, return_counts=True)
    pairs = (place[1:] * len(values) + place[:-1]).unique(return_counts=True)[1]
    single, double = _entropy(counts), _entropy(pairs)
    bits = double - single if len(values) < _FEW else double / 2
    return math.ceil(_BITS / bits) if bits > 0 else 1 << 62


def _entropy(counts: torch.Tensor) -> float:
    shares = counts.double() / counts.sum()
    return max(0.0, -float((shares * shares.log2()).sum()))


def windows_of(flat: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each window's hash and number of value changes, both of shape (windows,)."""
    sums = _sums(flat * _powers(_FACTOR, len(flat), flat.device))
    hashes = (sums[length:] - sums[:-length]).mul_(_powers(_INVERSE, len(flat) - length + 1, flat.device))
    changes = _sums(flat[1:] != flat[:-1])
    return hashes.bitwise_xor_(hashes >> 31).mul_(_FACTOR), changes[length - 1 :] - changes[: len(hashes)]


def _sums(values: torch.Tensor) -> torch.Tensor:
    """Return sums of the first values, from none to all."""
    sums = torch.zeros(len(values) + 1, dtype=torch.int64, device=values.device)
    torch.cumsum(values, 0, out=sums[1:])
    return sums


@lru_cache(maxsize=8)
def _powers(base: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the first `count` powers of a number modulo 2 ** 64, from the zeroth."""
    factors = torch.full((count,), base, dtype=torch.int64, device=device)
    factors[0] = 1
    return factors.cumprod(0)


def _came(known: torch.Tensor, hashes: torch.Tensor, telling: torch.Tensor) -> torch.Tensor:
    """Return which of the known hashes occur among those of `hashes` that are `telling`.

    Tables of some bits of the hashes, other bits each way, narrow the search on both sides.
    """
    some = hashes[_may_be_in(known, hashes) & telling]
    found = _may_be_in(some >> 32, known >> 32)
    found[found.clone()] = torch.isin(known[found], some)
    return found


def _may_be_in(held: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return which of the wanted numbers agree with one that is held in their low bits."""
    size = 1 << (_SPARSE * len(held)).bit_length()
    table = torch.zeros(size, dtype=torch.bool, device=held.device)
    table[held & size - 1] = True
    return table[wanted & size - 1]


def _same_places(drawn: torch.Tensor) -> float:
    """Return the share of equal elements in the two draws with most in common, for shape (draws, elements)."""
    least = min(_LEAST_EQUAL, drawn.shape[1])
    _, place, counts = drawn.unique(return_inverse=True, return_counts=True)
    telling = (counts <= _RARE * drawn.numel())[place]
    pairs = [((drawn[k + 1 :] == drawn[k]) & telling[k]).sum(1).max() for k in range(len(drawn) - 1)]
    most = int(torch.stack(pairs).max()) if pairs else 0
    return most / drawn.shape[1] if most >= least else 0.0


class Windows:
    """Sampled windows of a sequence of an input's elements in each draw, and which of them recur in a later one.

    Args:
        secret: Seed of their positions.
    """

    def __init__(self, secret: int) -> None:
        self._secret = secret
        self._length = 0
        self._hashes: list[torch.Tensor] = []
        self._again: list[torch.Tensor] = []
        self._single: list[torch.Tensor] = []
        self._twice = 0.0
        """Share of the first draw's windows that it has at several places; zero if it has few values."""

    def add(self, flat: torch.Tensor) -> None:
        """Add the next draw's elements, as integers."""
        if not len(flat):
            return
        self._single.append(flat[_places(len(flat), self._secret, flat)] if len(flat) > _SOME else flat)
        self._length = self._length or window_length(flat)
        if self._length > len(flat):
            return
        hashes, changes = windows_of(flat, self._length)
        telling = changes >= max(_CHANGES, int(changes.double().mean()) // 2)
        if not self._hashes and len(flat.unique()) >= _FEW:  # the columns of a mask are often alike
            _, place, counts = hashes.unique(return_inverse=True, return_counts=True)
            self._twice = float(((counts > 1)[place] & telling).double().mean())
        elif self._hashes:
            came = _came(torch.cat(self._hashes), hashes, telling).split([len(one) for one in self._hashes])
            self._again = [one | new for one, new in zip(self._again, came, strict=True)]
        if len(hashes) > _SOME:
            places = _places(len(hashes), self._secret, flat)
            hashes, telling = hashes[places], telling[places]
        self._hashes.append(torch.where(telling, hashes, -1))
        self._again.append(torch.zeros_like(telling))

    @property
    def came(self) -> float:
        """Largest recurring share of a draw's windows."""
        return max((float(one.double().mean()) for one in self._again), default=0.0)

    @property
    def share(self) -> float:
        """The same, that of its single elements at the same positions, or of windows that one draw has twice."""
        single = _same_places(torch.stack(self._single)) if self._single else 0.0
        return max(single, self.came, self._twice)


def came_again(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the share of the first tensor's windows, of neighbours in memory order, that the second one holds."""
    windows = Windows(0)
    for one in (first, second):
        windows.add(_most_of(reals(one), 0))
    return windows.came


class Shifts:
    """The share of an output that equals the first draw's, shifted by any number of elements.

    Args:
        secret: Seed of the sampled positions.
    """

    def __init__(self, secret: int) -> None:
        self._secret = secret
        self._first: tuple[torch.Tensor, torch.Tensor] | None = None
        self.share = 0.0

    def add(self, value: torch.Tensor) -> None:
        """Add the next draw."""
        first = torch.Generator().manual_seed(self._secret)
        start = int(torch.randint(max(0, value.numel() - _MOST) + 1, (1,), generator=first))
        flat = _integers(value.reshape(-1)[start : start + _MOST])
        if len(flat) < _GROUP:
            return
        if self._first is None:
            ordered, order = windows_of(flat, _GROUP)[0].sort()
            self._first = ordered, order
            return
        ordered, order = self._first
        places = _places(len(ordered), self._secret, flat)
        some = flat[(places[:, None] + torch.arange(_GROUP, device=flat.device)).clamp(max=len(flat) - 1)].reshape(-1)
        hashes, changes = (one[::_GROUP].contiguous() for one in windows_of(some, _GROUP))
        at = torch.searchsorted(ordered, hashes).clamp_(max=len(ordered) - 1)
        found = (ordered[at] == hashes) & (changes >= _CHANGES)
        shifts = (places - order[at])[found]
        if len(shifts):
            self.share = max(self.share, float((shifts == shifts.mode().values).double().sum()) / _SOME)
