"""Write the pins of the workspace: every package of the resolved closure at its exact version.

uv's lock file records download addresses and is therefore not committed. Two files replace it:

- `[tool.uv] constraint-dependencies` in pyproject.toml, which every `uv sync` of a fresh clone obeys;
- requirements.lock, the same closure with the hash of every file, for
  `uv pip install --constraint requirements.lock` outside the workspace (pip would want hashes of local wheels, too).

Both cover every extra and the development tools, on each Python that the project supports.

    uv run scripts/pin.py              write both from the present resolution
    uv run scripts/pin.py --upgrade    resolve again within the ranges of the members, then write both
    uv run scripts/pin.py --check      write nothing; exit with 1 if either file is stale
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
REQUIREMENTS = ROOT / "requirements.lock"

PYTHONS = ("3.11", "3.12", "3.13")
"""Every minor version in `requires-python`, in order."""

CONSTRAINTS = re.compile(r"^constraint-dependencies = \[\n(?:.*\n)*?\]\n", re.MULTILINE)
"""The list in pyproject.toml, from its name to its closing bracket."""

REQUIREMENTS_HEAD = "# Written by scripts/pin.py: every package of the workspace with the hashes of its files.\n"


def runs_on(marker: Marker | None, python: str) -> bool:
    """Return whether a marker holds for a Python minor version on the supported platform.

    >>> runs_on(Marker("python_full_version < '3.12'"), "3.11")
    True
    """
    environment = {
        "implementation_name": "cpython",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    return marker is None or marker.evaluate(environment)


def constraint(line: str) -> str | None:
    """Return one exported requirement as a constraint; of its marker, only the Python versions are kept.

    Args:
        line: One requirement, with a marker or without.

    Returns:
        The constraint, or None if no supported Python needs the package.

    Raises:
        ValueError: The requirement is no exact pin, or its Python versions are not contiguous.

    >>> constraint("torch==2.13.0 ; sys_platform == 'linux'")
    'torch==2.13.0'
    >>> constraint("numpy==2.4.6 ; python_full_version >= '3.13' and sys_platform == 'linux'")
    "numpy==2.4.6 ; python_full_version >= '3.13'"
    """
    requirement = Requirement(line)
    pin = f"{requirement.name}{requirement.specifier}"
    if not re.fullmatch(r"==[^,*]+", str(requirement.specifier)):
        raise ValueError(f"expected a package at one exact version, got {line!r}")
    wanted = [index for index, python in enumerate(PYTHONS) if runs_on(requirement.marker, python)]
    if not wanted:
        return None
    first, last = wanted[0], wanted[-1]
    if wanted != list(range(first, last + 1)):
        raise ValueError(f"expected a run of Python versions, got {[PYTHONS[index] for index in wanted]} for {line!r}")
    bounds: list[str] = []
    if first > 0:
        bounds.append(f"python_full_version >= '{PYTHONS[first]}'")
    if last < len(PYTHONS) - 1:
        bounds.append(f"python_full_version < '{PYTHONS[last + 1]}'")
    return f"{pin} ; {' and '.join(bounds)}" if bounds else pin


def constraints(exported: str) -> list[str]:
    """Return the constraints for an export without hashes, in its order (by name)."""
    lines = [line for line in exported.splitlines() if line.strip() and not line.startswith("#")]
    return [found for line in lines if (found := constraint(line)) is not None]


def with_constraints(pyproject: str, pins: list[str]) -> str:
    """Return the text of pyproject.toml with its constraint list replaced.

    Raises:
        ValueError: The text does not contain exactly one `constraint-dependencies` list.
    """
    block = "constraint-dependencies = [\n" + "".join(f'    "{pin}",\n' for pin in pins) + "]\n"
    text, count = CONSTRAINTS.subn(lambda _: block, pyproject)
    if count != 1:
        raise ValueError(f"expected one constraint-dependencies list in pyproject.toml, found {count}")
    return text


def export(*, hashes: bool) -> str:
    """Return the locked closure of all members, extras and groups in requirements form."""
    command = ["uv", "export", "--quiet", "--frozen", "--format", "requirements-txt", "--all-packages", "--all-extras"]
    command += ["--all-groups", "--no-emit-workspace", "--no-header", "--no-annotate"]
    command += [] if hashes else ["--no-hashes"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def lock(*, upgrade: bool = False) -> None:
    """Resolve the workspace into uv.lock."""
    command = ["uv", "lock", "--quiet"] + (["--upgrade"] if upgrade else [])
    subprocess.run(command, cwd=ROOT, check=True)


def pinned() -> tuple[str, str]:
    """Return the text of pyproject.toml and of requirements.lock for the resolution in uv.lock."""
    pyproject = with_constraints(PYPROJECT.read_text(), constraints(export(hashes=False)))
    return pyproject, REQUIREMENTS_HEAD + export(hashes=True)


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Write the pins of the workspace.")
    parser.add_argument("--upgrade", action="store_true", help="resolve anew within the ranges of the members")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    arguments = parser.parse_args()

    before = PYPROJECT.read_text()
    if arguments.upgrade and not arguments.check:
        PYPROJECT.write_text(with_constraints(before, []))
        try:
            lock(upgrade=True)
        except subprocess.CalledProcessError:
            PYPROJECT.write_text(before)
            raise
    else:
        lock()
    pyproject, requirements = pinned()
    stale = [
        path.name
        for path, text in ((PYPROJECT, pyproject), (REQUIREMENTS, requirements))
        if not path.exists() or path.read_text() != text
    ]
    if arguments.check:
        for name in stale:
            print(f"{name} is stale: run `uv run scripts/pin.py`", file=sys.stderr)
        return 1 if stale else 0
    PYPROJECT.write_text(pyproject)
    REQUIREMENTS.write_text(requirements)
    # uv.lock depends on the constraints.
    lock()
    print(f"{len(constraints(export(hashes=False)))} packages pinned; changed: {', '.join(stale) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
