"""Verification of a corpus: which pairs are judged, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

from cudal1_data import Task
from cudal1_data.corpus import Pair
from cudal1_data.corpus.build import alternated, kind

from cudal1_env.campaigns.sweep import Program
from cudal1_env.records import Device

_FIRST_EVERY = {
    "cuda-nvrtc": (0, 1),
    "triton": (0, 1),
    "pytorch": (0, 1),
    "torch-compile": (4, 4),
    "cuda-load-inline": (0, 8),
}
"""By backend: the round in which its first program is chosen, and the number of rounds until the next. A build takes
most of a minute with torch's extension loader and a fifth of a second with NVRTC. `torch.compile` takes seconds, and is
also a baseline. Other backends are treated like the quick ones.
"""
_FAILURES = (6, 4)
"""The same for failures. They come late because a call that never ends holds the device until its time limit, and
training uses correct programs.
"""


def choose(pairs: Iterable[Pair], limit: int | None, *, device: Device, again: bool = False) -> list[Pair]:
    """Return pairs to judge; the programs of a task are adjacent.

    Pairs are chosen in rounds. Each round takes one more program of each backend for every task; backends that are slow
    to build come less often, and failures come late. Pairs that were judged before count towards a round. Within a
    backend handwritten programs come first, then templates alternate. The programs' hashes determine the order, so the
    same call chooses the same pairs. On a CPU, programs that need a GPU are left out.

    Args:
        pairs: The corpus.
        limit: Maximum number of pairs.
        device: Kind of device that will judge them.
        again: Whether to judge pairs again that have an evaluation from such a device.
    """
    lines: dict[tuple[str, str, bool], list[Pair]] = {}
    judged: dict[tuple[str, str, bool], list[str]] = {}
    for pair in sorted(pairs, key=lambda pair: pair.source_sha256):
        if device == "cpu" and pair.needs_gpu:
            continue
        which = pair.reference_sha256, pair.backend, pair.label == "correct"
        if not again and any(one.device == device for one in pair.evaluations):
            judged.setdefault(which, []).append(_kind(pair))
        else:
            lines.setdefault(which, []).append(pair)
    ranked: list[tuple[int, Pair]] = []
    for which, line in lines.items():
        _, backend, correct = which
        first, every = _FIRST_EVERY.get(backend, (0, 1)) if correct else _FAILURES
        known = judged.get(which, [])
        ordered = sorted(alternated(line, _kind, known), key=lambda pair: not by_hand(pair))
        ranked += [(first + every * place, pair) for place, pair in enumerate(ordered, len(known))]
    ranked.sort(key=lambda item: (item[0], item[1].source_sha256))
    chosen = [pair for _, pair in ranked[:limit]]
    return sorted(chosen, key=lambda pair: (pair.task, pair.reference_sha256, pair.source_sha256))


def _kind(pair: Pair) -> str:
    return kind(pair.template, pair.parameters)


def by_hand(pair: Pair) -> bool:
    """Return whether the program is handwritten, that is, not made by a template."""
    return not pair.template or pair.template.startswith("starter:")


def program_of(pair: Pair) -> Program:
    """Return a pair as a program of a sweep."""
    task = Task(id=pair.task, source=pair.reference, name=pair.task, level=pair.level, origin="corpus")
    return Program(task, pair.source, pair.level, {})
