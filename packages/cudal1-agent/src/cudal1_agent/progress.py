"""Progress of a run on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

QUIET_S = 15.0
"""Shortest time between two plain lines of one piece of work, in seconds."""

Tick = Callable[[int, int], None]
"""Receives the amount done and the total."""


class Progress:
    """Display of a run's progress."""

    def __init__(self) -> None:
        """Check whether standard error is a terminal."""
        self._terminal = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._bars: Bars | None = None

    def line(self, text: str) -> None:
        """Write one line, with the minutes since the beginning."""
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        stamped = f"[{minutes:02d}:{seconds:02d}] {text}"
        if self._bars is not None:
            # Above the bars; rich would otherwise draw over it.
            self._bars.console.print(stamped, markup=False, highlight=False, soft_wrap=True)
        else:
            sys.stderr.write(stamped + "\n")
            sys.stderr.flush()

    @contextmanager
    def bar(self, label: str) -> Iterator[Tick]:
        """Show a piece of work; yield a function to call with the amount done and the total. Bars may nest."""
        if not self._terminal:
            yield self._plain(label)
        elif self._bars is not None:
            yield self._added(self._bars, label)
        else:
            with _drawn() as bars:
                self._bars = bars
                try:
                    yield self._added(bars, label)
                finally:
                    self._bars = None

    def _added(self, bars: Bars, label: str) -> Tick:
        work = bars.add_task(label, total=None)
        return lambda done, total: bars.update(work, completed=done, total=total)

    def _plain(self, label: str) -> Tick:
        spoken_s = time.monotonic()

        def tick(done: int, total: int) -> None:
            nonlocal spoken_s
            if done >= total or time.monotonic() - spoken_s >= QUIET_S:
                spoken_s = time.monotonic()
                self.line(f"{label}: {done} of {total}")

        return tick


def _drawn() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Bars(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False)


def quiet_libraries() -> None:
    """Silence the progress bars and notices of transformers, TRL and datasets; ours say the same."""
    import logging
    import warnings

    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in ("accelerate", "datasets", "trl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(trl|transformers|torch|accelerate|peft)(\..*)?")
