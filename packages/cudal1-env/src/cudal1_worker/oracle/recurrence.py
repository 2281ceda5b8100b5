"""What comes again from draw to draw: outputs that a program may hold in stock, inputs whose consequences it may keep.

The reference runs on many sets. Groups of neighbours at the same places tell what two draws have in common. The two
that have most in common count, because a program prepares for few cases as well as for one (THREATS.md, H63, H65).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from cudal1_worker import protocol as wire

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

_FEWEST, _SECONDS = 8, 2.0
"""After so many seconds as many draws suffice."""
_SOME = 1 << 11
"""Number of groups that represent a tensor."""
_GROUP = 8
"""Neighbours that are written together: 32 bytes of float32, the smallest write of a GPU's memory."""
_KEPT_BITS = 17
"""Bits of a significand that are compared: what differs further down is within most tolerances."""
_VALUES = 4
"""A group of an input with fewer values tells nothing: masks, zeros and labels come again by chance."""
_SHARE = 0.01
"""An input of which this share comes again is reported."""


class Recurrence:
    """Finds what comes again.

    Args:
        oracle: Has the models.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def recurrence(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return what of each output comes again, as bytes to move over its own, and the places of such inputs."""
        began, rows = time.monotonic(), list[tuple[dict[int, torch.Tensor], list[torch.Tensor]]]()
        for number, seed in enumerate(message["seeds"]):
            if number >= _FEWEST and time.monotonic() - began > _SECONDS:
                break
            values = self._oracle.fresh_inputs(seed, "own")
            inputs = {k: some_groups(one) for k, one in enumerate(values) if isinstance(one, torch.Tensor)}
            rows.append((inputs, [some_groups(one) for one in self._oracle.run(self._oracle.models.plain, values)]))
        outputs = [again(torch.stack(drawn), moved) for drawn in zip(*(row[1] for row in rows), strict=True)]
        inputs = {k: again(torch.stack([row[0][k] for row in rows]), rich) for k in rows[0][0]}
        return {"outputs": outputs, "inputs": [k for k, share in inputs.items() if share > _SHARE]}


def some_groups(value: torch.Tensor) -> torch.Tensor:
    """Return groups of neighbours of a tensor, at the same places each time, as integers, shape (groups, elements)."""
    flat = value.reshape(-1)
    groups = flat[: flat.numel() // _GROUP * _GROUP].view(-1, _GROUP) if flat.numel() > _GROUP else flat[None]
    if len(groups) > _SOME:
        generator = torch.Generator().manual_seed(0)
        groups = groups[torch.randint(len(groups), (_SOME,), generator=generator).to(flat.device)]
    if not groups.is_floating_point():
        return groups.long()
    lost = 23 - _KEPT_BITS
    return (groups.float().contiguous().view(torch.int32).long() + (1 << lost - 1)) >> lost


def moved(groups: torch.Tensor) -> torch.Tensor:
    """Bytes to move for groups, over their own: they are written; and read before, if of more than one value."""
    return 1.0 + (groups != groups[..., :1]).any(-1).double()


def rich(groups: torch.Tensor) -> torch.Tensor:
    """1 for groups of enough values, 0 for others."""
    values = groups.sort(-1).values
    return ((values[..., 1:] != values[..., :-1]).sum(-1) + 1 >= _VALUES).double()


def again(drawn: torch.Tensor, weight: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the weighted share of the groups that two draws have in common, of the two that have most.

    Args:
        drawn: Of some draws, shape (draws, groups, elements).
        weight: Of groups.
    """
    if not drawn.numel() or len(drawn) < 2:
        return 0.0
    pairs = [((drawn[k + 1 :] == one).all(-1) * weight(one)).mean(-1).max() for k, one in enumerate(drawn[:-1])]
    return float(torch.stack(pairs).max())
