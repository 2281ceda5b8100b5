"""The live view of a run in a terminal: it follows the metrics and the archive while another process writes them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal1_env.archive_reader import ArchiveReader, Entry
from cudal1_env.errors import RecordError
from cudal1_env.records import Status
from cudal1_env.records.values import PROTOCOL_VERSION

from cudal1_agent.errors import RunError
from cudal1_agent.reporting.curves import kind_of
from cudal1_agent.reporting.rows import best_entries
from cudal1_agent.reporting.run_data import record_of
from cudal1_agent.reporting.text import short, visible
from cudal1_agent.run.folder import ARCHIVE, CONFIG, METRICS, is_finished, read_settings
from cudal1_agent.run.meter import PARTS
from cudal1_agent.run.metrics import Record
from cudal1_agent.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WINDOW = timedelta(minutes=10)
"""Verdicts per minute are counted over the ten minutes before the last verdict."""
SHOWN = {
    "loss": "loss",
    "mean_token_accuracy": "accuracy",
    "raw_reward": "reward",
    "correct": "correct",
    "speedup": "speedup",
}
"""Values in TRL's log that are shown for a step, and their labels."""
WIDE = 120
"""Number of columns from which boxes are in pairs."""
BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
"""Heights of a sparkline."""
COLOURS: dict[str, str] = {
    "correct": "green",
    "rejected": "red",
    "unstable": "yellow",
    "incorrect": "bright_black",
    "generating": "magenta",
    "judging": "blue",
    "learning": "green",
    "waiting": "bright_black",
}
"""Colours of outcomes and of parts of the time."""


@dataclass
class Follower:
    """State of a run so far; `update` reads what is new."""

    path: Path
    settings: Settings | None = None
    records: list[Record] = field(default_factory=list[Record])
    entries: list[Entry] = field(default_factory=list[Entry])
    finished: bool = False
    note: str = ""
    """Reason why something is not shown."""
    _read: int = 0
    _last: bytes = b""

    @property
    def begun(self) -> bool:
        """Whether the directory holds a run."""
        return (self.path / CONFIG).is_file()

    def update(self) -> None:
        """Read what is new; a run that was rewound to resume is read from the beginning."""
        self.note = ""
        if not self.begun:
            self.note = f"no run in {self.path} yet; begin one with: cudal1-agent train --run-dir {self.path}"
            return
        # First, so that all that was written before the mark is read below.
        self.finished = is_finished(self.path)
        if self.settings is None:
            try:
                self.settings = read_settings(self.path)
            except RunError as error:
                self.note = short(str(error), 200)
        if (self.path / METRICS).is_file():
            self._update_records()
        if (self.path / ARCHIVE).is_file():
            try:
                self._update_entries()
            except RecordError as error:
                self.note = short(str(error), 200)

    def _update_records(self) -> None:
        with (self.path / METRICS).open("rb") as file:
            file.seek(self._read - len(self._last))
            if file.read(len(self._last)) != self._last:
                file.seek(0)
                self._read, self._last = 0, b""
                self.records.clear()
            *lines, _ = file.read().split(b"\n")
        for line in lines:
            self._read += len(line) + 1
            self._last = line + b"\n"
            if (record := record_of(line)) is not None:
                self.records.append(record)

    def _update_entries(self) -> None:
        reader = ArchiveReader(self.path / ARCHIVE)
        try:
            known = self.entries[-1] if self.entries else None
            found, fault = reader.entries(after=known.position - 1 if known is not None else 0)
            if known is not None and found[:1] != [known]:
                found, fault = reader.entries()
                self.entries.clear()
            elif known is not None:
                found = found[1:]
        finally:
            reader.close()
        self.entries += found
        self.note = self.note or (short(fault, 200) if fault is not None else "")


def watch(run_dir: Path, console: Console, *, once: bool = False, interval_s: float = 1.0) -> None:
    """Show a run until it is finished.

    Args:
        run_dir: Its directory, which need not exist yet.
        console: Where to show it. One that is no terminal gets a line for each new state.
        once: Print one frame and return.
        interval_s: Time between two updates, in seconds.
    """
    from rich.live import Live

    run = Follower(run_dir)
    run.update()
    if once:
        console.print(frame(run, console.width))
        return
    if not console.is_terminal:
        _tell(run, console, interval_s)
        return
    with Live(frame(run, console.width), console=console, auto_refresh=False) as live:
        while not run.finished:
            time.sleep(max(interval_s, 0.05))
            run.update()
            live.update(frame(run, console.width), refresh=True)


def _tell(run: Follower, console: Console, interval_s: float) -> None:
    """Print a line for each new state of a run until it is finished."""
    told = ""
    while True:
        line = visible(f"{state_text(run)}; {run.note}" if run.note else state_text(run))
        if line != told:
            console.out(line)
        told = line
        if run.finished:
            return
        time.sleep(max(interval_s, 0.05))
        run.update()


def frame(run: Follower, width: int) -> RenderableType:
    """Return one frame of the view.

    Args:
        run: State of the run.
        width: Columns of the terminal; from `WIDE` on, boxes are in pairs.
    """
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(state_text(run), style="bold")]
    if run.note:
        parts.append(Text(visible(run.note), style="yellow"))
    boxes = [
        ("training", _steps(run)),
        ("best programs so far", _best(run)),
        ("verdicts", _statuses(run.entries)),
        ("time", _time(run.records)),
    ]
    drawn = [Panel(content, title=title, title_align="left") for title, content in boxes if content is not None]
    pairs = Table.grid(expand=True)
    across = 2 if width >= WIDE else 1
    for _ in range(across):
        pairs.add_column(ratio=1)
    for at in range(0, len(drawn), across):
        pairs.add_row(*drawn[at : at + across])
    title = Text(visible(short(run.path.resolve().name, 60)))
    border = "green" if run.finished else "cyan"
    return Panel(Group(*parts, pairs), title=title, title_align="left", border_style=border)


def state_text(run: Follower) -> str:
    """Return the state of a run in one line."""
    if not run.begun:
        return "not begun"
    if run.finished:
        return "finished"
    done = [record["phase"] for record in run.records if record["event"] == "seconds"]
    steps = [record for record in run.records if record["event"] == "step"]
    after = f"after {short(visible(done[-1]), 40)}" if done else "beginning"
    if not steps or run.records.index(steps[-1]) < max(
        (at for at, record in enumerate(run.records) if record["event"] == "seconds"), default=-1
    ):
        return f"under way, {after}"
    last = steps[-1]
    return f"under way, {after}: {short(visible(last['stage']), 40)}, step {last['step']}{_of(run, last['stage'])}"


def _of(run: Follower, stage: str) -> str:
    tables: dict[str, dict[str, Any]] = {}
    if run.settings is not None:
        settings = run.settings
        tables = {"sft": settings.sft.trl, "self_train": settings.self_train.trl, "contrast": settings.contrast.trl}
    most = tables.get(stage, {}).get("max_steps")
    return f" of {most}" if most is not None else ""


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Return the last values as one line of blocks.

    >>> sparkline([1.0, 2.0, 3.0]) == BLOCKS[0] + BLOCKS[4] + BLOCKS[7]
    True
    """
    values = values[-width:]
    low, high = min(values, default=0.0), max(values, default=0.0)
    reach = (high - low) or 1.0
    return "".join(BLOCKS[round(7 * (value - low) / reach)] for value in values)


def _steps(run: Follower) -> RenderableType | None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    steps = [record for record in run.records if record["event"] == "step"]
    for stage in dict.fromkeys(record["stage"] for record in steps):
        of_stage = [record for record in steps if record["stage"] == stage]
        name = f"{short(visible(stage), 20)} {of_stage[-1]['step']}"
        for logged, label in SHOWN.items():
            values = [float(one[logged]) for one in of_stage if isinstance(one.get(logged), int | float)]
            if values:
                table.add_row(Text(name), Text(label), Text(f"{values[-1]:.4g}"), Text(sparkline(values), style="cyan"))
                name = ""
    return table if table.row_count else None


def _statuses(entries: Sequence[Entry]) -> RenderableType | None:
    from rich.table import Table
    from rich.text import Text

    if not entries:
        return None
    table = Table(box=None, show_header=False)
    for status, count in Counter(entry.status for entry in entries).most_common():
        bar = "\u2588" * max(round(20 * count / len(entries)), 1)
        table.add_row(Text(visible(short(status, 20))), Text(str(count)), Text(bar, style=COLOURS[kind_of(status)]))
    rate = verdicts_a_minute(entries)
    table.add_row(Text("all"), Text(str(len(entries))), Text(f"{rate:.1f} a minute" if rate else ""))
    return table


def verdicts_a_minute(entries: Sequence[Entry]) -> float:
    """Return the rate of the last verdicts, 0.0 if there are too few."""
    times: list[datetime] = []
    for entry in reversed(entries):
        try:
            times.append(datetime.fromisoformat(entry.created_at))
        except ValueError:
            continue
        if times[0] - times[-1] > WINDOW:
            break
    spent_s = (times[0] - times[-1]).total_seconds() if times else 0.0
    return 60 * (len(times) - 1) / spent_s if spent_s > 0 else 0.0


def _best(run: Follower, count: int = 6) -> RenderableType | None:
    from rich.table import Table
    from rich.text import Text

    ours = [entry for entry in run.entries if entry.protocol == PROTOCOL_VERSION]
    champions = {one["task"]: one["source_sha256"] for one in run.records if one["event"] == "champion"}
    best = sorted(best_entries(ours, champions).values(), key=lambda entry: -(entry.low or 0.0))
    if not best:
        return None
    table = Table(box=None, show_header=False, expand=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, justify="right", style="bold green")
    table.add_column(no_wrap=True)
    for entry in best[:count]:
        ends = f"({entry.low:.2f} to {entry.high:.2f})" if entry.high is not None else ""
        table.add_row(Text(visible(short(entry.task, 80))), Text(f"{entry.point:.2f} x"), Text(ends))
    correct = sum(entry.status == Status.CORRECT for entry in ours)
    table.add_row(Text(f"{len(best)} tasks, {correct} correct", style="dim"))
    return table


def _time(records: Sequence[Record]) -> RenderableType | None:
    from rich.table import Table
    from rich.text import Text

    # A phase is recorded when it ends; until then its steps hold its times.
    ended = max((at for at, record in enumerate(records, start=1) if record["event"] == "seconds"), default=0)
    counted = [record for record in records if record["event"] == "seconds"]
    counted += [record for record in records[ended:] if record["event"] == "time"]
    spent_s = {part: sum(record.get(f"{part}_s", 0.0) for record in counted) for part in PARTS}
    whole_s = sum(spent_s.values())
    if not whole_s:
        return None
    table = Table(box=None, show_header=False)
    for part, seconds in spent_s.items():
        bar = Text("\u2588" * round(20 * seconds / whole_s), style=COLOURS[part])
        table.add_row(Text(part), Text(f"{seconds / whole_s:.0%}"), bar)
    table.add_row(Text("all"), Text(f"{whole_s / 60:.1f} min"), Text(""))
    return table
