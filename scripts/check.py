"""Check the changed files in under 30 s: style, types, import contracts, and the tests that mirror them.

    uv run scripts/check.py            files that differ from main: committed, staged, unstaged and new ones
    uv run scripts/check.py --base X   files that differ from X
    uv run scripts/check.py --all      all that CI runs (`.ci/run`), which takes many minutes

Folders of tests mirror those of the packages. The test of a module is named after it; without one, its tests are those
of the nearest mirrored folder, or the one named after that folder: `stats/interval.py` has `stats/test_stats.py`. Tests
that exceed the time limit are stopped; the last line names them. A change can break an unchanged module, so CI still
runs everything.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]

LIMIT_S = 22.0
"""Seconds after which checks are stopped: the rest of 30 s is for starting tests and ending workers."""

STOPPED = -1
"""Exit code of a check stopped at the time limit."""

DOCTESTED = ("packages/cudal1-data/src/cudal1_data/", "packages/cudal1-env/src/cudal1_env/", "scripts/pin.py")
"""Folders and files in which pytest collects doctests of modules."""

TESTS_OF = {
    "cudal1_data": "tests/data",
    "cudal1_env": "tests/env",
    "cudal1_worker": "tests/worker",
    "cudal1_agent": "tests/agent",
}
"""Folder of each package's tests. Those of scripts, benchmarks and documents are directly in tests/."""

NO_TESTS = 5
"""Exit code of pytest if it finds no test, for example in a module without doctests."""


@dataclass(frozen=True)
class Check:
    """One command and its result."""

    name: str
    command: tuple[str, ...]
    code: int = 0
    output: str = ""
    seconds: float = 0.0


def git(*words: str) -> list[str]:
    """Run git in the repository; return the printed lines."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def base_of(given: str | None) -> str:
    """Return the commit to compare with: the merge base of this branch and main, or HEAD if there is no main."""
    for name in [given] if given else ["main", "origin/main"]:
        found = subprocess.run(
            ["git", "merge-base", name, "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if found.returncode == 0:
            return found.stdout.strip()
    if given:
        raise SystemExit(f"`--base {given}` names no commit; `git branch --all` lists branches")
    return "HEAD"


def changed_files(base: str) -> list[str]:
    """Return the existing files that differ from a commit, and new files that git does not ignore."""
    differing = git("diff", "--name-only", "--diff-filter=d", "--no-ext-diff", base)
    return sorted({*differing, *git("ls-files", "--others", "--exclude-standard")})


def typed(files: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """Return the Python files that pyright checks.

    Args:
        files: Changed files.
        excluded: `tool.pyright.exclude` of pyproject.toml.
    """
    prefixes = tuple(one.rstrip("*") for one in excluded if not one.startswith("*"))
    return [name for name in files if name.endswith(".py") and not name.startswith(prefixes)]


def mirrored(files: Sequence[str], tests: Sequence[str]) -> list[str]:
    """Return the tests of changed files, changed tests first.

    Args:
        files: Changed files.
        tests: All test files.
    """
    own = [name for name in files if name in tests]
    doctests = [name for name in files if name.startswith(DOCTESTED) and is_module(name)]
    others = [test for name in files if name not in tests for test in tests_of(name, tests)]
    return list(dict.fromkeys([*own, *others, *doctests]))


def is_module(name: str) -> bool:
    """Return whether a file below `DOCTESTED` is a module, not a program for the judge."""
    return name.endswith(".py") and "/starter/" not in name and "/exploits/" not in name


def tests_of(name: str, tests: Sequence[str]) -> list[str]:
    """Return the tests named after a file or, without any, those of the nearest folder above it."""
    path = PurePosixPath(name)
    package = next((part for part in path.parts if part in TESTS_OF), None)
    near = [test for test in tests if path.parts[0] == "tests" or is_near(PurePosixPath(test), package)]
    if found := named(near, path.stem):
        return found
    for folder in path.parents:
        if found := named(near, folder.name) or mirror(near, folder, package):
            return found
    return []


def named(tests: Sequence[str], word: str) -> list[str]:
    """Return the tests named after a word or its plural."""
    wanted = {f"test_{word.lower()}.py", f"test_{word.lower()}s.py"}
    return [test for test in tests if PurePosixPath(test).name in wanted]


def mirror(tests: Sequence[str], folder: PurePosixPath, package: str | None) -> list[str]:
    """Return the tests in the folder that mirrors a folder inside a package."""
    if package is None or package not in folder.parts[:-1]:
        return []
    inside = folder.parts[folder.parts.index(package) + 1 :]
    wanted = PurePosixPath(TESTS_OF[package], *inside)
    return [test for test in tests if PurePosixPath(test).parent == wanted]


def is_near(test: PurePosixPath, package: str | None) -> bool:
    """Return whether a test belongs to a package; None: whether it is directly in tests/."""
    return str(test.parent) == "tests" if package is None else test.is_relative_to(TESTS_OF[package])


def checks_of(files: Sequence[str]) -> list[Check]:
    """Return the checks that changed files need."""
    tools = Path(sys.executable).parent
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    python = [name for name in files if name.endswith((".py", ".pyi"))]
    checks: list[Check] = []

    def add(name: str, program: str, *words: str) -> None:
        checks.append(Check(name, (str(tools / program), *words)))

    if python:
        add("lint", "ruff", "check", "--force-exclude", "--output-format", "concise", *python)
        add("format", "ruff", "format", "--force-exclude", "--check", *python)
    if types := typed(files, config["tool"]["pyright"]["exclude"]):
        add("types", "pyright", *types)
    if any(name.startswith("packages/") for name in python):
        add("imports", "lint-imports")
    tests = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    if chosen := mirrored(files, tests):
        add("tests", "pytest", "--quiet", "--maxfail", "5", *chosen)
    return checks


def run(check: Check, limit_s: float) -> Check:
    """Run a check; stop it and its child processes at the time limit."""
    start = time.monotonic()
    process = subprocess.Popen(
        check.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        code = 0 if check.name == "tests" and process.returncode == NO_TESTS else process.returncode
    except subprocess.TimeoutExpired:
        # Like ctrl-c: pytest ends its fixtures and reports the failures so far.
        process.send_signal(signal.SIGINT)
        code = STOPPED
        try:
            output, _ = process.communicate(timeout=4.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        if re.search(r"^(?:FAILED|ERROR) ", output, re.MULTILINE):
            code = 1
    return Check(check.name, check.command, code, output, time.monotonic() - start)


def main() -> int:
    """Check the changed files, or run all of CI; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="run all that CI runs")
    parser.add_argument("--base", help="compare with this commit or branch")
    options = parser.parse_args()
    if options.all:
        return subprocess.run([ROOT / ".ci" / "run"], cwd=ROOT, check=False).returncode
    files = changed_files(base_of(options.base))
    checks = checks_of(files)
    if not checks:
        print(f"{len(files)} files changed, none of them needs a check")
        return 0
    with ThreadPoolExecutor(len(checks)) as executor:
        done = list(executor.map(lambda check: run(check, LIMIT_S), checks))
    for one in done:
        if one.code != 0:
            print(f"=== {one.name}: {' '.join((Path(one.command[0]).name, *one.command[1:]))}\n{one.output.rstrip()}\n")
    for one in done:
        outcome = {0: "passed", STOPPED: f"not done after {LIMIT_S:.0f} s"}.get(one.code, "FAILED")
        print(f"{one.name:8} {one.seconds:5.1f} s  {outcome}")
    failed = [one.name for one in done if one.code not in (0, STOPPED)]
    stopped = [one.name for one in done if one.code == STOPPED]
    if stopped:
        print(f"stopped: {', '.join(stopped)}; run the command above, or let CI do it")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
