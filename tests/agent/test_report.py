"""Tables and the report of a run."""

from __future__ import annotations

import base64
import doctest
import hashlib
import re
import shutil
import tempfile
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import cudal1_agent.data.examples
import cudal1_agent.data.prompts
import cudal1_agent.evaluation.tables
import cudal1_agent.reporting.text
import cudal1_agent.settings
import pytest
from cudal1_agent.errors import RunError
from cudal1_agent.evaluation.tables import change_text
from cudal1_agent.reporting.page import report, summary_text
from cudal1_agent.reporting.programs import Printer, compare, shown_lines
from cudal1_agent.reporting.text import visible
from cudal1_agent.reporting.watch import Follower, frame
from cudal1_agent.run.folder import RunFolder
from cudal1_agent.settings import Settings
from cudal1_env import Archive
from cudal1_env.records import Status
from cudal1_env.stats import aligned, cells, paired_change, summarize_speedups
from doubles.training import evaluation, suite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report import HOSTILE

TASK = suite()[0]
FILES = ("config.json", "metrics.jsonl", "archive.sqlite")
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
                    {
                        "event": "answer",
                        "stage": stage,
                        "group": "train",
                        "task": f"t{number}",
                        "status": "CORRECT" if interval else "TIMEOUT",
                        "speedup": interval,
                    }
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


class Page(HTMLParser):
    """Collects what a browser would fetch or run, and the text that it would show."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.policy = ""
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        found = dict(attrs)
        self.attributes |= found.keys()
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset") and value]
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def shown(self) -> str:
        return "".join(self.text)


HARMLESS = frozenset(
    re.findall(
        r"\w+",
        """html head meta title style body a header footer div p span strong nav main section h1 h2 h3 ol ul li dl dt dd
        fieldset legend input label table thead tbody tr th td details summary figure figcaption pre
        svg line text polyline polygon rect circle""",
    )
)
"""Every tag that a report may hold."""


def test_the_page_fetches_nothing_and_runs_nothing(run_dir: Path) -> None:
    html = report(run_dir).read_text()
    page = Page(html)
    assert all(link.startswith("#") for link in page.links)
    assert page.tags.keys() <= HARMLESS
    assert not any(name.startswith("on") or name == "style" for name in page.attributes)
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    hashed = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert page.policy == f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"@import|url\(", style[0])


def test_the_page_shows_table_programs_verdicts_and_techniques(run_dir: Path) -> None:
    html = report(run_dir).read_text()
    for cell in cells(summarize_speedups(AFTER)):
        assert f"<td>{cell.replace('>', '&gt;')}</td>" in html
    shown = Page(html).shown
    for text in (
        "2 tasks solved in both, 1 gained, 0 lost",
        "Confirmed at 2.25 x (2.20 to 2.30). Chosen at 2.50 x.",
        "operation fusion",
        "WRONG_OUTPUT",
        "not finished",
        "share correct",
        "1 of 2",
    ):
        assert text in shown, text


def test_a_page_of_a_finished_run_says_so(run_dir: Path) -> None:
    with RunFolder.resume(run_dir) as folder:
        folder.mark("finished")
    assert "not finished" not in report(run_dir).read_text()


def test_the_best_program_stands_beside_its_reference_with_the_exemplars_that_led_to_it(run_dir: Path) -> None:
    task = suite()[1]
    best, shown = evaluation(task, f"{FUSED}# best", 9.0), evaluation(task, "import math  # shown", 3.0)
    with RunFolder.resume(run_dir) as folder:
        folder.archive.add_all([shown, best])
        lineage = {"shown": {task.id: [shown.source_sha256, "f" * 64]}, "correct": {task.id: [best.source_sha256]}}
        folder.metrics.append({"event": "batch", "stage": "contrast", "step": 3, "statuses": {"CORRECT": 1}, **lineage})
    found = Page(report(run_dir).read_text()).shown
    assert "answer of stage contrast, shown 2 exemplars" in found
    assert "measured at 3.00 x" in found
    assert "# shown" in found
    assert "which the archive does not hold" in found
    assert "def get_inputs" in found
    assert "torch.addcmul" in found


def test_equal_lines_stand_at_equal_height_and_nothing_is_lost() -> None:
    before, after = ["a", "b", "c", "d"], ["a", "x", "y", "z", "d"]
    found = compare(before, after)
    assert len(found.before) == len(found.after)
    assert [Page(line.html).shown for line in found.before if line.side != "gap"] == before
    assert [Page(line.html).shown for line in found.after if line.side != "gap"] == after
    assert found.same == 2
    rows = list(zip(found.before, found.after, strict=True))
    assert all((one.side == "same") == (other.side == "same") for one, other in rows)


@given(st.lists(st.text(max_size=30), max_size=8), st.lists(st.text(max_size=30), max_size=8))
def test_any_two_programs_are_shown_line_by_line_and_add_no_tag(one: list[str], other: list[str]) -> None:
    before, after = shown_lines("\n".join(one)), shown_lines("\n".join(other))
    found = compare(before, after)
    for side, lines in ((found.before, before), (found.after, after)):
        pages = [Page(line.html) for line in side if line.side != "gap"]
        assert [page.shown for page in pages] == lines
        assert {tag for page in pages for tag in page.tags} <= {"span"}


@given(st.text())
def test_visible_text_holds_nothing_that_a_terminal_obeys_or_that_hides_or_turns_text(text: str) -> None:
    assert not any(
        unicodedata.category(one) in ("Cc", "Cs") or one in "\u202e\u2066\u200b\ufeff"
        for one in visible(text)
        if one not in "\t\n"
    )


def test_programs_are_left_out_from_the_first_on_that_has_no_room() -> None:
    printer = Printer(left=3_000)
    assert printer.program("x = 1\n") is not None
    assert printer.compared("x = 1\n" * 8, "x = 2\n" * 8) is not None
    assert printer.program("x = 1\n" * 100) is None
    assert printer.compared("x = 1\n", "x = 2\n") is None
    assert printer.omitted == 3


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_never_a_tag(tmp_path: Path, text: str) -> None:
    task = TASK.model_copy(update={"id": f"toy/{text}"})
    good = evaluation(task, f"x = {text!r}  # {text}\n", 2.0)
    bad = evaluation(task, f"# {text}\n", None).model_copy(update={"status": Status.TAMPERING, "message": text})
    with RunFolder.begin(tmp_path / "run", Settings(suite=text)) as folder:
        folder.archive.add_all([good, bad])
        folder.metrics.append(
            {"event": "answer", "stage": text, "group": text, "task": task.id, "status": text, "speedup": None}
        )
        folder.metrics.append(
            {"event": "table", "stage": text, "group": text, **summarize_speedups([2.0]).model_dump()}
        )
        folder.metrics.append({"event": "seconds", "phase": text, "wall_s": 1.0})
    html = report(tmp_path / "run").read_text()
    page = Page(html)
    assert page.tags.keys() <= HARMLESS
    assert all(link.startswith("#") for link in page.links)
    assert not any(name.startswith("on") for name in page.attributes)
    assert visible(text)[:100] in page.shown
    assert visible(html) == html.replace("\r", "")


# --- bad input ---


def test_a_run_cut_off_in_the_middle_has_a_page_that_says_what_is_missing(run_dir: Path) -> None:
    for name in ("config.json", "metrics.jsonl", "archive.sqlite"):
        (run_dir / name).unlink()
        if name != "archive.sqlite":
            assert f"{name} is missing" in report(run_dir).read_text()
            assert summary_text(run_dir)
        else:
            with pytest.raises(RunError, match="no run in"):
                report(run_dir)


def test_a_cut_metrics_line_and_records_of_other_form_are_left_out_and_named(run_dir: Path) -> None:
    path = run_dir / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    broken = [
        b'{"event": "ste\n',
        b'{"event": "table", "stage": 3}\n',
        b"[1]\n",
        b'{"event": "seconds", "phase": "sft", "wall_s": NaN}\n',
        b'{"event": "step", "stage": "sft", "step": 9, "loss": -9e999}\n',
    ]
    whole = b"".join([*lines[:4], *broken, *lines[4:], b'{"event": "answer", "sta'])
    path.write_bytes(whole)
    shown = Page(report(run_dir).read_text()).shown
    assert f"5 of {len(lines) + 5} lines hold no complete record and are left out (5, 6, 7, 8, 9)" in shown
    assert "the last line of metrics.jsonl was cut off" in shown
    assert "2 tasks solved in both" in shown
    assert path.read_bytes() == whole


def test_verdicts_of_another_protocol_are_counted_and_never_shown_beside_ours(run_dir: Path) -> None:
    other = evaluation(TASK, "other = 1", 99.0).model_copy(update={"protocol": "1"})
    with RunFolder.resume(run_dir) as folder:
        folder.archive.add(other)
    shown = Page(report(run_dir).read_text()).shown
    assert "1 of 4 verdicts are of protocol 1 and are left out" in shown
    assert "99.00" not in shown


def test_an_archive_that_was_cut_off_is_read_as_far_as_it_goes_and_stays_as_it_is(run_dir: Path) -> None:
    with Archive(run_dir / "archive.sqlite") as archive:
        archive.add_all([evaluation(TASK, f"# {number}\n" * 200, 1.0 + number / 100) for number in range(200)])
    path = run_dir / "archive.sqlite"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    cut = path.read_bytes()
    shown = Page(report(run_dir).read_text()).shown
    assert "archive.sqlite" in shown
    assert "2 tasks solved in both" in shown
    assert path.read_bytes() == cut
    path.write_bytes(b"no database" * 1000)
    assert "archive.sqlite" in Page(report(run_dir).read_text()).shown


def test_settings_of_another_version_are_shown_as_they_are(run_dir: Path) -> None:
    (run_dir / "config.json").write_text('{"colour": "<b>red</b>"}')
    shown = Page(report(run_dir).read_text()).shown
    assert "config.json cannot be read by this version" in shown
    assert "<b>red</b>" in shown


SPOTS = st.tuples(st.sampled_from(FILES), st.integers(0, 2**20))
DAMAGE = st.lists(st.tuples(SPOTS, st.binary(min_size=1, max_size=40)), max_size=6)


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DAMAGE, st.none() | SPOTS)
def test_any_damage_leaves_a_page_and_a_view_or_is_refused_in_words(
    run_dir: Path, damage: list[tuple[tuple[str, int], bytes]], cut: tuple[str, int] | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        shutil.copytree(run_dir, run)
        for (name, at), what in damage:
            whole = (run / name).read_bytes()
            at %= len(whole)
            (run / name).write_bytes(whole[:at] + what + whole[at + len(what) :])
        if cut is not None:
            whole = (run / cut[0]).read_bytes()
            (run / cut[0]).write_bytes(whole[: cut[1] % len(whole)])
        assert Page(report(run).read_text()).tags.keys() <= HARMLESS
        assert summary_text(run)
        view = Follower(run)
        view.update()
        assert frame(view, 100)


# --- several runs ---


def test_runs_are_compared_task_by_task_and_setting_by_setting(run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with RunFolder.begin(other, Settings(seed=7)) as folder:
        for number, speedup in enumerate([4.0, 6.0, 2.0]):
            interval = {"low": speedup, "point": speedup, "high": speedup}
            folder.metrics.append(
                {
                    "event": "answer",
                    "stage": "sft",
                    "group": "train",
                    "task": f"t{number}",
                    "status": "CORRECT",
                    "speedup": interval,
                }
            )
    html = report(run_dir, other, out=tmp_path / "both.html").read_text()
    page = Page(html)
    assert "other against run on training tasks: speedup x 2.000" in page.shown
    assert "seed: 0 in run, 7 in other" in page.shown
    assert "Not known to have been on the same machine, boot and GPU as run: other" in page.shown
    for path in (run_dir, other):
        (path / "machine.json").write_text('{"machine": "abc", "archive_position": 0}')
    again = Page(report(run_dir, other, out=tmp_path / "both.html").read_text())
    assert "Not known" not in again.shown
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids)), "runs share a page and no anchor"
    assert not (run_dir / "report.html").exists()


def test_the_summary_has_a_row_for_each_stage_and_group(run_dir: Path) -> None:
    lines = summary_text(run_dir).splitlines()
    assert [line.split()[0] for line in lines] == ["stage", "sft", "contrast", "contrast", "throughput:"]
    assert lines[-2] == change_text("sft", "contrast", "training tasks", paired_change(BEFORE, AFTER))


def test_a_report_of_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run in"):
        report(tmp_path)


def test_a_page_that_cannot_be_written_is_one_sentence(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="which is a folder; name a file with --out"):
        report(run_dir, out=tmp_path)
    with pytest.raises(RunError, match=r"cannot write the page /proc/x\.html: .*; name another file with --out"):
        report(run_dir, out=Path("/proc/x.html"))


def test_a_run_without_metrics_has_a_report(tmp_path: Path) -> None:
    RunFolder.begin(tmp_path / "run", Settings()).close()
    assert "not finished" in report(tmp_path / "run").read_text()


def test_columns_line_up() -> None:
    assert aligned([["a", "b", "c"], ["aaa", "b", "10"]]) == "a    b   c\naaa  b  10"


@pytest.mark.parametrize(
    "module",
    [
        cudal1_agent.data.prompts,
        cudal1_agent.settings,
        cudal1_agent.evaluation.tables,
        cudal1_agent.reporting.text,
    ],
    ids=lambda module: module.__name__,
)
def test_examples_in_docstrings(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert found.attempted > 0
    assert found.failed == 0
