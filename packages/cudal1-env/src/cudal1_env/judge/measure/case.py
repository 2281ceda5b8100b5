"""State of one candidate during judging: task, program, seconds by phase, worker, errors of its outputs."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cudal1_data import Task

from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.oracle.numerics import Comparison
from cudal1_env.judge.oracle.samples import InputSet
from cudal1_env.records import Machine, OutputError, Precision, Seconds, Speedup, Status

Role = Literal["candidate", "baseline"]
"""Whether a program is judged for its own verdict or as a baseline of its task."""


@dataclass
class Stopwatch:
    """Adds up seconds by phase."""

    began: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Add the time of a block to a phase; `name` is a field of `Seconds` without its unit."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to a phase."""
        self.phases[name] = self.phases.get(name, 0.0) + seconds

    def seconds(self) -> Seconds:
        """Return the seconds so far, in total and by phase."""
        total = time.perf_counter() - self.began
        return Seconds(total_s=total, **{f"{name}_s": value for name, value in self.phases.items()})


@dataclass(frozen=True)
class Case:
    """A candidate, its task and why it is judged."""

    task: Task
    source: str
    precision: Precision
    role: Role = "candidate"
    machine: Machine | None = None
    """The machine that judges it."""
    sensitivity: tuple[float, ...] = ()
    """Input sensitivity: minimum share of each input tensor that influences the output; empty if unknown."""
    doubts: Sequence[str] | None = None
    """What an audit doubts of the task's checker; None if no audit knows the task, and the judge must search."""
    unstable: Speedup | None = None
    """Speedup of an earlier measurement that was `UNSTABLE`; the verdict states no higher one."""
    seed: bytes | None = None
    """Seed of its pool, if the pool is for this program only."""
    place: int = 0
    """Its place among the caller's jobs."""
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def key(self) -> tuple[str, str]:
        """Key of its pool: its task, and its seed if the caller chose one.

        `correct` precision has its own pool, so that timed verdicts never share its secrets.
        """
        if self.seed is not None:
            return self.task.id, self.seed.hex()
        return self.task.id, "correct" if self.precision == "correct" else ""


@dataclass
class Built:
    """A candidate after its import or its precompilation."""

    case: Case
    arm: Arm | None = None
    """None if the import failed (`fault` says how), if it is precompiled, or if it must be imported again under a
    lease."""
    fault: Fault | None = None
    folder: Path | None = None
    """Build folder on the host, to be removed; None if it is in the worker's own file system."""
    snapshot: Path | None = None
    """Compiled files, with which its later workers start."""
    layers: tuple[str, ...] = ()
    """Sandbox layers of its worker."""
    missing: tuple[str, ...] = ()
    """Sandbox layers that the machine lacks."""
    stderr: str = ""
    """The program's output until its import failed, or in its last trial until its text was withheld."""
    note: str = ""
    """How its call on made-up inputs failed, if it did."""
    prepared_s: float = 0.0
    """Seconds that imports, constructors and untimed calls of earlier trials took."""


@dataclass
class Tally:
    """Errors of a candidate's outputs, over all compared calls."""

    calls: int = 0
    full_checks: int = 0
    errors: dict[tuple[int, str], OutputError] = field(default_factory=dict[tuple[int, str], OutputError])
    """The worst error by output and distribution."""

    def check(self, one: InputSet, comparisons: Sequence[Comparison]) -> None:
        """Count a call's comparisons; raise `Fault` if an output is incorrect."""
        self.calls += 1
        for position, (comparison, answer) in enumerate(zip(comparisons, one.answers, strict=True)):
            seen = OutputError(
                output=position,
                # The program controls these numbers; two digits keep it from leaking inputs through them.
                error=float(f"{comparison.error:.1e}"),
                tolerance=float(f"{comparison.tolerance:.1e}"),
                reference_error=answer.reference_error,
                distribution=one.distribution,
            )
            worst = self.errors.get((position, one.distribution))
            wrong = not comparison.correct
            if wrong or worst is None or seen.error * worst.tolerance > worst.error * seen.tolerance:
                self.errors[position, one.distribution] = seen
            if wrong and comparison.bulk > 1.0:
                raise Fault(
                    Status.WRONG_OUTPUT,
                    f"the errors of output {position} are {comparison.bulk:.2g} times what they may be (root mean "
                    f"square), on {one.distribution} inputs",
                )
            if wrong and seen.tolerance == 0.0:
                raise Fault(
                    Status.WRONG_OUTPUT,
                    f"{seen.error:.2g} of the elements of output {position} are incorrect (integers must be equal), on "
                    f"{one.distribution} inputs",
                )
            if wrong:
                raise Fault(
                    Status.WRONG_OUTPUT,
                    f"an element of output {position} is {seen.error:.2g} from the float64 answer, its tolerance is "
                    f"{seen.tolerance:.2g} (both over the largest element), on {one.distribution} inputs",
                )
