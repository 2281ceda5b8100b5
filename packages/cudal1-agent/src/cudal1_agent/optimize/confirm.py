"""Confirmation of promising programs: on inputs that none was chosen on, and inside the user's module."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudal1_env import Evaluation
from cudal1_env.records import Speedup
from cudal1_env.stats import TrialSamples, against, estimate

from cudal1_agent.errors import OptimizeError
from cudal1_agent.optimize.budget import Budget, OverError
from cudal1_agent.optimize.examine import Examined, run_child
from cudal1_agent.optimize.folder import OutFolder, tolerances_of, with_outputs
from cudal1_agent.optimize.record import InModule, Judged, Winner, interval_text
from cudal1_agent.optimize.search import Search, low
from cudal1_agent.optimize.sources import Candidate

MOST = 4
"""Maximum number of programs that are tried, the most promising first."""
_PROCESSES = 3
_MEASURE_S = 3.0
_START_S = 120.0
"""Longest time for a process of the drop-in, which imports torch and may compile a kernel."""


class Confirmation:
    """Confirmation of the most promising programs."""

    def __init__(
        self,
        search: Search,
        budget: Budget,
        folder: OutFolder,
        examined: Examined,
        baselines: list[Judged],
        say: Callable[[str], None],
    ) -> None:
        self._search, self._budget, self._folder = search, budget, folder
        self._examined, self._baselines, self._say = examined, baselines, say
        self.refuted: dict[str, str] = {}
        """Programs that were not confirmed, with the reason, by origin."""
        self.notes: list[str] = []
        """Programs for which the time was over."""
        self.out_of_time = False
        """Whether the time was over before any was confirmed."""

    def winner(self) -> tuple[Winner, Path] | None:
        """Return the confirmed program with the highest lower bound, and its staged drop-in; None if there is none.

        Programs are tried in the order of the search while time is left. Those whose interval in the search ends below
        the speedup that is already confirmed are skipped.
        """
        tried = self._search.ranked()[:MOST]
        self._search.close()  # a new judge draws new inputs
        best: tuple[Winner, Path] | None = None
        for candidate, chosen in tried:
            assert chosen.speedup is not None
            if best is not None and chosen.speedup.high < best[0].confirmed.point:
                continue
            try:
                found = self._tried(candidate, chosen)
            except OverError:
                self.out_of_time = best is None
                break
            except OptimizeError as error:
                found = str(error)
            if isinstance(found, str):
                self.refuted[candidate.origin] = found
                self._say(f"{candidate.origin} is not confirmed: {found}")
            elif best is None or found[0].confirmed.low > best[0].confirmed.low:
                best = found
        return best

    def _tried(self, candidate: Candidate, chosen: Evaluation) -> tuple[Winner, Path] | str:
        # A verdict of an earlier command is on inputs that chose nothing, too; a second one would be a draw for luck.
        again = self._search.known(candidate.source, "report")
        again = again or self._search.evaluate(candidate.source, "report", self._budget.left_s)
        if not again.correct or again.speedup is None:
            return f"{again.status.value}: {again.message}"
        end = again.speedup.low if candidate.own else low(again)
        if end <= 1.0:
            return f"{interval_text(again.speedup)} on new inputs, and the end that counts is {end:.2f}"
        confirmed = f"{candidate.origin}: confirmed {interval_text(again.speedup)} on new inputs"
        self._say(f"{confirmed}; now in your module")
        try:
            return self._winner(candidate, chosen, again, end)
        except OverError:
            self.notes.append(f"{confirmed}; the time was over before it was measured in your module")
            raise

    def _winner(
        self, candidate: Candidate, chosen: Evaluation, again: Evaluation, end: float
    ) -> tuple[Winner, Path] | str:
        """Return a program that the judge confirmed, if it is faster inside the module; otherwise the reason."""
        tolerances = tolerances_of(again, len(self._examined.outputs))
        staged = self._folder.stage(candidate.source, self._examined, tolerances)
        looks = self._child("test", staged)
        with_outputs(staged, looks["strides"], clones=looks["reused"])
        inside = self._in_module(staged)
        if inside.speedup.low <= 1.0:
            return f"in your module it is {interval_text(inside.speedup)}"
        assert chosen.speedup is not None
        assert again.speedup is not None
        strongest, ratio = self._against_strongest(candidate, again.speedup)
        winner = Winner(
            origin=candidate.origin,
            source_sha256=again.source_sha256,
            chosen=chosen.speedup,
            confirmed=again.speedup,
            end=end,
            strongest=strongest,
            against_strongest=ratio,
            in_module=inside,
            tests=tuple(looks["tests"]),
        )
        return winner, staged

    def _child(self, what: str, staged: Path, *more: str) -> dict[str, Any]:
        left_s = self._budget.left_s
        if left_s <= 0:
            raise OverError
        try:
            return run_child(
                "dropin_child", [str(staged), what, *more], timeout_s=min(left_s, _START_S), what="the drop-in"
            )
        except OptimizeError:
            if self._budget.left_s <= 0:
                raise OverError from None
            raise

    def _in_module(self, staged: Path) -> InModule:
        found = [self._child("time", staged, str(_MEASURE_S)) for _ in range(_PROCESSES)]
        trials: list[TrialSamples] = []
        for one in found:
            original, dropin = zip(*one["pairs"], strict=True)
            trials.append(TrialSamples(tuple(original), tuple(dropin)))
        return InModule(
            speedup=estimate(trials),
            original_ms=statistics.median(time for one in trials for time in one.reference_ms),
            dropin_ms=statistics.median(time for one in trials for time in one.candidate_ms),
            processes=len(trials),
            pairs=sum(one.pairs for one in trials),
            threads=found[0]["threads"],
        )

    def _against_strongest(self, candidate: Candidate, confirmed: Speedup) -> tuple[str, Speedup | None]:
        """Return the strongest baseline, and the program's speedup against it."""
        strong = [one for one in self._baselines if one.speedup is not None and one.status == "CORRECT"]
        best = max(strong, key=lambda one: one.speedup.point if one.speedup else 0.0, default=None)
        if best is None or best.speedup is None or best.speedup.point <= 1.0:
            return "the module itself", confirmed
        return best.origin, None if best.origin == candidate.origin else against(confirmed, best.speedup)
