"""Every figure in the README's results table comes from the records that its row names."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Line = dict[str, Any]
Rows = list[tuple[str, str, str, tuple[str, ...]]]


def against_the_usual_ways(lines: list[Line]) -> list[str]:
    itself = lines[-1]["itself"]
    return [f"{100 * itself[name]['median_distance_from_one']:.2f}" for name in ("judge", "events", "do_bench")]


def present_judge(lines: list[Line]) -> list[str]:
    judged = [line for line in lines if line["kind"] in ("judge", "a-against-a")]
    assert {line["protocol"] for line in judged} == {"2"}
    distance = statistics.median(abs(line["speedup"]["point"] - 1) for line in judged)
    holding = [line for line in judged if line["speedup"]["low"] <= 1 <= line["speedup"]["high"]]
    return [f"{100 * distance:.1f}", str(len(holding)), str(len(judged)), "1"]


def attacks_and_look_alikes(*runs: list[Line]) -> list[str]:
    outcomes = [line for lines in runs for line in lines if line["kind"] == "outcome"]
    assert {line["protocol"] for line in outcomes} == {"2"}
    attacks = {line["program"] for line in outcomes if not line["honest"]}
    honest = {line["program"] for line in outcomes if line["honest"]}
    paid = {line["program"] for line in outcomes if line["rewarded"] and not line["honest"]}
    rejected = {line["program"] for line in outcomes if line["rejected"] and line["honest"]}
    return [str(len(programs)) for programs in (paid, attacks, rejected, honest)]


def seconds_of(kind: str, programs: int) -> Callable[[list[Line]], list[str]]:
    def figures(blocks: list[Line]) -> list[str]:
        found = {(line["side"], line["phase"]): line for line in blocks if line.get("set") == kind}
        assert {line["programs"] for line in found.values()} == {programs}
        order = [(side, phase) for side in ("cudal1", "kernelbench") for phase in ("cold", "warm")]
        return [f"{found[key]['seconds']:.0f}" for key in order]

    return figures


def build_seconds(lines: list[Line]) -> list[str]:
    found = lines[-1]
    assert found["at_once"] == 16
    return [f"{found[part][way]:.1f}" for way in ("ours", "stock") for part in ("alone_s", "all_s")]


def from_templates(lines: list[Line]) -> list[str]:
    return [str(lines[-1][name]) for name in ("in_two_backends", "eager_beaten_by_1.2", "compile_beaten")]


def unseen_tasks(*stages: str) -> Callable[[list[Line]], list[str]]:
    def figures(lines: list[Line]) -> list[str]:
        for line in lines:
            if line["event"] == "held_out":
                success = line["table"]["held_out_tasks"]["success"]
                assert success["own"] == success["at_1"], "a correct answer is a copy"
        answers = [
            [line["status"] for line in lines if line["event"] == "answer" and line["stage"] == stage]
            for stage in stages
        ]
        (tasks,) = {len(given) for given in answers}
        return [*(str(given.count("CORRECT")) for given in answers), str(tasks)]

    return figures


def kernelbench(lines: list[Line]) -> list[str]:
    return [
        number
        for stage in ("kernelbench_1", "kernelbench_2")
        for number in unseen_tasks(stage)([line for line in lines if line.get("stage") == stage])
    ]


def optimized(lines: list[Line]) -> list[str]:
    alone = [line for line in lines if line.get("file") == "focal_loss.py" and line["sources"] == ["templates"]]
    (winner,) = (line["winner"] for line in alone)
    return [f"{winner[one]['point']:.2f}" for one in ("confirmed", "against_strongest")]


def published(lines: list[Line]) -> list[str]:
    judged = [line for line in lines if line["refused"] is None]
    records = [line["evaluation"] for line in judged]
    correct = [one["speedup"]["point"] for one in records if one["status"] == "CORRECT"]
    said = statistics.mean(line["published"]["score_default"] for line in judged)
    return [str(len(correct)), str(len(judged)), f"{sum(correct) / len(judged):.2f}", f"{said:.2f}"]


def verdicts_a_minute(lines: list[Line]) -> list[str]:
    return [f"{max(line['verdicts_a_minute'] for line in lines if line['kind'] == 'verdicts'):.0f}"]


def seconds_of_a_verdict(lines: list[Line]) -> list[str]:
    return [f"{lines[-1]['seconds_median_up_to_5_ms']['total_s']:.1f}"]


def solved(group: str) -> Callable[..., list[str]]:
    def figures(*runs: list[Line]) -> list[str]:
        tables = [
            line
            for lines in runs
            for line in lines
            if line["event"] == "table" and (line["stage"], line["group"]) == ("contrast", group)
        ]
        (tasks,) = {line["tasks"] for line in tables}
        return [*(str(line["successes"]) for line in tables), str(tasks)]

    return figures


FIGURES: dict[str, Callable[..., list[str]]] = {
    "a program against itself, H200, `report`": against_the_usual_ways,
    "a program against itself, H200, `training`": present_judge,
    "the same, H200, `report` precision": present_judge,
    "the same on a CPU (two cores), `report`": present_judge,
    "attacks paid, H100": attacks_and_look_alikes,
    "attacks paid, CPU": attacks_and_look_alikes,
    "published CUDA-L1 programs judged again": published,
    "verdicts a minute on one H200": verdicts_a_minute,
    "seconds for a task's first timed verdict": seconds_of_a_verdict,
    "six published programs one after the other": seconds_of("plain", 6),
    "three published programs with `load_inline`": seconds_of("inline", 3),
    "seconds to build a CUDA extension, alone and 16 at once": build_seconds,
    "KernelBench's 250 references": from_templates,
    "unseen generated tasks": unseen_tasks("self_train_greedy"),
    "the same, sampled at temperature 0.7": unseen_tasks("sft_sampled", "self_train_sampled"),
    "the same after stage 1, greedy, by 61 million": unseen_tasks("scratch_greedy"),
    "KernelBench levels 1 and 2, SmolLM2-135M": kernelbench,
    "`cudal1-agent optimize` on a focal loss": optimized,
    "held-out sizes that the quickstart's model solves": solved("held_out_sizes"),
    "held-out tasks that it solves": solved("held_out_tasks"),
}
"""For each row, by its beginning: a function that returns its numbers, in order, from its records."""


@pytest.fixture(scope="module")
def rows(repository: Path) -> Rows:
    """Measured quantity, figure, protocol and records of each row."""
    table = (repository / "README.md").read_text().split("| what was measured |", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [(what, figure, version, tuple(re.findall(r"`([^`]+)`", names))) for what, figure, version, names in cells]


def read(name: str, result_file: Callable[[str], Path]) -> list[Line]:
    return [json.loads(line) for line in result_file(name.removesuffix(".gz")).read_text().splitlines()]


def test_each_row_has_its_figures(rows: Rows) -> None:
    assert [sum(what.startswith(known) for known in FIGURES) for what, *_ in rows] == [1] * len(FIGURES)


def test_each_figure_comes_from_its_record(rows: Rows, result_file: Callable[[str], Path]) -> None:
    for what, figure, version, names in rows:
        records = [read(name, result_file) for name in names]
        (expected,) = (make for known, make in FIGURES.items() if what.startswith(known))
        assert re.findall(r"\d+(?:\.\d+)?", figure.replace("CUDA-L1", "")) == expected(*records), what
        protocols = {line["protocol"] for lines in records for line in lines if "protocol" in line}
        # Outcomes and training runs of the first protocol do not name it.
        assert protocols <= {version}, what
        assert protocols or version.startswith(("1", "none")) or what.startswith("verdicts a minute"), what
