"""Tolerance of each output element, from the reference's errors in its neighbourhood.

An element's neighbours are the elements of its block (up to 64 adjacent ones) in several sets of inputs. The neighbours
of similar magnitude determine its typical error. So a fill value, an outlier or a faded step, whose magnitude differs,
affects only its own tolerance. docs/decisions/002-tolerance-by-element.md has the reasons and the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

Part = torch.Tensor | slice
"""Block indices."""

BLOCK = 64
"""Maximum elements of a block, along a row (last dimension); along a column if rows are short."""
_SHORT = 16
"""Rows with fewer elements are short: their columns may differ in kind, for example a mean and a variance."""
_NODES = 4
"""Groups of similar magnitude in a block, each a quarter of its elements."""
_FEWEST = 32
"""Minimum errors of a block; with fewer, the whole output's errors by magnitude are used. A block with no error on any
set is exact: only the floor counts."""
_FEWEST_DRAWS, _MAX_DRAWS, _WANTED = 3, 16, 128
"""Number of sets: enough for 128 errors in the smallest block, but at least 3 and at most 16."""
_PART = 1 << 22
"""Elements processed at a time."""
_OVERALL = 1 << 16
"""Approximate number of errors that represent the whole output."""
_LEAST = -1100.0
"""Binary logarithm that represents zero."""
_OUTLYING = 4.0
"""Errors are clipped to a factor of 2 ** this from their group's typical error."""
_ROUNDS = 2
"""Number of times that typical errors are recomputed after clipping."""
_VARIANCE = 2.57
"""Variance of the binary logarithm of a normal number's magnitude: (pi ** 2 / 8) / log(2) ** 2."""
_WORSE = 12.0
"""Clipping (like `_OUTLYING`) of errors of one set relative to those of the others."""
_SHRINK = 8.0
"""Number of typical errors added to a block's before comparing this set with the others (shrinkage)."""
PLACES = 2.0
"""Maximum perturbation of inputs, in units in the last place: most become another number in float32."""
_USUAL = 4.0
"""Divisor of expected errors. The largest of three normal errors is twice the typical one (a geometric mean); divided
by this, it seldom widens a tolerance."""
_KNOWN = 2.0**-16
"""Maximum tolerance, over the element, from a change of the answer: far less than half precision's error."""
_BULK = 1.5**2
"""Half precision: maximum mean square of a program's errors, over that of the reference's. One more rounding of the
output (a bias added to a rounded product) doubles it. Programs that fuse steps stay below it
(benchmarks/honest_half.py)."""
_BULK_QUANTILE = 3.7
"""Normal quantile by which the mean square may exceed that by chance (once in 10,000 times)."""
_CAP = -1.0
"""Binary logarithm of the maximum tolerance, over the element, if its block has no information."""


@dataclass(frozen=True)
class Limits:
    """Parameters that turn errors into tolerances, for one output."""

    factor: float
    """Tolerance as a multiple of the typical error (a geometric mean)."""
    floor: float
    """Minimum tolerance, over the element's magnitude."""
    tiny: float
    """Minimum absolute tolerance."""
    largest: bool = False
    """Whether the largest error of a group, clipped like all errors, counts in place of the typical one."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of an output of shape `shape`."""

    shape: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """Number of elements of the output."""
        return math.prod(self.shape)

    @cached_property
    def along_columns(self) -> bool:
        """Whether blocks run along columns."""
        width = self.shape[-1] if self.shape else 1
        return 1 < width < _SHORT and self.size // width >= BLOCK

    @cached_property
    def length(self) -> int:
        """Elements of a line; no block crosses lines."""
        width = self.shape[-1] if self.shape else 1
        if self.along_columns:
            return self.size // width
        return width if width >= _SHORT else max(1, self.size)

    @cached_property
    def per_line(self) -> int:
        """Blocks per line."""
        return -(-self.length // BLOCK)

    @cached_property
    def width(self) -> int:
        """Elements of a block; the last block of a line may have fewer."""
        return -(-self.length // self.per_line)

    @cached_property
    def count(self) -> int:
        """Number of blocks."""
        return self.per_line * (self.size // self.length) if self.size else 0

    def of(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the block of each flat position."""
        line, place = self._line(positions)
        return line * self.per_line + place // self.width

    def _line(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.along_columns:
            return positions % self.shape[-1], positions // self.shape[-1]
        return positions // self.length, positions % self.length

    def places(self, blocks: Part, device: torch.device) -> torch.Tensor:
        """Return the flat positions of the blocks' elements, shape (n, width); -1 beyond a line's end."""
        if isinstance(blocks, slice):
            blocks = torch.arange(blocks.start, blocks.stop, device=device)
        line = blocks // self.per_line
        place = (blocks % self.per_line * self.width)[:, None] + torch.arange(self.width, device=blocks.device)
        flat = place * self.shape[-1] + line[:, None] if self.along_columns else line[:, None] * self.length + place
        return torch.where(place < self.length, flat, -1)

    def of_flat(self, flat: torch.Tensor, blocks: Part) -> torch.Tensor:
        """Return the blocks' elements, shape (n, width); NaN beyond a line's end."""
        if self.dense:
            return flat.view(self.count, self.width)[blocks]
        places = self.places(blocks, flat.device)
        return torch.where(places >= 0, flat[places.clamp(min=0)], torch.nan)

    @cached_property
    def dense(self) -> bool:
        """Whether blocks are contiguous and equally wide."""
        return not self.along_columns and self.length % self.width == 0

    def parts(self) -> Iterator[slice]:
        """Return slices of block indices that together cover all blocks."""
        step = max(1, _PART // max(self.width, 1))
        return (slice(start, min(start + step, self.count)) for start in range(0, max(1, self.count), step))


def enough(widths: Sequence[int]) -> int:
    """Return the number of input sets for estimating typical errors, given the widths of the outputs' blocks.

    >>> enough([64, 64]), enough([32, 64]), enough([1]), enough([])
    (3, 4, 16, 1)
    """
    return min(max(_FEWEST_DRAWS, -(-_WANTED // max(1, min(widths)))), _MAX_DRAWS) if widths else 1


def logarithm(values: torch.Tensor) -> torch.Tensor:
    """Return binary logarithms of magnitudes, float32, in place; `_LEAST` for zero; infinity and NaN stay."""
    return values.abs().log2_().clamp_(min=_LEAST).float()


@dataclass(frozen=True)
class Draw:
    """One set's magnitudes and errors of one output, flat; binary logarithms in float16 (steps of at most 1/16)."""

    magnitudes: torch.Tensor
    errors: torch.Tensor
    """NaN where the reference was exact, or its value or error is not finite."""

    @classmethod
    def of(cls, answer: torch.Tensor, error: torch.Tensor) -> Draw:
        """Make a draw from an answer and the reference's error, both flat."""
        found = cls(*(torch.empty_like(one, dtype=torch.float16) for one in (answer, error)))
        for start in range(0, answer.numel(), _PART):
            part = slice(start, start + _PART)
            magnitudes, errors = logarithm(answer[part]).half(), logarithm(error[part]).half()
            there = (error[part] > 0) & magnitudes.isfinite() & errors.isfinite()
            found.magnitudes[part] = magnitudes
            found.errors[part] = torch.where(there, errors, torch.nan)
        return found


@dataclass(frozen=True)
class Seen:
    """One output on one set: whole, flat; or some blocks, shape (n, width)."""

    answer: torch.Tensor
    """Correct values."""
    error: torch.Tensor
    """The reference's errors."""
    nearby: torch.Tensor | None
    """Expected errors, from slightly perturbed inputs (`expected`); None if the oracle did not run on such inputs."""

    def rounded(self) -> Seen:
        """Return the same in float32."""
        return Seen(self.answer.float(), self.error.float(), None if self.nearby is None else self.nearby.float())

    def within(self, blocks: Blocks, part: Part) -> Seen:
        """Return some blocks of a whole output."""
        nearby = None if self.nearby is None else blocks.of_flat(self.nearby, part)
        return Seen(blocks.of_flat(self.answer, part), blocks.of_flat(self.error, part), nearby)


class Profile:
    """Typical errors of the reference by block and magnitude, from several sets of inputs.

    Args:
        shape: The output's shape.
        draws: The sets.
        largest: As in `Limits`.
    """

    def __init__(self, shape: tuple[int, ...], draws: Sequence[Draw], *, largest: bool = False) -> None:
        self.blocks = Blocks(shape)
        self._largest = largest
        found = [self._nodes_of(draws, part) for part in self.blocks.parts()]
        self.magnitudes, self.errors, self.known = map(torch.cat, zip(*found, strict=True))
        self.overall = self._overall(draws)

    def _nodes_of(self, draws: Sequence[Draw], part: Part) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        magnitudes = torch.cat([self.blocks.of_flat(draw.magnitudes, part) for draw in draws], 1)
        errors = torch.cat([self.blocks.of_flat(draw.errors, part) for draw in draws], 1)
        there = errors.isfinite().any(1)  # skip the many fills and dead rows, because sorting is slow
        some = nodes(magnitudes[there].float(), errors[there].float(), largest=self._largest)
        if len(some[0]) == len(there):
            return some
        found = [one.new_zeros(len(there), *one.shape[1:]) for one in some]
        found[1].fill_(-torch.inf)
        for whole, one in zip(found, some, strict=True):
            whole[there] = one
        return found[0], found[1], found[2]

    def _overall(self, draws: Sequence[Draw]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return magnitudes and errors of groups of the whole output, from some of its elements."""
        magnitudes, errors = (torch.cat([getattr(draw, name) for draw in draws]) for name in ("magnitudes", "errors"))
        there = errors.isfinite().nonzero().flatten()
        there = there[:: max(1, there.numel() // _OVERALL)]
        first, second, _ = nodes(magnitudes[there][None].float(), errors[there][None].float(), largest=self._largest)
        return first, second

    def typical(self, part: Part, seen: Seen) -> tuple[torch.Tensor, ...]:
        """Return the typical errors in some blocks, for the set of `seen`, which holds the blocks' elements.

        Returns:
            Binary logarithms of the typical errors, shape (n, width), -inf if unknown; and whether each block has
            information, shape (n, 1): enough errors, or none on any set.
        """
        error = seen.error
        magnitudes, own = logarithm(seen.answer), logarithm(error)
        exact = self.errors[part][:, :1].isneginf() & ~(error > 0).any(1, keepdim=True)
        known = self.known[part][:, None] | exact
        found = interpolated(
            magnitudes,
            torch.where(known, self.magnitudes[part], self.overall[0]),
            torch.where(known, self.errors[part], self.overall[1]),
        )
        worse = (own - found).clamp_(-_WORSE, _WORSE)
        there = ~worse.isnan() & (error > 0)
        worse = torch.where(there, worse, 0.0).sum(1, keepdim=True)
        worse = (worse / (there.sum(1, keepdim=True) + _SHRINK)).clamp_(min=0.0)
        found = torch.fmax(found.add_(worse), own)
        if seen.nearby is not None:
            # Neighbours do not predict the error of an atypical element; the reference's one error may be small by
            # chance.
            nearby = logarithm(seen.nearby)
            found = torch.fmax(found, nearby if self._largest else nearby.masked_fill_(exact, -torch.inf))
        return found, known

    def allowed(self, part: Part, seen: Seen, limits: Limits) -> torch.Tensor:
        """Return the tolerance of each element of some blocks, shape (n, width); for the arguments see `typical`.

        max(factor * s, floor * |a|, tiny), with s the typical error there and a the correct value.
        """
        typical, known = self.typical(part, seen)
        by_error = typical.to(seen.answer.dtype).exp2_().mul_(limits.factor)
        magnitude = seen.answer.abs()
        if not bool(known.all()):
            # Without information from its block, an omitted element must still be detected.
            unknown = torch.where(seen.error > 0, by_error, torch.minimum(by_error, magnitude * 2.0**_CAP))
            if seen.nearby is not None:  # the element's own errors need no block
                unknown = torch.maximum(unknown, limits.factor * seen.nearby)
            by_error = torch.where(known, by_error, unknown)
        found = torch.maximum(by_error, magnitude.mul_(limits.floor)).clamp_(min=limits.tiny)
        return found.nan_to_num_(limits.tiny, posinf=limits.tiny)

    def of_positions(self, positions: torch.Tensor, seen: Seen, limits: Limits) -> torch.Tensor:
        """Return the tolerance of elements at flat positions, shape (n,)."""
        part = self.blocks.of(positions)
        found = self.allowed(part, seen.within(self.blocks, part), limits)
        mine = self.blocks.places(part, positions.device) == positions[:, None]
        return found.gather(1, mine.int().argmax(1, keepdim=True))[:, 0]

    def of_all(self, out: torch.Tensor, seen: Seen, limits: Limits) -> None:
        """Write the tolerance of each element to `out`, flat."""
        for part in self.blocks.parts():
            found = self.allowed(part, seen.within(self.blocks, part), limits)
            if self.blocks.dense:
                out.view(self.blocks.count, self.blocks.width)[part] = found.to(out.dtype)
                continue
            places = self.blocks.places(part, out.device)
            there = places >= 0
            out[places[there]] = found[there].to(out.dtype)


def expected(error: torch.Tensor, change: torch.Tensor, answer: torch.Tensor, limits: Limits) -> torch.Tensor:
    """Return the expected error of each element, from one set of inputs perturbed by up to `PLACES`; all are flat.

    The larger of two errors, divided by `_USUAL` (the first is not, if the largest errors count):

    - The reference's error on the perturbed set. Its error on the set itself may be small by chance: for an element
      whose sum cancels, or a row that one rounding decides (a softmax with two large terms).
    - The change of the correct value for half a unit in the last place: a program may round where the reference does
      not (Higham 2002, section 1.6). Its tolerance is at most `_KNOWN` of the element; otherwise sensitive elements,
      such as sin(2 ** 28 x), would not be checked at all.
    """
    most = answer.abs() * (_USUAL * _KNOWN / limits.factor)
    by_error = error / math.sqrt(2.0) if limits.largest else error / _USUAL  # roundings at random err that much more
    found = torch.fmax(by_error, torch.minimum(change / (2.0 * PLACES), most) / _USUAL)
    return found.nan_to_num_(0.0, 0.0, 0.0)


def bulk(error: torch.Tensor, limits: torch.Tensor) -> float:
    """Return the mean square of errors over tolerances, each at most 1; both flat. NaN (infinities) counts as 0."""
    return float((error / limits).nan_to_num_(0.0).clamp_(max=1.0).square_().mean()) if error.numel() else 0.0


def bulk_allowed(own: float, at_random: Sequence[float]) -> float:
    """Return the largest `bulk` of a program's output.

    Runs that round at random tell its spread: where one rounding decides many elements, or there are few, it is a mean
    of few squares. With mean m and deviation s it is like chi-square with k = 2 m^2 / s^2 degrees of freedom, over k.
    The quantile of that for a normal quantile z is m (1 - 2/9k + z sqrt(2/9k))^3 (Wilson and Hilferty 1931).

    Args:
        own: The reference's.
        at_random: The reference's in runs that round at random, which doubles mean squares; may be empty.
    """
    mean = math.fsum(at_random) / max(len(at_random), 1) / 2.0
    if mean == 0.0:
        return _BULK * own
    ninth = (torch.tensor(at_random).std().item() / 2.0 / mean) ** 2 / 9.0
    return _BULK * max(own, mean * (1.0 - ninth + _BULK_QUANTILE * math.sqrt(ninth)) ** 3)


def interpolated(magnitudes: torch.Tensor, at: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """Interpolate typical errors at magnitudes from those of groups; all are binary logarithms.

    Between two groups the error is a power of the magnitude. Below the lowest it is constant, as where terms cancel;
    above the highest it is proportional to the magnitude, as for rounding.

    Args:
        magnitudes: Shape (n, width).
        at: Magnitudes of the groups, ascending, shape (n, groups).
        level: Errors of the groups, shape (n, groups).
    """
    found = level[:, :1] + (magnitudes - at[:, -1:]).clamp_(min=0.0)
    for k in range(at.shape[1] - 1):
        apart = (at[:, k + 1] - at[:, k]).clamp(min=1e-3)[:, None]
        share = ((magnitudes - at[:, k : k + 1]) / apart).clamp_(0.0, 1.0)
        found += share * (level[:, k + 1] - level[:, k])[:, None]
    return found.nan_to_num_(-torch.inf, neginf=-torch.inf)


def nodes(
    magnitudes: torch.Tensor, errors: torch.Tensor, *, largest: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean logarithms of groups of similar magnitude, and which rows have enough errors.

    Args:
        magnitudes: Binary logarithms, shape (n, m).
        errors: The same; NaN for no error.
        largest: Whether to return the largest errors of the groups, clipped, instead of their means.

    Returns:
        Magnitudes and errors, both of shape (n, groups), and a mask of shape (n,).
    """
    there = errors.isfinite()
    magnitudes, order = torch.where(there, magnitudes, torch.inf).sort(1)
    errors = errors.gather(1, order)
    count = there.sum(1, keepdim=True)
    rank = torch.arange(errors.shape[1], device=errors.device)
    # Ranks beyond the last group's end belong to no group.
    group = torch.where(rank < count, rank * _NODES // count.clamp(min=1), _NODES)
    at, typical = _means(magnitudes, group), _means(errors, group)
    for _ in range(_ROUNDS):
        middle = torch.nn.functional.pad(typical, (0, 1)).gather(1, group)
        typical = _means(torch.minimum(torch.maximum(errors, middle - _OUTLYING), middle + _OUTLYING), group)
    if largest:
        most = typical.new_full((len(group), _NODES + 1), -torch.inf).scatter_reduce_(1, group, errors, "amax")
        typical = torch.minimum(most[:, :_NODES], typical + _OUTLYING)
    else:
        typical = _drawn_together(typical, count)
    none = count == 0
    return torch.where(none, 0.0, at), torch.where(none, -torch.inf, typical), count[:, 0] >= _FEWEST


def _drawn_together(typical: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Shrink groups towards their mean, by as much as chance explains (James and Stein 1961), shape (n, groups).

    m' = mean + max(0, 1 - (k - 1) v / S) (m - mean), with k groups, v the chance variance of a group's mean and S the
    sum of squares around the mean.
    """
    mean = typical.mean(1, keepdim=True)
    apart = typical - mean
    chance = (_NODES - 1) * _NODES * _VARIANCE / count.clamp(min=1)
    kept = 1.0 - chance / (apart * apart).sum(1, keepdim=True).clamp(min=1e-6)
    return mean + kept.clamp(min=0.0) * apart


def _means(values: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Return the means of groups, shape (n, groups); for an empty group, the mean of all."""
    values = torch.where(group < _NODES, values, 0.0)
    sums = values.new_zeros(values.shape[0], _NODES + 1).scatter_add_(1, group, values)[:, :_NODES]
    counts = values.new_zeros(sums.shape[0], _NODES + 1).scatter_add_(1, group, torch.ones_like(values))[:, :_NODES]
    overall = sums.sum(1, keepdim=True) / counts.sum(1, keepdim=True).clamp(min=1.0)
    return torch.where(counts > 0, sums / counts.clamp(min=1.0), overall)
