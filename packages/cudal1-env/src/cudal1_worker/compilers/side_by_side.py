"""Runs nvcc's steps for host and device in parallel; nvcc itself runs them one after another.

`nvcc --dryrun` lists the steps. The device steps need only the module's name from the host steps; this module writes
the name beforehand. Unless the steps are those of one architecture and one source, nvcc is called directly.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

_VARIABLE = re.compile(r"([A-Z_]+)=\s*(.*)")
_OUTPUT = re.compile(r'-o "([^"]+)"')
_MODULE = re.compile(r'--gen_module_id_file (--module_id_file_name "([^"]+)")')


@dataclass(frozen=True)
class Steps:
    """The commands that nvcc would run, as shell lines."""

    variables: dict[str, str]
    module: str
    """File for the module's name."""
    host: list[str]
    device: list[str]
    last: str
    """Command that compiles the results of both."""


def steps(said: str) -> Steps | None:
    """Parse the output of `nvcc --dryrun`; return None unless it has one host part and one device part."""
    variables: dict[str, str] = {}
    lines: list[str] = []
    for line in (one.removeprefix("#$ ").strip() for one in said.splitlines() if one.startswith("#$ ")):
        if (found := _VARIABLE.fullmatch(line)) is not None:
            variables[found[1]] = found[2]
        elif line and not line.startswith(("--", "rm ")):
            lines.append(line)
    front = [line for line in lines if line.startswith("cudafe++ ")]
    back = [line for line in lines if "/cicc" in line.split(" ", 1)[0]]
    module = _MODULE.search(front[0]) if len(front) == 1 else None
    if module is None or len(back) != 1 or not re.match(r"\S+ .*-c ", lines[-1]):
        return None
    made = {line: found[1] for line in lines if (found := _OUTPUT.search(line)) is not None}
    before = [line for line, path in made.items() if f'"{path}"' in front[0] and line not in front]
    if len(before) != 1:
        return None
    host = [before[0], front[0].replace(module[0], module[1])]
    device = [line for line in lines[:-1] if line not in (before[0], front[0])]
    return Steps(variables, module[2], host, device, lines[-1])


def compiled(command: Sequence[str], module: str) -> subprocess.CompletedProcess[bytes] | None:
    """Compile like `command`, a call of nvcc; return None if its steps are not the known ones.

    Args:
        command: The call, without options that request a dependency file.
        module: A module name that is unique among the program's sources.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder}
        asked = [command[0], "--dryrun", *command[1:]]
        dry = subprocess.run(asked, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        known = steps(dry.stderr.decode(errors="surrogateescape")) if dry.returncode == 0 else None
        if known is None or not known.module.startswith(folder):
            return None
        with open(known.module, "w") as file:
            file.write(module)
        environment |= known.variables
        parts = [_begun(lines, environment, f"{folder}/said-{k}") for k, lines in enumerate((known.host, known.device))]
        codes = [_ended(part, parts) for part in parts]
        failed = [k for k, code in enumerate(codes) if code > 0] or [k for k, code in enumerate(codes) if code != 0]
        if not failed:
            parts.append(_begun([known.last], environment, f"{folder}/said-2"))
            codes.append(parts[2].wait())
        said = b""
        for k in failed[:1] or range(3):
            with open(f"{folder}/said-{k}", "rb") as file:
                said += file.read()
        return subprocess.CompletedProcess(list(command), codes[failed[0]] if failed else codes[2], said, b"")


def _begun(lines: Sequence[str], environment: dict[str, str], said: str) -> subprocess.Popen[bytes]:
    with open(said, "wb") as out:
        return subprocess.Popen(
            ["/bin/sh", "-ec", "\n".join(lines)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            process_group=0,
        )


def _ended(part: subprocess.Popen[bytes], parts: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for one part; if it fails, kill the others. A killed part has a negative code."""
    code = part.wait()
    if code > 0:
        for other in parts:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(other.pid, signal.SIGKILL)
    return code
