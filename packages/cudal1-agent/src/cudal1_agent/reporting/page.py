"""The report: one HTML file of one run or several, which needs no network and runs no script.

Its text is untrusted: programs, task names and messages were written by models. Jinja escapes all of it, invisible
characters are spelled out (`text.visible`), and the page's content security policy forbids all scripts and requests.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from cudal1_agent.data.tasks import GROUPS
from cudal1_agent.errors import RunError
from cudal1_agent.evaluation.tables import changes, contamination_notes, rows_of, stage_table
from cudal1_agent.reporting.comparison import compare_runs
from cudal1_agent.reporting.programs import Printer, colours
from cudal1_agent.reporting.run_data import RunData, read_run
from cudal1_agent.reporting.text import visible
from cudal1_agent.reporting.view import view_run
from cudal1_agent.run.files import write_aside
from cudal1_agent.run.folder import REPORT
from cudal1_agent.run.meter import throughput_text

COMPARISON = Path("comparison.html")
"""Where the page of several runs goes by default."""


def report(*run_dirs: Path, out: Path | None = None) -> Path:
    """Write the report of a run, finished or not, or of several runs side by side.

    Args:
        *run_dirs: Run directories; the others are compared with the first.
        out: The file; None is `report.html` in the run directory, or `comparison.html` here for several runs.

    Returns:
        The file's path.

    Raises:
        RunError: A directory holds nothing of a run, none is given, or the file cannot be written.
    """
    if not run_dirs:
        raise RunError("no run to report on; name a run directory")
    path = out or (run_dirs[0] / REPORT if len(run_dirs) == 1 else COMPARISON)
    if path.is_dir():
        raise RunError(f"the page cannot be written to {path}, which is a folder; name a file with --out")
    with ExitStack() as stack:
        runs: list[RunData] = []
        for run_dir in run_dirs:
            runs.append(read_run(run_dir))
            stack.callback(runs[-1].close)
        html = page(runs)
    try:
        write_aside(path, html)
    except OSError as error:
        raise RunError(f"cannot write the page {path}: {error.strerror}; name another file with --out") from error
    return path


def page(runs: Sequence[RunData]) -> str:
    """Return the page of one run or several as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    several = len(runs) > 1
    printer = Printer()
    views = [view_run(run, printer, f"r{at}-" if several else "") for at, run in enumerate(runs)]
    style = files("cudal1_agent.reporting").joinpath("templates/page.css").read_text(encoding="utf-8") + colours()
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        loader=PackageLoader("cudal1_agent.reporting"),
        autoescape=True,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html").render(
        title=", ".join(run.name for run in runs),
        paths=", ".join(run.name for run in runs),
        style=Markup(style),  # contains no text of a run
        policy=f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'",
        runs=views,
        comparison=compare_runs(views) if several else None,
    )


def _seen(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def summary_record(run_dir: Path) -> dict[str, Any]:
    """Return table records, changes between stages and notes of a run as JSON values.

    Raises:
        RunError: The directory holds nothing of a run.
    """
    run = read_run(run_dir)
    run.close()
    tables = [record for record in run.of_event("table") if record["group"] in GROUPS]
    notes = [*contamination_notes(tables, GROUPS), *run.notes]
    return {"run": str(run_dir), "tables": tables, "changes": changes(run.records), "notes": notes}


def summary_text(run_dir: Path) -> str:
    """Return the stage table of a run as text, with the changes between its stages, notes and throughput.

    Raises:
        RunError: The directory holds nothing of a run.
    """
    run = read_run(run_dir)
    run.close()
    tables = [record for record in run.of_event("table") if record["group"] in GROUPS]
    rows = [row for record in tables for row in rows_of(record)]
    notes = [*contamination_notes(tables, GROUPS), *(f"note: {note}" for note in run.notes)]
    return "\n".join([stage_table(rows), *changes(run.records), *notes, throughput_text(run.of_event("seconds"))])
