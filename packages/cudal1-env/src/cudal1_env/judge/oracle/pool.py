"""The secret pool of a task: input sets nobody has seen, with float64 answers.

No candidate is timed on a set that any candidate has met before, in this launch or an earlier one. A worker dies with
its launch, but what it asked the host's kernel for stays in the kernel's caches: names that do not exist, pages of
files. Who comes next finds out by its own clock what is in there (tests/exploits/h30_*).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cudal1_data import Task
from cudal1_worker.protocol import MAX_OUTPUTS
from cudal1_worker.sandbox import Spec

from cudal1_env.errors import TaskError
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.device.tensors import EPSILON, Array, Expected
from cudal1_env.judge.oracle.client import Anatomy, OracleClient, RawSet, Weights
from cudal1_env.judge.oracle.numerics import HALF, Answer, most_own_error, row_scales, tolerance
from cudal1_env.judge.oracle.state import Fingerprints
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.workers.zygote import Zygote

WARM_SETS = 2
"""The first sets are for untimed calls, of every launch."""
SEED_BYTES = 16
_CYCLE = ("own", "own", "shifted", "own", "own", "heavy", "own", "own", "needle", "own")
"""Distributions of consecutive sets: most are the task's own, because speed may depend on values."""
_PROBES = {"own": 3, "shifted": 1, "heavy": 1, "needle": 1}
"""How many sets of each distribution tell the reference's own error."""
_LEAST_WIDTH = 16
"""Shorter rows have no scale of their own: all their values may be small by chance."""


def private_seed() -> int:
    """A seed that is used once, for one worker."""
    return secrets.randbits(62)


def _width(out: Expected) -> int:
    return out.shape[-1] if out.shape else 1


_MAKING_SETS, _MAKING_INPUTS = 3, 4
"""Making a large set takes as much memory as so many sets and so many inputs beside: 7 to 9 times the inputs, where
inputs and outputs are alike (counted on a CPU, the float64 twin's own included)."""


class Secrets:
    """Everything secret about one pool, derived from one 128-bit seed.

    Args:
        seed: 16 bytes.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"expected a seed of {SEED_BYTES} bytes, got {len(seed)}")
        self.seed = seed
        self.commitment = hashlib.sha256(seed).hexdigest()

    def number(self, *labels: object) -> int:
        """Return a 62-bit number for a purpose; different purposes give unrelated numbers."""
        text = "/".join(str(label) for label in labels).encode()
        return int.from_bytes(hashlib.sha256(self.seed + text).digest()[:8], "little") >> 2

    def generator(self, *labels: object) -> np.random.Generator:
        """Return a random generator for a purpose."""
        text = "/".join(str(label) for label in labels).encode()
        key = int.from_bytes(hashlib.sha256(self.seed + text).digest(), "little")
        return np.random.Generator(np.random.PCG64DXSM(key))


@dataclass(frozen=True)
class InputSet:
    """One input set with what is known about its answers."""

    index: int
    distribution: str
    inputs: Array
    answers: tuple[Answer, ...]

    @property
    def whole(self) -> bool:
        """Whether whole outputs are compared on this set."""
        return all(answer.whole is not None for answer in self.answers)

    @property
    def size_bytes(self) -> int:
        """Memory that the set takes."""
        return self.inputs.nbytes + sum(
            a.values.nbytes
            + a.positions.nbytes
            + sum(part.nbytes for part in (a.whole, a.row_scales) if part is not None)
            for a in self.answers
        )


@dataclass(frozen=True)
class Own:
    """The reference's own error, for each output."""

    error: list[float]
    """Largest absolute error over the output's scale; for integers the share of elements that differ."""
    row_error: list[float]
    """Largest error over the largest magnitude of its row."""
    usable: bool = True
    """Whether a candidate can be held to it."""

    def or_worse(self, other: Own) -> Own:
        """The larger of both, output by output; usable if both are."""
        return Own(
            [max(pair) for pair in zip(self.error, other.error, strict=True)],
            [max(pair) for pair in zip(self.row_error, other.row_error, strict=True)],
            self.usable and other.usable,
        )


@dataclass
class _DraftAnswer:
    """An answer whose chosen elements have not been read yet; for the fields see `Answer`."""

    positions: npt.NDArray[np.int64]
    values: Array
    """The whole answer, in memory that the oracle overwrites."""
    kept: Array | None
    scale: float
    tolerance: float
    row_tolerance: float = float("inf")
    scales: Array | None = None
    """Of all rows."""
    width: int = 1
    reference_error: float = 0.0

    @property
    def wanted(self) -> list[tuple[Array, npt.NDArray[np.int64]]]:
        """What is to be read, and where."""
        own = [(self.values, self.positions)]
        return own if self.scales is None else [*own, (self.scales, self.positions // self.width)]

    def finished(self, taken: Iterator[npt.NDArray[np.generic]]) -> Answer:
        """Return the answer, given what was read."""
        return Answer(
            self.positions,
            next(taken),
            self.kept,
            self.scale,
            self.tolerance,
            row_tolerance=self.row_tolerance,
            row_scales=None if self.kept is None else self.scales,
            sample_scales=None if self.scales is None else next(taken),
            reference_error=self.reference_error,
        )


@dataclass
class _Draft:
    """An input set whose answers are drafts."""

    index: int
    name: str
    inputs: Array
    answers: list[_DraftAnswer]


class Pool:
    """Input sets of one task under one seed, made by its oracle when they are first wanted.

    Args:
        task: The task.
        zygote: Where the oracle is forked.
        spec: The oracle's sandbox.
        device: Where the task runs.
        settings: Tolerances and sample sizes.
        seed: 16 secret bytes.

    Raises:
        TaskError: The reference cannot be judged against.
    """

    def __init__(
        self, task: Task, zygote: Zygote, spec: Spec, device: Device, settings: JudgeSettings, seed: bytes
    ) -> None:
        self.task = task
        self.settings = settings
        self.device = device
        self.secrets = Secrets(seed)
        self.construct_seed = self.secrets.number("construct")
        self.oracle = OracleClient(
            zygote, spec, device, task, seed=self.construct_seed, timeout_s=settings.oracle_timeout_s
        )
        if not 1 <= len(self.anatomy.outputs) <= MAX_OUTPUTS:
            self.oracle.close()
            raise TaskError(f"{task.id}: expected 1 to {MAX_OUTPUTS} output tensors, got {len(self.anatomy.outputs)}")
        self.closed = False
        """Whether it has retired."""
        self.candidates = 0
        """How many candidates it has served."""
        self._began = time.monotonic()
        self.fresh = WARM_SETS
        """Number of the first set that no candidate has met, those for untimed calls left out."""
        self._weights: Weights | None = None
        self._fingerprints: Fingerprints | None = None
        self._sets: dict[int, InputSet] = {}
        self.most_bytes = settings.pool_bytes
        """What exceeds this is not kept; whoever holds several pools says so."""
        self.size_bytes = 0
        """Memory that its sets take."""
        self._own_error: dict[str, Own] = {}

    @property
    def anatomy(self) -> Anatomy:
        """What the task looks like."""
        return self.oracle.anatomy

    @property
    def room(self) -> int:
        """How many input sets can be kept, with the whole answers of some."""
        return int(self.most_bytes / self._kept_bytes)

    @property
    def _kept_bytes(self) -> float:
        """Memory of a set that is kept, on average: not all have whole answers."""
        whole = sum(8 * out.size for out in self.anatomy.outputs)
        return self.anatomy.input_bytes + self.settings.full_check_share * whole + 1

    def weights(self) -> Weights:
        """The weights that the judge chose for this pool, none of them a default; empty where a task has no state."""
        if self._weights is None:
            self._weights = self.oracle.weights(self.construct_seed, self.secrets.number("weights"))
        return self._weights

    def fingerprints(self) -> Fingerprints:
        """Fingerprints of the state that the reference's constructor makes under this pool's seed."""
        if self._fingerprints is None:
            self._fingerprints = self.oracle.fingerprints(self.construct_seed)
        return self._fingerprints

    @property
    def is_spent(self) -> bool:
        """Whether its secrets served long enough: each candidate learns a little of what the next one meets."""
        age_s = time.monotonic() - self._began
        return self.candidates >= self.settings.pool_candidates or age_s > self.settings.pool_s

    def private_inputs(self) -> Array:
        """Inputs of the task's own distribution that are for one worker alone; no answer to them is known."""
        return self.oracle.draw(private_seed())

    def sets(self, first: int, last: int) -> list[InputSet]:
        """Return the sets from number `first` to before `last`, making those that are missing.

        A set is the same each time. What exceeds the pool's memory is not kept, but made again when it is wanted again.

        Args:
            first: Number of the first.
            last: Number after the last.

        Raises:
            TaskError: The reference fails, or its own error is beyond use.
        """
        if self.anatomy.state:
            self.weights()  # the answers are those of a reference that holds them
        if "own" not in self._own_error:
            self._probe()
        made = dict[int, InputSet]()
        missing = [index for index in range(first, last) if index not in self._sets]
        step = self.oracle.most_at_once
        for start in range(0, len(missing), step):
            for one in self._make(missing[start : start + step]):
                made[one.index] = one
                if self.size_bytes + one.size_bytes <= self.most_bytes:
                    self._sets[one.index] = one
                    self.size_bytes += one.size_bytes
        return [made[index] if index in made else self._sets[index] for index in range(first, last)]

    def prepare(self, first: int, last: int) -> None:
        """Make sets that will be wanted, as far as they can be kept; then give back what only making them took."""
        step = self.oracle.most_at_once
        for start in range(first, last, step):
            part = self.sets(start, min(start + step, last))
            if self.size_bytes + sum(one.size_bytes for one in part) > self.most_bytes:
                break
        self.rest()

    def spend(self, last: int) -> None:
        """Never give a set before number `last` to a timed call of a candidate again; forget what is kept of them."""
        self.fresh = max(self.fresh, last)
        for key in [key for key in self._sets if WARM_SETS <= key < self.fresh]:
            self.size_bytes -= self._sets.pop(key).size_bytes

    def rest(self) -> None:
        """Give back what only making sets took, here and in the oracle."""
        self.oracle.rest()
        self.device.trim()

    def fit(self, free_bytes: int | None, held: int = 0) -> None:
        """Keep no more sets from now on than leave room for making others.

        Args:
            free_bytes: Memory that nobody uses, once both arms have theirs; None where that is not counted.
            held: How many sets a launch holds at a time that may not be kept.
        """
        if free_bytes is not None:
            making = _MAKING_SETS * self.oracle.set_bytes + _MAKING_INPUTS * self.anatomy.input_bytes
            room = max(0, free_bytes - making - int(held * self._kept_bytes))
            self.most_bytes = min(self.most_bytes, self.size_bytes + room)

    def forget(self) -> None:
        """Give the memory of the sets back; each will be the same when it is made again."""
        self._sets.clear()
        self.size_bytes = 0
        self.device.trim()

    def _probe(self) -> None:
        """Learn the reference's own error on each distribution, and which distributions the reference allows."""
        for name, count in _PROBES.items():
            none = [0.0] * len(self.anatomy.outputs)
            worst = Own(none, none)
            for number in range(count):
                seed = self.secrets.number("probe", name, number)
                worst = worst.or_worse(self._own(self.oracle.make([(seed, name)])[0]))
                if not worst.usable:
                    break
            if worst.usable:
                self._own_error[name] = worst
            elif name == "own":
                most = [most_own_error(out.dtype) for out in self.anatomy.outputs]
                raise TaskError(
                    f"{self.task.id}: expected a reference whose own arithmetic agrees with float64 within {most} of "
                    f"its outputs' scale, it does not (errors {worst.error}): any answer would pass"
                )

    def _own(self, raw: RawSet) -> Own:
        """The reference's own error on one set."""
        error: list[float] = []
        for entry, out in zip(raw.reports, self.anatomy.outputs, strict=True):
            if out.floating:
                error.append(entry["own_error"] / entry["scale"] if entry["scale"] > 0 else 0.0)
            else:
                error.append(entry["mismatches"] / max(out.size, 1))
        usable = all(
            entry["masks_differ"] == 0 and one < most_own_error(out.dtype)
            for entry, one, out in zip(raw.reports, error, self.anatomy.outputs, strict=True)
        )
        return Own(error, [entry["own_row_error"] for entry in raw.reports], usable)

    def _make(self, indices: Sequence[int]) -> list[InputSet]:
        """Make sets; where the reference errs too much, though not on the probes, with inputs of the task's own."""
        names = [_CYCLE[index % len(_CYCLE)] for index in indices]
        names = [name if name in self._own_error else "own" for name in names]
        seeds = [self.secrets.number("set", index) for index in indices]
        raws = self.oracle.make(list(zip(seeds, names, strict=True)))
        drafts: list[_Draft] = []
        unusable: list[int] = []
        for index, name, raw in zip(indices, names, raws, strict=True):
            own = self._own(raw)
            if name != "own" and not own.usable:
                unusable.append(index)
            else:
                drafts.append(self._draft(index, name, raw, own))
        result = self._finished(drafts)
        for index in unusable:
            (raw,) = self.oracle.make([(self.secrets.number("set", index), "own")])
            result += self._finished([self._draft(index, "own", raw, self._own(raw))])
        return result

    def _draft(self, index: int, name: str, raw: RawSet, own: Own) -> _Draft:
        """Choose what of a set is needed to judge outputs.

        What is allowed follows the reference's error on this set where that is larger than on the probes: products of
        large numbers before a softmax err by nothing on one set and by 0.03 % on the next.
        """
        random = self.secrets.generator("check", index)
        whole = bool(random.random() < self.settings.full_check_share) or index == 0
        share = max(16, self.settings.sample_elements // len(self.anatomy.outputs))
        probed = self._own_error[name]
        worse = probed.or_worse(own) if own.usable else probed
        answers: list[_DraftAnswer] = []
        for position, (out, values) in enumerate(zip(self.anatomy.outputs, raw.answers, strict=True)):
            errors = (worse.error[position], worse.row_error[position])
            answer = self._answer(out, values, raw.reports[position], errors, share, random, whole=whole)
            answer.reference_error = probed.error[position]
            answers.append(answer)
        return _Draft(index, name, raw.inputs, answers)

    def _finished(self, drafts: Sequence[_Draft]) -> list[InputSet]:
        """Read the chosen elements of several sets, all in one go."""
        wanted = [pair for draft in drafts for answer in draft.answers for pair in answer.wanted]
        taken = iter(self.device.take(wanted))
        return [
            InputSet(draft.index, draft.name, draft.inputs, tuple(answer.finished(taken) for answer in draft.answers))
            for draft in drafts
        ]

    def _answer(
        self,
        out: Expected,
        values: Array,
        report: dict[str, float],
        own: tuple[float, float],
        share: int,
        random: np.random.Generator,
        *,
        whole: bool,
    ) -> _DraftAnswer:
        count = min(share, out.size)
        positions = random.choice(out.size, size=count, replace=False) if count else np.empty(0)  # in random order
        positions = positions.astype(np.int64)
        settings, (own_error, own_row_error), scale = self.settings, own, report["scale"]
        factor, floor_ulps = HALF.get(out.dtype, (settings.error_factor, settings.error_floor_ulps))
        kept = self.device.copy(values) if whole else None
        if not out.floating:
            return _DraftAnswer(positions, values, kept, 1.0, own_error * settings.error_factor)  # shares have no scale
        allowed = tolerance(
            scale=scale,
            own_relative_error=own_error,
            dtype=out.dtype,
            factor=factor,
            floor_ulps=floor_ulps,
        )
        row_allowed = max(factor * own_row_error, floor_ulps * EPSILON[out.dtype])
        scales = row_scales(values, out.shape, all_finite=report["all_finite"] == 1.0) if out.size else None
        row_tolerance = row_allowed if row_allowed < 1.0 and _width(out) >= _LEAST_WIDTH else float("inf")
        return _DraftAnswer(positions, values, kept, scale, allowed, row_tolerance, scales, _width(out))

    def close(self) -> None:
        """End the oracle and give the sets back."""
        self.closed = True
        self.oracle.close()
        self.forget()
