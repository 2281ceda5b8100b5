"""Download the wheels that a machine without a network lacks: of the workspace, its dependencies and its tests'.

    pip freeze > has.txt                                            on that machine
    uv run scripts/wheels.py wheels --has has.txt --python 3.12     on a machine with a network
    pip install --no-index --no-deps --target site wheels/*.whl     on that machine, with site in PYTHONPATH

Packages that the machine has stay at their version: torch and Triton come with its driver.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pin import PYTHONS, ROOT, runs_on

PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64")


def lacking(exported: str, frozen: str, python: str) -> list[str]:
    r"""Return the pins that a Python needs and that an installation lacks.

    Args:
        exported: Pins with markers, one per line.
        frozen: Output of `pip freeze` there.
        python: Its minor version.

    >>> exported = "torch==2.13.0 ; sys_platform == 'linux'\ntyro==1.0.17\nscipy==1.17.1 ; python_version < '3.12'"
    >>> lacking(exported, "Torch @ file:///wheels/torch.whl", "3.12")
    ['tyro==1.0.17']
    """
    present = {canonicalize_name(line.split("==")[0].split(" @ ")[0].strip()) for line in frozen.splitlines()}
    wanted = [Requirement(line) for line in exported.splitlines() if line.strip() and not line.startswith(("#", " "))]
    return [
        f"{one.name}{one.specifier}"
        for one in wanted
        if runs_on(one.marker, python) and canonicalize_name(one.name) not in present
    ]


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Download what a machine without a network lacks.")
    parser.add_argument("folder", type=Path, help="where wheels are written")
    parser.add_argument("--has", type=Path, required=True, help="what `pip freeze` printed on that machine")
    parser.add_argument("--python", choices=PYTHONS, required=True, help="its Python")
    parser.add_argument("--extra", action="append", default=[], help="an extra that is wanted too, such as smollm2")
    arguments = parser.parse_args()

    extras = [word for name in arguments.extra for word in ("--extra", name)]
    command = ["uv", "export", "--quiet", "--format", "requirements-txt", "--all-packages", *extras]
    command += ["--no-dev", "--group", "test", "--no-emit-workspace", "--no-header", "--no-annotate", "--no-hashes"]
    exported = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    pins = lacking(exported, arguments.has.read_text(), arguments.python)
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    download = ["uv", "run", "--quiet", "--with", "pip", "python", "-m", "pip", "download", "--quiet", "--no-deps"]
    download += ["--only-binary=:all:", "--python-version", arguments.python, *platforms, "--dest"]
    subprocess.run([*download, str(arguments.folder.absolute()), *pins], cwd=ROOT, check=True)
    build = ["uv", "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(arguments.folder.absolute())]
    subprocess.run(build, cwd=ROOT, check=True)
    wheels = list(arguments.folder.glob("*.whl"))
    print(f"{len(wheels)} wheels, {sum(one.stat().st_size for one in wheels) / 2**20:.0f} MiB, in {arguments.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
