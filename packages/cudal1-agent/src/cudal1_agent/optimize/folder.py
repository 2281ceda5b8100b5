"""The folder that an optimisation writes.

```
__init__.py, module.py, guard.py, op.py   the drop-in; absent unless a program was confirmed to be faster
kernel.py, original.py, spec.json         the program, the user's file, and what the program was verified for
test_dropin.py                            tests of what the drop-in promises
record.json, report.md                    the results
search/                                   every verdict, and the audit: the same command continues from there
```
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from cudal1_data import Device
from cudal1_data.hashes import digest
from cudal1_env import Archive, Evaluation
from pydantic import BaseModel, ConfigDict, ValidationError

from cudal1_agent.errors import OptimizeError
from cudal1_agent.optimize.examine import Examined
from cudal1_agent.optimize.record import OptimizeRecord, report_text
from cudal1_agent.optimize.target import Target
from cudal1_agent.run.files import write_aside

DROPIN = (
    *("__init__.py", "module.py", "guard.py", "op.py", "kernel.py", "original.py", "spec.json", "test_dropin.py"),
)
"""Files of a drop-in."""
_AS_JUDGED = "# coding: utf-8\n"
"""First line of `kernel.py`. The judge ran the text itself, so a later line must not choose how its bytes are read."""
_STATIC = ("guard.py", "op.py", "module.py", "test_dropin.py")


class Asked(BaseModel):
    """The module and device that a folder is for."""

    model_config = ConfigDict(frozen=True)

    name: str
    """The module's class."""
    task_sha256: str
    """Hash of the module as a task."""
    device: Device
    """Where programs run."""


def default_folder(target: Target) -> Path:
    """Return the default folder for a module's drop-in.

    >>> snake("RMSNormBlock"), snake("Model"), snake("12_Gemm")
    ('rms_norm_block', 'model', 'module_12_gemm')
    """
    return Path("optimized") / (snake(target.name) if target.name != "Model" else snake(target.path.stem))


def snake(name: str) -> str:
    """Return a name in lower case, with underscores between words, as a Python name."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    text = re.sub(r"\W", "_", parts).lower()
    return text if text.isidentifier() else f"module_{text}"


class OutFolder:
    """An output folder."""

    def __init__(self, path: Path, target: Target, device: Device) -> None:
        """Check that the folder can be written; `begin` creates it.

        Raises:
            OptimizeError: The folder holds something else, or its name cannot be a package's.
        """
        self.path, self._target, self._device = path, target, device
        if not path.resolve().name.isidentifier():
            raise OptimizeError(
                f"{path} cannot be imported; let the last part of --out be a Python name, such as {snake(path.name)}"
            )
        self._asked = Asked(name=target.name, task_sha256=digest(target.task.source), device=device)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            self._check()

    def begin(self) -> None:
        """Create the folder, with a note of what it is for.

        Raises:
            OptimizeError: It cannot be created.
        """
        try:
            self.search.mkdir(parents=True, exist_ok=True)
            write_aside(self.search / "search.json", self._asked.model_dump_json() + "\n")
        except OSError as error:
            raise OptimizeError(f"{self.path} cannot be written: {error.strerror}; name another --out") from error

    @property
    def search(self) -> Path:
        """Folder of the search."""
        return self.path / "search"

    @property
    def audit(self) -> Path:
        """The audit's results file."""
        return self.search / "audit.jsonl"

    def archive(self) -> Archive:
        """Open the archive of verdicts."""
        return Archive(self.search / "archive.sqlite")

    def _check(self) -> None:
        try:
            found = Asked.model_validate_json((self.search / "search.json").read_bytes())
        except (OSError, ValidationError) as error:
            raise OptimizeError(f"{self.path} holds other files; name a new or an empty folder with --out") from error
        if found != self._asked:
            raise OptimizeError(
                f"{self.path} holds the search for another version of {found.name} on {found.device}; name another "
                "--out, or remove the folder"
            )

    def stage(self, source: str, examined: Examined, tolerances: Sequence[float]) -> Path:
        """Write a drop-in aside; return its folder."""
        staged = self.search / "staged" / digest(source)[:8] / self.path.resolve().name
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        target = self._target
        written = files("cudal1_agent.optimize").joinpath("written")
        for name in _STATIC:
            text = written.joinpath(f"{name}.in").read_text(encoding="utf-8")
            (staged / name).write_text(text.replace("@NAME@", target.name).replace("@FOLDER@", staged.name), "utf-8")
        (staged / "kernel.py").write_text(_AS_JUDGED + source, encoding="utf-8")
        (staged / "original.py").write_text(target.text, encoding="utf-8")
        shown = f'"""{target.name}, optimised."""\n\nfrom .module import {target.name}, optimized\n\n'
        (staged / "__init__.py").write_text(f'{shown}__all__ = ["{target.name}", "optimized"]\n', encoding="utf-8")
        spec = examined.model_dump(include={"inputs", "outputs", "returns", "state", "configuration", "training"})
        spec |= {
            "mode_matters": examined.mode_matters,
            "name": target.name,
            "op": f"{snake(target.name)}_{digest(source)[:8]}",
            "examples": target.examples,
            "arguments": target.arguments,
            "device": self._device,
            "tolerances": list(tolerances),
            "clones": False,
        }
        (staged / "spec.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        return staged

    def take_back(self) -> None:
        """Remove a drop-in that an earlier command wrote."""
        for name in DROPIN:
            (self.path / name).unlink(missing_ok=True)

    def put(self, staged: Path) -> None:
        """Move a drop-in to its place, `__init__.py` last."""
        for name in reversed(DROPIN):
            (staged / name).replace(self.path / name)
        shutil.rmtree(self.search / "staged", ignore_errors=True)

    def write(self, record: OptimizeRecord) -> None:
        """Write record and report."""
        write_aside(self.path / "record.json", record.model_dump_json(indent=1) + "\n")
        write_aside(self.path / "report.md", report_text(record))


def with_outputs(staged: Path, strides: list[list[int]], *, clones: bool) -> None:
    """Write the form of a staged kernel's outputs into its specification.

    Args:
        staged: Folder of the drop-in.
        strides: Strides of each output.
        clones: Whether outputs must be copied, because the kernel's next call writes into them.
    """
    path = staged / "spec.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    spec["outputs"] = [form | {"stride": stride} for form, stride in zip(spec["outputs"], strides, strict=True)]
    path.write_text(json.dumps(spec | {"clones": clones}, indent=1) + "\n", encoding="utf-8")


def tolerances_of(evaluation: Evaluation, outputs: int) -> list[float]:
    """Return the largest tolerance of each output's elements, relative to the output's largest element."""
    found = [0.0] * outputs
    for one in evaluation.errors:
        found[one.output] = max(found[one.output], one.tolerance)
    return found
