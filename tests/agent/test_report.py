"""Tables and the report of a run."""

from __future__ import annotations

import doctest
import re
from html.parser import HTMLParser
from pathlib import Path

import cudal1_agent.data.examples
import cudal1_agent.data.prompts
import cudal1_agent.evaluation.tables
import cudal1_agent.settings
import pytest
from cudal1_agent.errors import RunError
from cudal1_agent.evaluation.report import report, summary_text
from cudal1_agent.evaluation.tables import change_text
from cudal1_agent.run.folder import RunFolder
from cudal1_agent.settings import Settings
from cudal1_env.stats import aligned, cells, paired_change, summarize_speedups
from doubles.training import evaluation, suite

TASK = suite()[0]
FUSED = (
    "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return torch.addcmul(x, x, x)\n"
)
BEFORE, AFTER = [1.0, 2.0, None], [2.0, 3.0, 1.0]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with RunFolder.begin(tmp_path / "run", Settings()) as folder:
        for step in range(1, 6):
            folder.metrics.append({"event": "step", "stage": "sft", "step": step, "loss": 1 / step})
            folder.metrics.append({"event": "step", "stage": "contrast", "step": step, "loss": 0.0, "correct": 0.5})
        for stage, speedups in (("sft", BEFORE), ("contrast", AFTER)):
            for number, speedup in enumerate(speedups):
                interval = None if speedup is None else {"low": speedup, "point": speedup, "high": speedup}
                folder.metrics.append(
                    {"event": "answer", "stage": stage, "group": "train", "task": f"t{number}", "speedup": interval}
                )
            summary = summarize_speedups(speedups).model_dump()
            folder.metrics.append({"event": "table", "stage": stage, "group": "train", **summary})
        change = paired_change(BEFORE, AFTER).model_dump()
        folder.metrics.append({"event": "change", "stage": "contrast", "before": "sft", "group": "train", **change})
        folder.metrics.append({"event": "seconds", "phase": "sft", "wall_s": 12.5, "measured": 3})
        folder.archive.add(evaluation(TASK, "x = '<script>alert(1)</script>'", 2.5))
        folder.archive.add(evaluation(TASK, "wrong", None))
        chosen = {"low": 2.45, "point": 2.5, "high": 2.55}
        sha256 = evaluation(TASK, "x = '<script>alert(1)</script>'", 2.5).source_sha256
        folder.metrics.append(
            {
                "event": "champion",
                "task": TASK.id,
                "source_sha256": sha256,
                "chosen": chosen,
                "status": "CORRECT",
                "confirmed": {"low": 2.2, "point": 2.25, "high": 2.3},
            }
        )
        folder.archive.add(evaluation(suite()[1], FUSED, 1.5))
    return tmp_path / "run"


class Links(HTMLParser):
    """Collects what a browser would fetch, and the tags."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [
            value for name, value in attrs if name in ("src", "href", "xlink:href") and value and value[0] != "#"
        ]


def test_the_report_opens_without_a_network(run_dir: Path) -> None:
    html = report(run_dir).read_text()
    links = Links()
    links.feed(html)
    assert links.fetched == []
    assert links.tags.count("svg") == 3
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_the_report_contains_the_table_the_programs_and_the_verdicts(run_dir: Path) -> None:
    html = report(run_dir).read_text()
    for cell in cells(summarize_speedups(AFTER)):
        assert f"<td>{cell.replace('>', '&gt;')}</td>" in html
    assert "2 tasks solved in both, 1 gained, 0 lost" in html
    assert "2.25 x" in html
    assert "Chosen at 2.50 x" in html
    assert "WRONG_OUTPUT" in html
    assert "not finished" in html


def test_the_report_has_the_speedup_by_technique(run_dir: Path) -> None:
    html = report(run_dir).read_text()
    table = html[html.index("<h2>Techniques</h2>") : html.index("<h2>Fastest programs</h2>")]
    assert re.search(r"<td>fusion</td><td>operation fusion</td><td>1</td>\s*<td>1.50</td>", table)


def test_programs_are_shown_and_not_run(run_dir: Path) -> None:
    html = report(run_dir).read_text()
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_the_summary_has_a_row_for_each_stage_and_group(run_dir: Path) -> None:
    lines = summary_text(run_dir).splitlines()
    assert [line.split()[0] for line in lines] == ["stage", "sft", "contrast", "contrast", "throughput:"]
    assert lines[-2] == change_text("sft", "contrast", "training tasks", paired_change(BEFORE, AFTER))


def test_a_report_of_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run in"):
        report(tmp_path)


def test_a_run_without_metrics_has_a_report(tmp_path: Path) -> None:
    RunFolder.begin(tmp_path / "run", Settings()).close()
    assert "not finished" in report(tmp_path / "run").read_text()


def test_columns_line_up() -> None:
    assert aligned([["a", "b", "c"], ["aaa", "b", "10"]]) == "a    b   c\naaa  b  10"


@pytest.mark.parametrize(
    "module",
    [cudal1_agent.data.examples, cudal1_agent.data.prompts, cudal1_agent.settings, cudal1_agent.evaluation.tables],
    ids=lambda module: module.__name__,
)
def test_examples_in_docstrings(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert found.attempted > 0
    assert found.failed == 0
