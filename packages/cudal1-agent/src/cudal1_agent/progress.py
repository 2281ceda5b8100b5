"""What a person sees while a run goes on: bars on a terminal, plain lines elsewhere, all on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET_S = 15.0
"""Shortest time between two plain lines of one piece of work."""

Tick = Callable[[int, int], None]
"""Told how much of how much is done."""


class Progress:
    """Tells how far a run has come."""

    def __init__(self) -> None:
        """Look at standard error once."""
        self._terminal = sys.stderr.isatty()
        self._began_s = time.monotonic()

    def line(self, text: str) -> None:
        """Write one line, with the minutes since the beginning."""
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        sys.stderr.write(f"[{minutes:02d}:{seconds:02d}] {text}\n")
        sys.stderr.flush()

    @contextmanager
    def bar(self, label: str) -> Iterator[Tick]:
        """Show a piece of work; call what this yields with how much of how much is done."""
        if not self._terminal:
            yield self._plain(label)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bars(*columns, console=Console(stderr=True)) as bars:
            work = bars.add_task(label, total=None)
            yield lambda done, total: bars.update(work, completed=done, total=total)

    def _plain(self, label: str) -> Tick:
        spoken_s = time.monotonic()

        def tick(done: int, total: int) -> None:
            nonlocal spoken_s
            if done >= total or time.monotonic() - spoken_s >= QUIET_S:
                spoken_s = time.monotonic()
                self.line(f"{label}: {done} of {total}")

        return tick


def quiet_libraries() -> None:
    """Silence the progress bars and notices of transformers, TRL and datasets: ours say the same once."""
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
