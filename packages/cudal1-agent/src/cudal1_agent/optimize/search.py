"""The search: judges candidates one after another, and reports the best so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from cudal1_data import Task
from cudal1_data.hashes import digest
from cudal1_env import Archive, Evaluation
from cudal1_env.records import PROTOCOL_VERSION, Precision, Speedup

from cudal1_agent.errors import PolicyError
from cudal1_agent.optimize.budget import Budget
from cudal1_agent.optimize.record import Judged, interval_text
from cudal1_agent.optimize.sources import Answers, Candidate

_STALE = 2
"""Rounds without a new program after which a policy is not asked again."""


class Judging(Protocol):
    """The judge that a search needs."""

    def evaluate(self, task: Task, source: str, *, precision: Precision = "training") -> Evaluation:
        """Judge one candidate; see `cudal1_env.Evaluator`."""
        ...

    def retire(self) -> dict[str, str]:
        """Stop using the current seeds, and return all seeds so far by their commitments."""
        ...

    def close(self) -> None:
        """Stop every process."""
        ...


class Search:
    """Judging of programs for one module, with the verdicts so far."""

    def __init__(
        self,
        task: Task,
        archive: Archive,
        budget: Budget,
        begin: Callable[[], Judging],
        say: Callable[[str], None],
        *,
        floor: int = 0,
    ) -> None:
        """Prepare to judge.

        Args:
            task: The module.
            archive: Where verdicts are kept.
            budget: Time and candidates.
            begin: Starts a judge, when one is needed.
            say: Receives each verdict with the best so far.
            floor: Position in the archive; verdicts up to it are not looked up, because another machine measured them.
        """
        self._task, self._archive, self._budget = task, archive, budget
        self._begin, self._say, self._floor = begin, say, floor
        self._judge: Judging | None = None
        self._seen: dict[str, Evaluation] = {}
        self.judged: list[tuple[Candidate, Evaluation, Judged]] = []
        """All programs that were judged or looked up, in order."""

    @property
    def programs(self) -> int:
        """Programs that count against the budget: all but the module itself and baselines."""
        return sum(
            one.origin != "the module itself" and not one.origin.startswith("baseline ") for one, _, _ in self.judged
        )

    @property
    def untried(self) -> bool:
        """Whether the time of the search is over and no candidate was judged."""
        return self.programs == 0 and self._budget.search_s <= 0

    @property
    def best(self) -> Speedup | None:
        """Speedup of the most promising program with an estimate above 1."""
        speedups = (found.speedup for _, found in self.ranked() if found.speedup is not None)
        return next((one for one in speedups if one.point > 1.0), None)

    def ranked(self) -> list[tuple[Candidate, Evaluation]]:
        """Return the correct programs whose interval reaches above 1, the most promising first."""
        able = [
            (one, found)
            for one, found, _ in self.judged
            if found.correct
            and found.speedup is not None
            and found.speedup.high > 1.0
            and one.origin != "the module itself"
        ]
        return sorted(able, key=lambda pair: -low(pair[1]))

    def judge(self, candidate: Candidate, seconds: float, *, again: bool = False) -> Evaluation:
        """Return the verdict on a program at `training` precision.

        Args:
            candidate: The program.
            seconds: Longest time.
            again: Whether to measure a program that was judged before.

        Raises:
            OverError: The time is over.
            TaskError: The module cannot be judged.
            MachineError: The machine broke.
        """
        known = None if again else self.known(candidate.source, "training")
        found = known or self.evaluate(candidate.source, "training", seconds)
        after_s = 0.0 if known is not None else self._budget.spent_s
        self._seen[digest(candidate.source)] = found
        shown = Judged(
            origin=candidate.origin,
            source_sha256=found.source_sha256,
            status=found.status.value,
            speedup=found.speedup,
            after_s=after_s,
        )
        self.judged.append((candidate, found, shown))
        return found

    def known(self, source: str, precision: Precision) -> Evaluation | None:
        """Return the last verdict on a program, of this command or an earlier one on this machine; None for none."""
        found = [
            one
            for one in self._archive.program(self._task.id, digest(source), after=self._floor)
            if one.task_source == self._task.source and one.protocol == PROTOCOL_VERSION and one.precision == precision
        ]
        return found[-1] if found else None

    def evaluate(self, source: str, precision: Precision, seconds: float) -> Evaluation:
        """Judge a program within a time, and keep the verdict; after an interrupt, the next call starts a new judge."""
        try:
            with self._budget.within(seconds):
                if self._judge is None:
                    self._judge = self._begin()
                found = self._judge.evaluate(self._task, source, precision=precision)
        except BaseException:
            self.close()
            raise
        self._archive.add(found)
        return found

    def close(self) -> None:
        """Stop the judge, and write the seeds of its inputs into the archive; the next judge draws other inputs."""
        judge, self._judge = self._judge, None
        if judge is None:
            return
        try:
            for commitment, seed in judge.retire().items():
                self._archive.disclose(commitment, seed)
        finally:
            judge.close()

    def try_all(self, candidates: Iterable[Candidate], *, share: float = 1.0) -> None:
        """Judge candidates until the budget, or a share (0 to 1) of what is left of it, is spent; each program once."""
        left_s = (1.0 - share) * self._budget.search_s
        most = self.programs + share * (self._budget.candidates - self.programs)
        for candidate in candidates:
            if self.programs >= most or self._budget.search_s <= left_s:
                return
            if digest(candidate.source) not in self._seen:
                found = self.judge(candidate, self._budget.search_s)
                self._tell(candidate, found)

    def ask(self, answers: Answers) -> str | None:
        """Judge a policy's answers until the budget is spent; return what went wrong, if anything did."""
        stale = 0
        while (most := self._budget.candidates - self.programs) > 0 and self._budget.search_s > 0:
            before = len(self._seen)
            try:
                candidates = answers.round(self._task, self._archive, most, timeout_s=self._budget.search_s)
            except PolicyError as error:
                return str(error)
            self.try_all(candidates)
            stale = stale + 1 if len(self._seen) == before else 0
            if stale == _STALE:
                empty = answers.without_program
                return f"nothing new in {stale} rounds; {empty} of {answers.asked} answers held no program"
        return None

    def _tell(self, candidate: Candidate, found: Evaluation) -> None:
        speed = interval_text(found.speedup) if found.speedup is not None and found.correct else found.status.value
        best = self.best
        told = f"; best so far {interval_text(best)}" if best is not None else "; none is faster yet"
        left = max(0.0, self._budget.search_s)
        count = f"{self.programs} of {self._budget.candidates} candidates"
        self._say(f"{count}, {left:.0f} s left: {candidate.origin}: {speed}{told}")


def low(evaluation: Evaluation) -> float:
    """Return the lower bound of a verdict's interval that counts, reduced by the judge's overhead (`counted_low`)."""
    return evaluation.counted_low or 0.0
