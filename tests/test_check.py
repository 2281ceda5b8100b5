"""scripts/check.py selects the checks for changed files and reports failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import check
import pytest

CHAIN = "tests/env/judge/measure/timing/test_chain.py"
TESTS = [
    "tests/data/test_corpus.py",
    "tests/agent/test_corpus.py",
    "tests/env/stats/test_stats.py",
    "tests/env/campaigns/test_sweep.py",
    CHAIN,
    "tests/env/judge/oracle/test_numerics.py",
    "tests/env/judge/oracle/test_state.py",
    "tests/env/judge/test_exploits.py",
    "tests/worker/program/test_state.py",
    "tests/data/test_starter.py",
    "tests/test_benchmarks.py",
    "tests/test_results.py",
    "tests/test_pins.py",
]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("packages/cudal1-env/src/cudal1_env/stats/interval.py", ["tests/env/stats/test_stats.py"]),
        ("packages/cudal1-env/src/cudal1_env/campaigns/sweep/run.py", ["tests/env/campaigns/test_sweep.py"]),
        (
            "packages/cudal1-env/src/cudal1_env/judge/measure/timing/chain.py",
            [CHAIN],
        ),
        (
            "packages/cudal1-env/src/cudal1_env/judge/oracle/pool.py",
            ["tests/env/judge/oracle/test_numerics.py", "tests/env/judge/oracle/test_state.py"],
        ),
        ("packages/cudal1-env/src/cudal1_worker/program/arm.py", ["tests/worker/program/test_state.py"]),
        ("packages/cudal1-env/src/cudal1_env/judge/workers/lease.py", ["tests/env/judge/test_exploits.py"]),
        ("packages/cudal1-agent/src/cudal1_agent/corpus.py", ["tests/agent/test_corpus.py"]),
        ("packages/cudal1-data/src/cudal1_data/corpus/store.py", ["tests/data/test_corpus.py"]),
        ("packages/cudal1-data/src/cudal1_data/starter/argmax_rows/reference.py", ["tests/data/test_starter.py"]),
        ("tests/exploits/cuda/h01_second_context.py", ["tests/env/judge/test_exploits.py"]),
        ("benchmarks/corpus.py", ["tests/test_benchmarks.py"]),
        ("docs/results/corpus.json", ["tests/test_results.py"]),
        ("scripts/pin.py", ["tests/test_pins.py"]),
        ("docs/corpus.md", []),
    ],
)
def test_a_file_has_the_tests_of_its_name_or_of_its_nearest_folder(changed: str, expected: list[str]) -> None:
    assert check.tests_of(changed, TESTS) == expected


def test_folders_of_tests_mirror_folders_of_the_packages(repository: Path) -> None:
    sources = {package: next(repository.glob(f"packages/*/src/{package}")) for package in check.TESTS_OF}
    for package, tests in check.TESTS_OF.items():
        for test in (repository / tests).rglob("test_*.py"):
            inside = test.parent.relative_to(repository / tests)
            assert (sources[package] / inside).is_dir(), f"{test} is in no folder of {package}"


def test_changed_tests_come_first_and_modules_have_their_doctests() -> None:
    changed = ["packages/cudal1-data/src/cudal1_data/corpus/store.py", CHAIN]
    assert check.mirrored(changed, TESTS) == [
        CHAIN,
        "tests/data/test_corpus.py",
        changed[0],
    ]


def test_programs_that_are_judged_have_no_types_checked_and_no_doctests() -> None:
    programs = [
        "packages/cudal1-data/src/cudal1_data/starter/argmax_rows/reference.py",
        "tests/exploits/h01_fake_event.py",
        "tests/exploits/cuda/h01_second_context.py",
    ]
    excluded = ["**/.*", "packages/cudal1-data/src/cudal1_data/starter/**", "tests/exploits/h*", "tests/exploits/cuda"]
    assert check.typed([*programs, "scripts/pin.py", "README.md"], excluded) == ["scripts/pin.py"]
    assert not any(check.is_module(name) for name in programs[:2])


def test_new_staged_and_unstaged_files_are_found_and_deleted_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=n@example.org", *words], cwd=tmp_path, check=True)

    git("init", "--quiet", "--initial-branch", "main")
    for name in ("kept", "committed", "staged", "unstaged", "deleted"):
        (tmp_path / name).write_text("one")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    git("checkout", "--quiet", "-b", "other")
    for name in ("committed", "staged"):
        (tmp_path / name).write_text("two")
        git("add", name)
        if name == "committed":
            git("commit", "--quiet", "-m", "two")
    (tmp_path / "unstaged").write_text("two")
    (tmp_path / "new").write_text("two")
    (tmp_path / "deleted").unlink()
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert check.changed_files(check.base_of(None)) == ["committed", "new", "staged", "unstaged"]
    with pytest.raises(SystemExit, match="`--base nowhere` names no commit"):
        check.base_of("nowhere")


@pytest.mark.slow
def test_a_check_that_fails_keeps_its_output_and_one_that_takes_too_long_is_stopped() -> None:
    def ran(code: str, limit_s: float) -> check.Check:
        return check.run(check.Check("types", (sys.executable, "-c", code)), limit_s)

    failed = ran("print('another type'); raise SystemExit(3)", 60.0)
    assert (failed.code, failed.output) == (3, "another type\n")
    slow = ran("import time; time.sleep(600)", 1.0)
    assert slow.code == check.STOPPED
    assert slow.seconds < 30
    assert ran("print('FAILED tests/x.py', flush=True); import time; time.sleep(600)", 1.5).code == 1


def test_files_that_need_no_check_have_none() -> None:
    assert check.checks_of(["LICENSE", "docs/log.md"]) == []
    names = [one.name for one in check.checks_of(["packages/cudal1-env/src/cudal1_env/stats/interval.py"])]
    assert names == ["lint", "format", "types", "imports", "tests"]


def test_all_runs_what_ci_runs_and_returns_its_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / ".ci" / "run"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o755)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["check.py", "--all"])
    assert check.main() == 7
