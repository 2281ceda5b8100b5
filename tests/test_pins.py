"""Installed, resolved and committed versions of packages agree."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pin
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Versions tested together, on Python 3.11 and 3.12.
TRIED = {
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "gymnasium": "1.4.0",
    "ninja": "1.13.2",
    "numpy": "2.3.5",
    "peft": "0.21.2",
    "torch": "2.13.0",
    "transformers": "5.17.0",
    "trl": "1.16.0",
    "vllm": "0.31.0",
}


@pytest.fixture(scope="module")
def constraints(repository: Path) -> list[Requirement]:
    with (repository / "pyproject.toml").open("rb") as file:
        lines: list[str] = tomllib.load(file)["tool"]["uv"]["constraint-dependencies"]
    return [Requirement(line) for line in lines]


@pytest.fixture
def installed(repository: Path) -> dict[str, str]:
    """Version of every distribution of the workspace's environment, by name."""
    if Path(sys.prefix) != repository / ".venv":
        pytest.skip(f"needs the environment that `uv sync` makes, runs in {sys.prefix}")
    # Not all of sys.path: setuptools adds its vendored packages to it.
    places = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
    return {canonicalize_name(one.name): one.version for one in importlib.metadata.distributions(path=places)}


def test_installed_distributions_obey_their_constraints(
    constraints: list[Requirement], installed: dict[str, str]
) -> None:
    mismatched: list[str] = []
    seen = 0
    for requirement in constraints:
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            continue
        seen += 1
        # Local labels (2.13.0+cu130) name a build, not a version.
        if not requirement.specifier.contains(version.partition("+")[0], prereleases=True):
            mismatched.append(f"{requirement} is installed as {version}")
    assert mismatched == []
    assert seen > 60


def test_every_installed_distribution_is_pinned(constraints: list[Requirement], installed: dict[str, str]) -> None:
    ours = {"cudal1", "cudal1-data", "cudal1-env", "cudal1-agent"}
    # Packages of the Python installation itself.
    brought = {"pip", "wheel"}
    pinned = {canonicalize_name(requirement.name) for requirement in constraints}
    assert set(installed) - ours - brought - pinned == set()


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_versions_that_were_tried_together_are_the_pinned_ones(constraints: list[Requirement], python: str) -> None:
    pinned = {one.name: str(one.specifier) for one in constraints if pin.runs_on(one.marker, python)}
    assert {name: pinned.get(name) for name in TRIED} == {name: f"=={version}" for name, version in TRIED.items()}


@pytest.mark.parametrize("python", pin.PYTHONS)
def test_each_python_has_one_version_of_each_package(constraints: list[Requirement], python: str) -> None:
    names = [requirement.name for requirement in constraints if pin.runs_on(requirement.marker, python)]
    assert len(names) == len(set(names))


def test_both_files_agree_with_the_resolution(repository: Path) -> None:
    if shutil.which("uv") is None:
        pytest.skip("needs uv on PATH")
    if not (repository / "uv.lock").exists():
        pytest.skip("needs uv.lock, which `uv sync` writes")
    pyproject, requirements = pin.pinned()
    hint = "run `uv run scripts/pin.py`"
    assert (repository / "pyproject.toml").read_text() == pyproject, hint
    assert (repository / "requirements.lock").read_text() == requirements, hint


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock"])
def test_no_address_or_host_is_recorded(repository: Path, name: str) -> None:
    text = (repository / name).read_text()
    assert re.findall(r"\w+://\S*", text) == []
    assert re.findall(r"\b[\w-]+\.(?:org|com|io|net|dev|co)\b", text) == []
    assert re.findall(r"(?:--|-)(?:extra-)?index(?:-url)?\b|--find-links\b", text) == []


def test_the_resolution_is_not_tracked(repository: Path) -> None:
    if not (repository / ".git").exists():
        pytest.skip("needs a git checkout")
    tracked = subprocess.run(["git", "ls-files"], cwd=repository, check=True, capture_output=True, text=True).stdout
    assert "uv.lock" not in tracked.splitlines()


def test_every_line_of_the_lock_is_a_pin_with_hashes(repository: Path, constraints: list[Requirement]) -> None:
    text = (repository / "requirements.lock").read_text().removeprefix(pin.REQUIREMENTS_HEAD)
    entries = [entry.split() for entry in text.replace("\\\n", " ").splitlines()]
    without = [entry[0] for entry in entries if not any(part.startswith("--hash=sha256:") for part in entry)]
    assert without == []
    assert {entry[0] for entry in entries} == {f"{one.name}{one.specifier}" for one in constraints}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a==1 ; sys_platform == 'linux' and platform_machine == 'x86_64'", "a==1"),
        ("a==1 ; platform_python_implementation != 'PyPy'", "a==1"),
        (
            "a==1 ; python_full_version == '3.12.*'",
            "a==1 ; python_full_version >= '3.12' and python_full_version < '3.13'",
        ),
        ("a==1 ; python_full_version >= '3.12'", "a==1 ; python_full_version >= '3.12'"),
        ("a==1 ; sys_platform == 'win32'", None),
    ],
)
def test_a_constraint_keeps_its_python_marker(line: str, expected: str | None) -> None:
    assert pin.constraint(line) == expected


@pytest.mark.parametrize("line", ["a>=1", "a==1.*", "a", "a==1,==2"])
def test_a_range_is_no_pin(line: str) -> None:
    with pytest.raises(ValueError, match="one exact version"):
        pin.constraint(line)


def test_pythons_with_a_gap_are_refused() -> None:
    with pytest.raises(ValueError, match="a run of Python versions"):
        pin.constraint("a==1 ; python_version == '3.11' or python_version == '3.13'")


def test_the_list_is_replaced_and_nothing_else() -> None:
    text = '[tool.uv]\nconstraint-dependencies = [\n    "old==1",\n]\n\n[tool.other]\nx = []\n'
    once = pin.with_constraints(text, ["new==2"])
    assert tomllib.loads(once) == {"tool": {"uv": {"constraint-dependencies": ["new==2"]}, "other": {"x": []}}}
    assert pin.with_constraints(once, ["new==2"]) == once
    with pytest.raises(ValueError, match="found 0"):
        pin.with_constraints("[tool.uv]\n", [])
