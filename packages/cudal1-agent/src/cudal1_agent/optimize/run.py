"""`optimize`: from a user's file to a confirmed drop-in, or to a message that there is none."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from cudal1_data import Device, Task
from cudal1_data.hashes import digest
from cudal1_data.kernelgen.codegen.rewrites import plain_program
from cudal1_data.kernelgen.make import why_unread
from cudal1_env import Evaluation
from cudal1_env.campaigns.audit import audit_file, audit_tasks
from cudal1_env.campaigns.audit.judge import AuditJudge
from cudal1_env.gate import AuditReport
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure.timing.overhead import TOO_SHORT

from cudal1_agent.errors import OptimizeError, TimeIsUpError
from cudal1_agent.optimize.budget import Budget, OverError
from cudal1_agent.optimize.confirm import Confirmation
from cudal1_agent.optimize.examine import Examined, examine
from cudal1_agent.optimize.folder import OutFolder
from cudal1_agent.optimize.record import Judged, OptimizeRecord, Outcome, Winner, interval_text
from cudal1_agent.optimize.search import Search
from cudal1_agent.optimize.sources import Answers, Candidate, baselines, near_duplicates, templates
from cudal1_agent.optimize.target import Target
from cudal1_agent.run.machine import machine_key, verdicts_floor

_TRIED_AGAIN = 2
"""Number of repeated measurements of a module that seems too short: a busy machine makes calls look short."""
_BASELINES_SHARE = 0.5
"""Share of the search's time that baselines may take."""
_BUILD_SHARE = 0.25
"""Share of the time that building or warming up one program may take."""
_TRACING_SHARE = 0.1
"""Share of the search's time that looking for near-duplicates may take."""


@dataclass
class _State:
    """Results so far."""

    examined: Examined
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    gate: str = ""
    reference: Evaluation | None = None

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count the seconds of the block."""
        began_s = monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + monotonic() - began_s, 1)

    @property
    def at_most(self) -> float | None:
        """Largest expected speedup."""
        found = self.reference.reference if self.reference is not None else None
        if found is None or not self.examined.bound_ms:
            return None
        # The lower quartile, because other programs on the machine make calls longer and never shorter.
        return max(1.0, found.low_ms / self.examined.bound_ms)


def optimize(
    target: Target,
    out: Path,
    device: Device,
    budget: Budget,
    say: Callable[[str], None],
    *,
    answers: Answers | None = None,
    sources: tuple[str, ...] = ("templates",),
) -> OptimizeRecord:
    """Search for a faster program for a module, confirm it, and write a drop-in.

    Args:
        target: The module.
        out: Folder to write; a search in it for the same module is continued.
        device: Where programs run.
        budget: Time and candidates.
        say: Receives messages on progress.
        answers: A policy's answers; None for templates alone.
        sources: Names of where candidates come from, for the record.

    Raises:
        OptimizeError: The module cannot be judged.
        TimeIsUpError: The time is over before the module was measured.
        TaskError: The judge finds that the module cannot be judged.
        MachineError: The machine broke; verdicts are kept in the folder.
    """
    with ExitStack() as opened:
        if answers is not None:
            opened.callback(answers.close)
        folder = OutFolder(out, target, device)
        began_s = monotonic()
        try:
            examined = examine(target, device, timeout_s=budget.search_s)
        except OptimizeError:
            if budget.search_s <= 0:
                raise TimeIsUpError(_over("the module was examined", budget)) from None
            raise
        state = _State(examined, {"examine": round(monotonic() - began_s, 1)})
        folder.begin()
        audit = _audited(target.task, device, folder, budget, state, say)
        archive = opened.enter_context(folder.archive())
        floor = verdicts_floor(folder.search, machine_key(device), archive.position())

        def begin() -> Judge:
            judge = Judge(_settings(device, budget))
            judge.learn(audit)
            return judge

        search = Search(target.task, archive, budget, begin, say, floor=floor)
        opened.callback(search.close)
        found = _baselines(target.task, device, search, budget, state, say)
        _searched(target.task, device, search, budget, state, answers)
        confirmation = Confirmation(search, budget, folder, examined, found, say)
        folder.take_back()
        with state.phase("confirm"):
            winner = confirmation.winner()
        record = _record(target, device, budget, state, search, confirmation, found, winner, answers, sources)
        if winner is not None:
            folder.put(winner[1])
        folder.write(record)
        return record


def _settings(device: Device, budget: Budget) -> JudgeSettings:
    """Return the judge's settings, in which no program may take most of the time to build or warm up."""
    limit_s = max(10.0, _BUILD_SHARE * budget.seconds)
    defaults = JudgeSettings(device=device)
    return JudgeSettings(
        device=device,
        build_timeout_s=min(defaults.build_timeout_s, limit_s),
        warmup_timeout_s=min(defaults.baseline_warmup_timeout_s, limit_s),
    )


def _audited(
    task: Task, device: Device, folder: OutFolder, budget: Budget, state: _State, say: Callable[[str], None]
) -> AuditReport:
    """Check that the judge rejects incorrect programs for the module; if it accepts one, it can confirm nothing.

    Raises:
        OptimizeError: It accepts one, or it refuses the module.
        TimeIsUpError: The time is over.
    """
    say("gate: does this task reject incorrect programs?")
    try:
        with state.phase("gate"), budget.within(budget.search_s), ExitStack() as held:
            report = audit_tasks(
                lambda: held.enter_context(AuditJudge(JudgeSettings(device=device))),
                device,
                task.id,
                [task],
                audit_file(folder.audit, device),
                lambda _: None,
            )
    except OverError:
        raise TimeIsUpError(_over("the task gate was finished", budget)) from None
    found = report.tasks[-1]
    state.gate = found.verdict
    if found.verdict == "refused":
        raise OptimizeError(f"{task.name} cannot be judged: {found.reason}")
    if found.verdict == "survivors":
        raise OptimizeError(
            f"{task.name} cannot be judged safely: incorrect programs pass for it ({', '.join(found.survivors[:4])}); "
            "give example inputs on which they differ"
        )
    return report


def _baselines(
    task: Task, device: Device, search: Search, budget: Budget, state: _State, say: Callable[[str], None]
) -> list[Judged]:
    """Measure the unchanged module, and other ways to run it.

    Raises:
        OptimizeError: The module is not correct against itself, or a call is too short compared with the judge's
            overhead.
        TimeIsUpError: The time is over.
    """
    with state.phase("baselines"):
        itself = Candidate(plain_program(task.source), "the module itself")
        try:
            found = search.judge(itself, budget.search_s)
            for _ in range(_TRIED_AGAIN):
                if found.correct and not found.too_short:
                    break
                found = search.judge(itself, budget.search_s, again=True)
        except OverError:
            raise TimeIsUpError(_over("the module was measured", budget)) from None
        if not found.correct:
            raise OptimizeError(f"{task.name} is not judged correct against itself: {found.status}: {found.message}")
        if found.too_short:
            raise OptimizeError(_too_short(task, found))
        state.reference = found
        if state.at_most is not None:
            counted = "an estimate from copies, products and functions alone"
            say(f"at most {state.at_most:.3g} x is possible here, bound by {state.examined.bound_by} ({counted})")
        measured: list[Judged] = []
        until_s = budget.spent_s + _BASELINES_SHARE * budget.search_s
        for candidate in baselines(task, device):
            try:
                search.judge(candidate, until_s - budget.spent_s)
            except OverError:
                state.notes.append(f"{candidate.origin} was not measured in its share of the time")
                continue
            measured.append(search.judged[-1][2])
            speedup = measured[-1].speedup
            say(f"{candidate.origin}: {interval_text(speedup) if speedup else measured[-1].status}")
        return measured


def _over(what: str, budget: Budget) -> str:
    return (
        f"the search's time was over before {what}: {budget.spent_s:.0f} s of {budget.seconds:.0f} s, the rest is for "
        "confirming a program; give a larger --budget"
    )


def _too_short(task: Task, found: Evaluation) -> str:
    assert found.reference is not None
    assert found.stealable_ms is not None
    takes, needed = (f"{1e3 * ms:.1f} us" for ms in (found.reference.median_ms, TOO_SHORT * found.stealable_ms))
    return (
        f"a call of {task.name} takes {takes}, too short compared with the judge's own work on this machine, which "
        f"needs {needed}; let example_inputs() return larger inputs, or optimise the module that calls it"
    )


def _searched(
    task: Task, device: Device, search: Search, budget: Budget, state: _State, answers: Answers | None
) -> None:
    """Judge candidates until the budget is spent; with a policy, templates get half and known programs a quarter."""
    share = 1.0 if answers is None else 0.5
    unread = why_unread(task.source)
    if unread is not None:
        state.notes.append(f"templates write no kernels for {task.name}: {unread}")
    with state.phase("search"):
        try:
            search.try_all(templates(task, device), share=share)
            if search.programs < budget.candidates and budget.search_s > 0:
                limit_s = _TRACING_SHARE * budget.search_s
                with budget.within(limit_s):
                    known = near_duplicates(task, device, timeout_s=limit_s)
                search.try_all(known, share=share)
        except OverError:
            state.notes.append("the time ended the search of templates and known programs")
        if answers is not None:
            try:
                fault = search.ask(answers)
            except OverError:
                fault = None
            if fault is not None:
                state.notes.append(f"the policy was left: {fault}")
    if search.untried:
        state.notes.append("the time was over before any candidate was judged; give a larger --budget")


def _record(
    target: Target,
    device: Device,
    budget: Budget,
    state: _State,
    search: Search,
    confirmation: Confirmation,
    measured: list[Judged],
    winner: tuple[Winner, Path] | None,
    answers: Answers | None,
    sources: tuple[str, ...],
) -> OptimizeRecord:
    outcome: Outcome = "out_of_time" if confirmation.out_of_time or search.untried else "nothing_faster"
    if winner is not None:
        outcome = "faster"
    assert state.reference is not None
    return OptimizeRecord(
        outcome=outcome,
        message=_message(target.name, outcome, winner[0] if winner is not None else None),
        file=target.path.name,
        name=target.name,
        task_sha256=digest(target.task.source),
        device=device,
        machine=state.reference.machine,
        sources=sources,
        budget_s=budget.seconds,
        spent_s=round(budget.spent_s, 1),
        seconds=state.seconds,
        examined=state.examined,
        gate=state.gate,
        reference=state.reference.reference,
        at_most=state.at_most,
        baselines=tuple(measured),
        candidates=tuple(
            shown
            for one, _, shown in search.judged
            if one.origin != "the module itself" and not one.origin.startswith("baseline ")
        ),
        answers=answers.asked if answers is not None else 0,
        without_program=answers.without_program if answers is not None else 0,
        notes=(*state.notes, *confirmation.notes),
        refuted=confirmation.refuted,
        winner=winner[0] if winner is not None else None,
    )


def _message(name: str, outcome: Outcome, winner: Winner | None) -> str:
    if winner is not None:
        return (
            f"{winner.origin} is {interval_text(winner.confirmed)} as fast as {name}, and "
            f"{interval_text(winner.in_module.speedup)} inside it."
        )
    if outcome == "out_of_time":
        return f"The time was over before a program for {name} was confirmed; the same command goes on."
    return f"No program was confirmed to be faster than {name}; no drop-in was written."
