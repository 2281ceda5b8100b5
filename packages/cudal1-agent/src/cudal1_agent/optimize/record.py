"""The record of an optimisation, and the report that is made from it."""

from __future__ import annotations

from typing import Literal

from cudal1_data import Device
from cudal1_env.records import PROTOCOL_VERSION, Latency, Machine, Speedup
from pydantic import BaseModel, ConfigDict, Field

from cudal1_agent.optimize.examine import Examined

Outcome = Literal["faster", "nothing_faster", "out_of_time"]
"""`faster`: a drop-in was written. `nothing_faster`: no program was confirmed to be faster. `out_of_time`: the time was
over before a promising program could be confirmed."""


class Judged(BaseModel):
    """A program as the search judged it."""

    model_config = ConfigDict(frozen=True)

    origin: str
    """Where it came from."""
    source_sha256: str
    """Hash of its text."""
    status: str
    """Its verdict."""
    speedup: Speedup | None = None
    """Speedup over the unchanged module, at `training` precision."""
    after_s: float = Field(ge=0)
    """Seconds from the beginning of this command; 0 if an earlier command judged it."""


class InModule(BaseModel):
    """Original and drop-in in an ordinary process, with the same weights and all threads of torch."""

    model_config = ConfigDict(frozen=True)

    speedup: Speedup
    """Time of the original over time of the drop-in."""
    original_ms: float = Field(gt=0)
    """Median of the original's calls."""
    dropin_ms: float = Field(gt=0)
    """Median of the drop-in's calls, guard included."""
    processes: int = Field(ge=1)
    """Processes in which both were measured."""
    pairs: int = Field(ge=1)
    """Paired calls."""
    threads: int = Field(ge=1)
    """Threads of torch."""


class Winner(BaseModel):
    """The program that was confirmed."""

    model_config = ConfigDict(frozen=True)

    origin: str
    """Where it came from."""
    source_sha256: str
    """Hash of its text."""
    chosen: Speedup
    """Speedup in the search."""
    confirmed: Speedup
    """Speedup on inputs that no program was chosen on, at `report` precision."""
    end: float = Field(gt=1)
    """Lower bound of `confirmed`. If a policy wrote the program, the judge's overhead that it could use is added to its
    time."""
    strongest: str
    """The strongest baseline; the module itself if no baseline is faster."""
    against_strongest: Speedup | None
    """Speedup over that baseline; None if the program is that baseline."""
    in_module: InModule
    """Speedup in the user's module."""
    tests: tuple[str, ...]
    """Tests of the drop-in that passed."""


class OptimizeRecord(BaseModel):
    """The result of one command."""

    model_config = ConfigDict(frozen=True)

    protocol: str = PROTOCOL_VERSION
    """Version of the judge's protocol."""
    outcome: Outcome
    """How the command ended."""
    message: str
    """Summary in one sentence."""
    file: str
    """Name of the user's file."""
    name: str
    """The module's class."""
    task_sha256: str
    """Hash of the module as a task."""
    device: Device
    """Where programs ran."""
    machine: Machine | None
    """The machine."""
    sources: tuple[str, ...]
    """Where candidates came from: `templates`, `endpoint MODEL`, `run NAME`."""
    budget_s: float
    """Seconds that were allowed."""
    spent_s: float
    """Seconds that were spent."""
    seconds: dict[str, float]
    """Seconds that were spent, by phase."""
    examined: Examined
    """Description of the module."""
    gate: str
    """Verdict of the task gate."""
    reference: Latency | None
    """Latency of the unchanged module in the judge."""
    at_most: float | None
    """Largest expected speedup: lower quartile of the module's latency over the larger of its bounds."""
    baselines: tuple[Judged, ...]
    """Other ways to run the module."""
    candidates: tuple[Judged, ...]
    """Programs that were judged, without baselines, in order."""
    answers: int = Field(default=0, ge=0)
    """Number of a policy's answers."""
    without_program: int = Field(default=0, ge=0)
    """Number of answers that held no program."""
    notes: tuple[str, ...] = ()
    """Problems that did not end the search."""
    refuted: dict[str, str] = Field(default_factory=dict)
    """Promising programs that were not confirmed, with the reason, by origin."""
    winner: Winner | None = None
    """The program of the drop-in; None if none was written."""


def interval_text(speedup: Speedup) -> str:
    """Return a speedup with its interval.

    >>> interval_text(Speedup(low=1.5, point=1.625, high=1.75))
    '1.62 x (1.50 to 1.75)'
    """
    return f"{speedup.point:.2f} x ({speedup.low:.2f} to {speedup.high:.2f})"


def report_text(record: OptimizeRecord) -> str:
    """Return the report, in Markdown."""
    lines = [f"# {record.name} of {record.file}", "", record.message, ""]
    machine = record.machine.name if record.machine is not None else "unknown"
    rows = [
        ("machine", f"{machine} ({record.device}); programs are compared on one core or one GPU"),
        ("task gate", record.gate),
        ("latency", f"{record.reference.median_ms:.3g} ms" if record.reference else "unknown"),
        ("at most", _bound_text(record)),
        *((one.origin, interval_text(one.speedup) if one.speedup else one.status) for one in record.baselines),
        ("candidates", f"{len(record.candidates)}, from {', '.join(record.sources)}"),
        ("time", f"{record.spent_s:.0f} of {record.budget_s:.0f} s: " + _phases(record)),
    ]
    if record.winner is not None:
        rows += _winner_rows(record.winner)
    lines += ["| what | found |", "| --- | --- |", *(f"| {name} | {_cell(text)} |" for name, text in rows), ""]
    lines += ["| candidate | verdict | speedup |", "| --- | --- | --- |"]
    lines += [
        f"| {_cell(one.origin)} | {one.status} | {interval_text(one.speedup) if one.speedup else '-'} |"
        for one in record.candidates
    ]
    told = [f"{name} was not confirmed: {reason}" for name, reason in record.refuted.items()]
    lines += ["", *(f"- {_cell(one)}" for one in (*told, *record.notes))]
    if record.winner is not None:
        lines += ["", _USE.format(name=record.name)]
    return "\n".join(lines).rstrip() + "\n"


_USE = """\
## Use it

```python
from FOLDER import {name}, optimized  # FOLDER is this folder, on Python's path

block = optimized(block)  # the same parameters and buffers
```

The kernel serves calls under `torch.no_grad()` with the shapes, dtypes, strides and device of the example inputs. Any
other call goes to the original; `block.why_not(*inputs)` says why. `test_dropin.py` holds that (`pytest` in this
folder)."""


def _bound_text(record: OptimizeRecord) -> str:
    if record.at_most is None:
        return "unknown"
    return f"{record.at_most:.2f} x, bound by {record.examined.bound_by} (estimate)"


def _phases(record: OptimizeRecord) -> str:
    return ", ".join(f"{name} {seconds:.0f}" for name, seconds in record.seconds.items())


def _winner_rows(winner: Winner) -> list[tuple[str, str]]:
    inside = winner.in_module
    rows = [
        ("winner", f"{winner.origin}, chosen at {interval_text(winner.chosen)}"),
        ("confirmed", f"{interval_text(winner.confirmed)} on new inputs; the end that counts is {winner.end:.2f}"),
    ]
    if winner.against_strongest is not None:
        rows.append((f"against {winner.strongest}", interval_text(winner.against_strongest)))
    rows.append(
        (
            "in your module",
            f"{interval_text(inside.speedup)}, {inside.original_ms:.3g} ms to {inside.dropin_ms:.3g} ms with "
            f"{inside.threads} threads",
        )
    )
    return rows


def _cell(text: str) -> str:
    """Return a text with escapes, as one cell of a table."""
    plain = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return plain.replace("|", "\\|").replace("<", "&lt;")
