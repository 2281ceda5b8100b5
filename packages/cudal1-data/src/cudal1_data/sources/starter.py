"""The bundled suite: a folder for each task, with `task.toml`, `reference.py` and `variants/`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cudal1_data.errors import BrokenTaskError
from cudal1_data.suite import Broken, Suite
from cudal1_data.task import Device, Size, SizeFamily, Task, Variant, check_reference, parse

STARTER_FOLDER = Path(__file__).parent.parent / "starter"

Category = Literal[
    "matmul",
    "activation",
    "norm",
    "reduction",
    "loss",
    "convolution",
    "transposed_convolution",
    "pooling",
    "scan",
    "attention",
    "fusion",
    "network",
    "shortcut",
]


class ManifestSizes(BaseModel):
    """The sizes of one device, as in `[sizes.cpu]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    default: Size = Field(min_length=1)
    """Size for training and reporting."""
    held_out: list[Size] = Field(min_length=2)
    """Sizes never trained on; each sets the same constants as `default`."""


class ManifestVariant(BaseModel):
    """One variant, as in `[variants.broadcast]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    techniques: list[str] = Field(default_factory=list[str])
    """Techniques that make it fast."""
    needs: list[Literal["compiler", "cuda", "triton"]] = Field(
        default_factory=list[Literal["compiler", "cuda", "triton"]]
    )
    """Build requirements."""
    devices: list[Device] = Field(default=["cpu", "cuda"], min_length=1)
    """Devices on which it runs."""


class Manifest(BaseModel):
    """The contents of `task.toml`. Other keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    """Human name."""
    level: int = Field(ge=1, le=3)
    """1 single operator, 2 fusion, 3 network."""
    category: Category
    """Kind of operation."""
    split: Literal["train", "test"]
    """`train`, or `test` for a held-out task."""
    tags: list[str] = Field(default_factory=list[str])
    """Free tags."""
    overlaps: str | None = Field(default=None, pattern=r"^kernelbench/level[1-4]/\d+$")
    """KernelBench task with the same operator graph."""
    sizes: dict[Device, ManifestSizes]
    """The shape family by device."""
    variants: dict[str, ManifestVariant]
    """One entry for each file in `variants/`."""


Model = TypeVar("Model", bound=BaseModel)


def load_starter(device: Device, *, folder: Path = STARTER_FOLDER) -> Suite:
    """Load every task of the bundled suite at its default size for `device`.

    Args:
        device: Device whose sizes to use.
        folder: Folder with one folder per task.
    """
    tasks: list[Task] = []
    broken: list[Broken] = []
    for path in sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name != "__pycache__"):
        try:
            tasks.append(load_starter_task(path).on(device))
        except BrokenTaskError as error:
            broken.append(Broken(path, error))
    return Suite("starter", tasks, broken=broken)


def load_starter_task(folder: Path) -> Task:
    """Load one task folder.

    Raises:
        BrokenTaskError: A file is missing or invalid; the message names it.
    """
    manifest = _manifest(folder / "task.toml")
    source = _text(folder / "reference.py")
    check_reference(source, where=str(folder / "reference.py"))
    task = Task(
        id=f"starter/{folder.name}",
        source=source,
        name=manifest.name,
        level=manifest.level,
        origin="starter",
        split=manifest.split,
        category=manifest.category,
        tags=tuple(manifest.tags),
        overlaps=manifest.overlaps,
        sizes={
            device: SizeFamily(default=sizes.default, held_out=tuple(sizes.held_out))
            for device, sizes in manifest.sizes.items()
        },
        variants=_variants(folder / "variants", manifest.variants),
    )
    _check_sizes(task, where=folder / "task.toml")
    return task


def _manifest(path: Path) -> Manifest:
    try:
        values = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise BrokenTaskError(f"{path}: not TOML: {error}") from error
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise BrokenTaskError(f"{path}: not the keys of a starter task: {details}") from error


def _variants(folder: Path, declared: dict[str, ManifestVariant]) -> tuple[Variant, ...]:
    found = {path.stem for path in folder.glob("*.py")}
    if found != declared.keys():
        raise BrokenTaskError(
            f"{folder}: each [variants.*] table of task.toml needs one file; "
            f"files without a table: {sorted(found - declared.keys())}, "
            f"tables without a file: {sorted(declared.keys() - found)}"
        )
    return tuple(_variant(folder / f"{name}.py", entry) for name, entry in declared.items())


def _variant(path: Path, entry: ManifestVariant) -> Variant:
    source = _text(path)
    parse(source, where=str(path))
    if "class ModelNew(" not in source:
        raise BrokenTaskError(f"{path}: the program defines no ModelNew")
    return Variant(
        name=path.stem,
        source=source,
        techniques=tuple(entry.techniques),
        needs=tuple(entry.needs),
        devices=tuple(entry.devices),
    )


def _check_sizes(task: Task, *, where: Path) -> None:
    for device, family in task.sizes.items():
        for size in family.held_out:
            if size.keys() != family.default.keys() or size == family.default:
                raise BrokenTaskError(
                    f"{where}: the held-out size {size} for {device} is no other size of this task; set "
                    f"{', '.join(sorted(family.default))} to other values than the default"
                )
        task.on(device)
        task.held_out(device)
    if "cpu" in task.sizes and task.on("cpu").source != task.source:
        raise BrokenTaskError(f"{where}: sizes.cpu.default must equal the constants of reference.py")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BrokenTaskError(f"{path}: the file is missing") from error
    except UnicodeDecodeError as error:
        raise BrokenTaskError(f"{path}: not UTF-8 text: {error}") from error
