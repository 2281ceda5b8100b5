"""The secret pool of a task: input sets that no candidate has seen, with float64 answers.

No candidate is timed on a set that any candidate has seen before, in this trial or an earlier one. A worker dies after
its trial, but its requests leave traces in the host kernel's caches, such as pages of files and lookups of missing
names. A later candidate could read these traces by timing (tests/exploits/h30_*).
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from cudal1_data import Task
from cudal1_worker.protocol import MAX_OUTPUTS
from cudal1_worker.sandbox import Spec

from cudal1_env.errors import TaskError
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.device.tensors import Array
from cudal1_env.judge.oracle import replies
from cudal1_env.judge.oracle.client import OracleClient, RaisedError, Request, Weights
from cudal1_env.judge.oracle.numerics import Answer, limits_of
from cudal1_env.judge.oracle.samples import InputSet
from cudal1_env.judge.oracle.state import Fingerprints
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.workers.zygote import Zygote

WARM_SETS = 2
"""Number of sets, at the start of the pool, that serve the untimed calls of every trial."""
SEED_BYTES = 16
_DRAWS = 64
"""Draws that are searched for recurring values: with 1,000 equally likely cases, two draws agree with 87 % chance."""
_CYCLE = ("own", "own", "shifted", "own", "own", "heavy", "own", "needle")
"""Distributions of consecutive sets; most are the task's own, because speed may depend on values."""
_SHARED_SETS = tuple(_CYCLE.index(name) for name in dict.fromkeys(_CYCLE))
"""Sets that all candidates of a pool share at `correct` precision: the first of each distribution."""
_UNSEEN_SETS = 2
"""Sets on which a fault must go undetected to count as unseen; a candidate is checked on more sets."""
_SEARCH_SHARE = 0.8
"""Share of the oracle's time limit after which a search ends; the rest is for its last run."""
_SAMPLE_ELEMENTS = 128
"""Secret output elements sampled from each call, over all its outputs. A CPU sample reads all on the clock, a GPU
sample a few."""
_PROBES = 16
"""Maximum sets for estimating the reference's typical errors."""
_OWN_DRAWS = 4
"""Draws of a task's own inputs, all of which must be unusable before the task is refused: one in a hundred of an
attention's in bfloat16 was (docs/log.md, "Without a GPU (2026-11-28)")."""


def private_seed() -> int:
    """Return a new seed for a single worker."""
    return secrets.randbits(62)


_MAKING_SETS = 3
"""Making a large set takes the memory of this many further sets plus `_MAKING_INPUTS` times the inputs.

If inputs and outputs are of similar size, that is 7 to 9 times the inputs (counted on a CPU, including the float64
model's memory).
"""

_MAKING_INPUTS = 4
"""See `_MAKING_SETS`."""

_AHEAD_BYTES, _AHEAD_SHARE = 2 << 30, 1 / 16
"""Maximum bytes of sets made ahead, or share of the free memory, if that is more: the arms take theirs then."""


class Secrets:
    """All secrets of one pool, derived from one 128-bit seed."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"expected a seed of {SEED_BYTES} bytes, got {len(seed)}")
        self.seed = seed
        self.commitment = hashlib.sha256(seed).hexdigest()

    def number(self, *labels: object) -> int:
        """Return a 62-bit number for a purpose; different labels give unrelated numbers."""
        text = "/".join(str(label) for label in labels).encode()
        return int.from_bytes(hashlib.sha256(self.seed + text).digest()[:8], "little") >> 2

    def generator(self, *labels: object) -> np.random.Generator:
        """Return a random generator for a purpose."""
        text = "/".join(str(label) for label in labels).encode()
        key = int.from_bytes(hashlib.sha256(self.seed + text).digest(), "little")
        return np.random.Generator(np.random.PCG64DXSM(key))


Recurrence = tuple[list[float], list[int], list[int]]
"""Recurring share of each output, positions of recurring inputs, positions of outputs that never change."""


@dataclass(frozen=True)
class Findings:
    """What a judge found out about tasks, by source: pools of different secrets share these properties of a task."""

    unseen: dict[tuple[str, float], str] = field(default_factory=dict[tuple[str, float], str])
    """Results of `Pool.unseen`."""
    recurrence: dict[str, Recurrence] = field(default_factory=dict[str, Recurrence])
    """Results of `Pool.recurrence`."""


class Pool:
    """Input sets of one task under one seed, made by its oracle on demand.

    Methods raise `TaskError` if the reference fails or is too inaccurate.

    Raises:
        TaskError: The task's reference is unusable.
    """

    def __init__(
        self,
        task: Task,
        zygote: Zygote,
        spec: Spec,
        device: Device,
        settings: JudgeSettings,
        seed: bytes,
        findings: Findings,
    ) -> None:
        self.task = task
        self.settings = settings
        self.device = device
        self.secrets = Secrets(seed)
        self.construct_seed = self.secrets.number("construct")
        self.oracle = OracleClient(
            zygote, spec, device, task, seed=self.construct_seed, timeout_s=settings.oracle_timeout_s
        )
        if not 1 <= len(self.io_spec.outputs) <= MAX_OUTPUTS:
            self.oracle.close()
            raise TaskError(f"{task.id}: expected 1 to {MAX_OUTPUTS} output tensors, got {len(self.io_spec.outputs)}")
        self._closed = False
        self.candidates = 0
        """Number of candidates served."""
        self._began = time.monotonic()
        self._lock = threading.RLock()
        """Untimed candidates run in parallel; the oracle answers one at a time."""
        self.fresh = WARM_SETS
        """Number of the first set that no candidate has seen, after those for untimed calls."""
        self._wanted = 0
        """Maximum number of new sets that a trial has prepared."""
        self._weights: Weights | None = None
        self._fingerprints: Fingerprints | None = None
        self._sets: dict[int, InputSet] = {}
        self._wide: dict[int, tuple[Answer, ...]] = {}
        """Widened answers of kept sets."""
        self.max_bytes = settings.pool_bytes
        """Maximum memory of kept sets; the owner of several pools sets it."""
        self.size_bytes = 0
        """Memory of kept sets."""
        self._findings = findings
        self._reference_error: dict[str, list[float]] = {}
        """Reference error by usable distribution, for each output, over its scale."""

    @property
    def closed(self) -> bool:
        """Whether the pool is retired, or its oracle is dead."""
        return self._closed or not self.oracle.worker.alive

    @property
    def io_spec(self) -> replies.IoSpec:
        """The task's I/O specification."""
        return self.oracle.io_spec

    @property
    def room(self) -> int:
        """Number of input sets that can be kept; some have whole answers."""
        return int(self.max_bytes / self._kept_bytes)

    @property
    def _kept_bytes(self) -> float:
        """Mean memory of a kept set; not all have whole answers."""
        whole = sum((8 + out.limit_bytes) * out.size for out in self.io_spec.outputs)
        return self.io_spec.input_bytes + self.settings.full_check_share * whole + 1

    def weights(self) -> Weights:
        """Return the judge's weights for this pool, all non-default; empty if the task has no state."""
        with self._lock:
            if self._weights is None:
                self._weights = self.oracle.weights(self.construct_seed, self.secrets.number("weights"))
            return self._weights

    def fingerprints(self) -> Fingerprints:
        """Return fingerprints of the state that the reference's constructor makes under this pool's seed."""
        with self._lock:
            if self._fingerprints is None:
                answer = self.oracle.ask("fingerprints", replies.Fingerprinted, seed=self.construct_seed)
                self._fingerprints = answer.fingerprints
            return self._fingerprints

    @property
    def is_spent(self) -> bool:
        """Whether the secrets must be replaced: each candidate may leak a little about them to the next one."""
        age_s = time.monotonic() - self._began
        return self.candidates >= self.settings.pool_candidates or age_s > self.settings.pool_s

    def private_inputs(self) -> Array:
        """Return inputs of the task's own distribution for a single worker, without answers."""
        with self._lock:
            return self.oracle.draw(private_seed())

    def sets(self, first: int, last: int) -> list[InputSet]:
        """Return the sets from number `first` up to, not including, `last`; make those that are missing.

        A set is the same each time. Sets that exceed the pool's memory are not kept, and are made again on demand.
        """
        with self._lock:
            if self.io_spec.state:
                self.weights()  # loads them into the oracle's models, which give the answers
            if "own" not in self._reference_error:
                self._probe()
            made = dict[int, InputSet]()
            missing = [index for index in range(first, last) if index not in self._sets]
            step = self.oracle.max_at_once
            for start in range(0, len(missing), step):
                for one in self._make(missing[start : start + step]):
                    made[one.index] = one
                    if self.size_bytes + one.size_bytes <= self.max_bytes:
                        self._sets[one.index] = one
                        self.size_bytes += one.size_bytes
            return [made[index] if index in made else self._sets[index] for index in range(first, last)]

    def recurrence(self) -> tuple[int, list[int], list[int]]:
        """Return how much of inputs and outputs recurs with other inputs.

        Never call it during a measurement: the first call for a task runs the reference up to `_DRAWS` times.

        Returns:
            Bytes to move for the recurring parts of outputs; positions of inputs with recurring parts; positions of
            outputs that never change.

        Raises:
            TaskError: The reference fails.
        """
        with self._lock:
            if (known := self._findings.recurrence.get(self.task.source)) is None:
                seeds = [self.secrets.number("again", k) for k in range(_DRAWS)]
                answer = self.oracle.ask("recurrence", replies.Recurring, seeds=seeds)
                if len(answer.outputs) != len(self.io_spec.outputs):
                    raise self.oracle.disturbed("recurrence", "expected a share of each output")
                known = answer.outputs, answer.inputs, answer.fixed
                self._findings.recurrence[self.task.source] = known
        shares, places, fixed = known
        pairs = zip(shares, self.io_spec.outputs, strict=True)
        return int(sum(share * out.size * out.item_bytes for share, out in pairs if not out.aliases)), places, fixed

    def is_searched(self, *, doubts: bool) -> bool:
        """Return whether `recurrence` and, if asked for, `doubts` are known without another question to the oracle."""
        source, key = self.task.source, (self.task.source, self.settings.error_factor)
        return source in self._findings.recurrence and (not doubts or key in self._findings.unseen)

    def unseen(self) -> str:
        """Return the first work that a program could omit undetected (`cudal1_worker.oracle.unseen`); empty if none.

        The oracle is asked once for each task, or again after it lacked memory.
        """
        key = self.task.source, self.settings.error_factor
        if (known := self._findings.unseen.get(key)) is not None:
            return known
        seeds = [self.secrets.number("unseen", k) for k in range(_UNSEEN_SETS)]
        limit_s = _SEARCH_SHARE * self.settings.oracle_timeout_s
        answer = self.oracle.ask("unseen", replies.Unseen, seeds=seeds, limit_s=limit_s)
        if answer.tried:
            self._findings.unseen[key] = answer.work
        return answer.work

    def doubts(self) -> list[str]:
        """Return what a program could keep or omit although its outputs are correct; empty if nothing.

        Never call it during a measurement: the first call for a task runs the reference some hundred times.
        """
        with self._lock:
            work, (_, again, fixed), spec = self.unseen(), self.recurrence(), self.io_spec
        return [
            *(f"constant input {place}" for place in spec.constant_inputs),
            *(f"constant output {place}" for place in fixed),
            *(f"state {name} that no output shows" for name in spec.changed),
            *([work] if work else []),
            *(f"recurring input {place}" for place in again if place not in spec.constant_inputs),
            *(f"seeded tensor {name} outside the state" for name in spec.seeded),
        ]

    def untimed_sets(self) -> list[InputSet]:
        """Return the sets of one verdict at `correct` precision.

        The pool's candidates share one set of each distribution; the last set is for this candidate only.
        """
        with self._lock:
            shared = [one for number in _SHARED_SETS for one in self.sets(number, number + 1)]
            self.fresh = max(self.fresh, len(_CYCLE)) + 1
            return [*shared, *self._make([self.fresh - 1])]

    def prepare(self, first: int, last: int) -> None:
        """Make sets in advance, as far as they can be kept; then free the memory needed for making them."""
        with self._lock:
            step = self.oracle.max_at_once
            for start in range(first, last, step):
                part = self.sets(start, min(start + step, last))
                if self.size_bytes + sum(one.size_bytes for one in part) > self.max_bytes:
                    break
            self._wanted = max(self._wanted, last - self.fresh)
            self.make_way()

    @contextlib.contextmanager
    def making_ahead(self) -> Generator[None]:
        """Make as many new sets as any trial has prepared, in a background thread during the block.

        Those that a trial leaves are for the next one.

        They are complete when the block ends. The device must be leased, and nothing may be timed meanwhile.
        """
        ahead_bytes = max(_AHEAD_BYTES, _AHEAD_SHARE * (self.device.free_bytes() or 0))
        count = min(self._wanted, int(ahead_bytes / self._kept_bytes))
        if not count:
            yield
            return
        with ThreadPoolExecutor(1) as executor:
            making = executor.submit(self.prepare, self.fresh, self.fresh + count)
            yield
            making.result()

    def spend(self, last: int) -> None:
        """Mark the sets before number `last` as seen by a candidate, and forget them."""
        self.fresh = max(self.fresh, last)
        for key in [key for key in self._sets if WARM_SETS <= key < self.fresh]:
            self.size_bytes -= self._sets.pop(key).size_bytes + _limit_bytes(self._wide.pop(key, ()))

    def rest(self) -> None:
        """Free the memory that is needed only for making sets, in the judge and in the oracle.

        Call it whenever the pool becomes idle: other pools and other judges of the device need the memory.
        """
        with self._lock:
            self.oracle.ask("rest", replies.Done)
        self.device.trim()

    def make_way(self) -> None:
        """Rest unless half of a GPU's memory is free: freeing and taking it again takes a tenth of a second there."""
        if 2 * (self.device.free_bytes() or 0) <= self.device.total_bytes():
            self.rest()

    def fit(self, free_bytes: int | None, held: int = 0) -> None:
        """Lower the limit of kept sets so that memory remains for making others.

        Args:
            free_bytes: Free memory once both arms have theirs; None on devices that do not report it.
            held: Maximum number of sets that a trial holds at a time besides kept ones.
        """
        if free_bytes is not None:
            making = _MAKING_SETS * self.oracle.set_bytes + _MAKING_INPUTS * self.io_spec.input_bytes
            room = max(0, free_bytes - making - int(held * self._kept_bytes))
            self.max_bytes = min(self.max_bytes, self.size_bytes + room)

    def forget(self) -> None:
        """Free the memory of all sets; each is the same when it is made again."""
        with self._lock:
            self._sets.clear()
            self._wide.clear()
            self.size_bytes = 0
        self.device.trim()

    def _probe(self) -> None:
        """Estimate the reference's errors, and find which input distributions the reference supports."""
        outputs, settings = self.io_spec.outputs, self.settings
        limits = [limits_of(out.dtype, settings.error_factor, settings.error_floor_ulps) for out in outputs]
        seeds = [self.secrets.number("probe", number) for number in range(_PROBES)]
        self.oracle.ask("probe", replies.Done, seeds=seeds, limits=limits, answer_bytes=self.oracle.answer_bytes)
        reason = self._try("own", 0)
        for number in range(1, _OWN_DRAWS):
            reason = reason and self._try("own", number)
        if reason:
            raise TaskError(
                f"{self.task.id}: the reference's own arithmetic must agree with float64, but {reason}: any "
                "answer would pass; make the reference more accurate, or its inputs less extreme"
            )
        for name in dict.fromkeys(_CYCLE):
            if name != "own":
                with contextlib.suppress(RaisedError):
                    self._try(name)

    def _try(self, distribution: str, number: int = 0) -> str:
        """Keep the reference's errors on one draw of a distribution, or return why the draw is unusable."""
        labels = "probe", distribution, number
        seed, random = self.secrets.number(*labels), self.secrets.generator(*labels)
        ((one, reason),) = self._finished([self._request(-1, seed, distribution, random, whole=False)])
        if not reason:
            self._reference_error[distribution] = [answer.reference_error for answer in one.answers]
        return reason

    def _make(self, indices: Sequence[int]) -> list[InputSet]:
        """Make sets; replace those on which the reference fails or errs too much by the task's own distribution."""
        names = [_CYCLE[index % len(_CYCLE)] for index in indices]
        names = [name if name in self._reference_error else "own" for name in names]
        drafts = [self._draft(index, name) for index, name in zip(indices, names, strict=True)]
        try:
            made = self._finished(drafts)
            again = [one.index for one, reason in made if reason and one.distribution != "own"]
        except RaisedError:  # not every matrix has a factorisation
            if len(indices) > 1:
                return [one for index in indices for one in self._make([index])]
            if names == ["own"]:
                raise
            made, again = [], indices
        made = [(one, reason) for one, reason in made if one.index not in again]
        for index in again:
            made += self._finished([self._draft(index, "own")])
        return [one for one, _ in made]

    def _widened(self, index: int, distribution: str) -> tuple[Answer, ...]:
        """Return the answers of a set with tolerances that also count the reference's errors on moved inputs."""
        with self._lock:
            if (known := self._wide.get(index)) is not None:
                return known
            request = self._draft(index, distribution)
            try:
                ((one, _),) = self._finished([replace(request, nearby=True)])
            except RaisedError:  # not every function is defined on moved inputs
                ((one, _),) = self._finished([request])
            self.make_way()
            if (kept := self._sets.get(index)) is None:
                return one.answers
            # Several arms are compared on it. Its values are the same, so one copy of them is kept.
            pairs = zip(one.answers, kept.answers, strict=True)
            found = tuple(replace(wide, values=own.values, whole=own.whole) for wide, own in pairs)
            if self.size_bytes + (size := _limit_bytes(found)) <= self.max_bytes:
                self._wide[index] = found
                self.size_bytes += size
            return found

    def _draft(self, index: int, name: str) -> Request:
        random = self.secrets.generator("check", index)
        whole = bool(random.random() < self.settings.full_check_share) or index == 0
        return self._request(index, self.secrets.number("set", index), name, random, whole=whole)

    def _request(self, index: int, seed: int, name: str, random: np.random.Generator, *, whole: bool) -> Request:
        """Return the request for a set, with random positions in each output to sample."""
        share = max(16, _SAMPLE_ELEMENTS // len(self.io_spec.outputs))
        positions = [random.choice(out.size, size=min(share, out.size), replace=False) for out in self.io_spec.outputs]
        return Request(index, seed, name, [part.astype(np.int64) for part in positions], whole)

    def _finished(self, requests: Sequence[Request]) -> list[tuple[InputSet, str]]:
        """Make sets; return each with the reason if it is unusable."""
        result: list[tuple[InputSet, str]] = []
        for one, (inputs, answers, reason) in zip(requests, self.oracle.make(requests), strict=True):
            errors = self._reference_error.get(one.distribution, [answer.reference_error for answer in answers])
            known = tuple(replace(answer, reference_error=e) for answer, e in zip(answers, errors, strict=True))
            again = partial(self._widened, one.index, one.distribution)
            result.append((InputSet(one.index, one.distribution, inputs, known, again), reason))
        return result

    def close(self) -> None:
        """Stop the oracle and free the sets."""
        self._closed = True
        self.oracle.close()
        self.forget()


def _limit_bytes(answers: Sequence[Answer]) -> int:
    """Return the memory of the tolerances."""
    return sum(one.limits.nbytes + (0 if one.whole_limits is None else one.whole_limits.nbytes) for one in answers)
