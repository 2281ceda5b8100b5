"""The bundled suite: every task and every variant, checked by scripts/check_starter.py."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cudal1_data import BrokenTaskError, Device, SizeFamily, Task, Variant, load_suite, usable_variants
from cudal1_data.sources.starter import STARTER_FOLDER, load_starter, load_starter_task
from starter_programs import small_sizes

SUITE = load_suite("starter")
NAMES = sorted(path.name for path in STARTER_FOLDER.iterdir() if (path / "task.toml").exists())


@pytest.fixture(scope="module")
def check_starter(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_starter", repository / "scripts" / "check_starter.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def one_thread_and_own_scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    threads, folder = torch.get_num_threads(), tempfile.tempdir
    torch.set_num_threads(1)
    # Variants that compile leave their build in the temporary folder of this process.
    tempfile.tempdir = str(tmp_path_factory.mktemp("builds"))
    yield
    tempfile.tempdir = folder
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_task_and_variants_at_small_sizes(name: str, check_starter: ModuleType) -> None:
    task = load_starter_task(STARTER_FOLDER / name)
    default, *others = small_sizes(task)
    small = task.model_copy(update={"sizes": {"cpu": SizeFamily(default=default, held_out=tuple(others))}})
    check_starter.check_task(small, compiler=shutil.which("gcc") is not None)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_task_and_variants(name: str, check_starter: ModuleType) -> None:
    compiler = shutil.which("gcc") is not None
    check_starter.check_task(load_starter_task(STARTER_FOLDER / name), compiler=compiler)


MUTANTS = {
    "off by 1 %": "return 1.01 * (a.unsqueeze(1) * b)",
    "half precision": "return (a.half().unsqueeze(1) * b.half()).float()",
    "returns its input": "return b",
    "writes to its input": "return b.mul_(a.unsqueeze(1))",
    "one element": "y = a.unsqueeze(1) * b\n        y[3, 5] += 0.1\n        return y",
    "NaN": "y = a.unsqueeze(1) * b\n        y[0, 0] = float('nan')\n        return y",
    "another dtype": "return (a.unsqueeze(1) * b).double()",
    "a state": "return self.scale * a.unsqueeze(1) * b",
}


@pytest.mark.parametrize("kind", MUTANTS)
def test_checker_refuses_an_incorrect_variant(kind: str, check_starter: ModuleType) -> None:
    source = (
        "import torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        + ("        self.scale = nn.Parameter(torch.ones(()))\n" if kind == "a state" else "")
        + f"\n    def forward(self, a, b):\n        {MUTANTS[kind]}\n"
    )
    task = SUITE["starter/diag_matmul"]
    mutated = task.model_copy(update={"variants": (*task.variants[:3], Variant(name="mutant", source=source))})
    with pytest.raises(check_starter.CheckError, match="mutant"):
        check_starter.check_task(mutated, compiler=False)


def test_checker_refuses_a_reference_that_ignores_an_input(check_starter: ModuleType) -> None:
    task = SUITE["starter/diag_matmul"]
    deaf = task.model_copy(update={"source": task.source.replace("torch.diag(a)", "torch.diag(0 * a + 1)")})
    with pytest.raises(check_starter.CheckError, match="does not depend on input 0"):
        check_starter.check_task(deaf, compiler=False)


def test_nothing_is_broken_and_both_splits_are_there() -> None:
    assert SUITE.broken == ()
    assert len(SUITE) == len(NAMES)
    assert 0.1 <= len(SUITE.test) / len(SUITE) <= 0.35
    assert {task.level for task in SUITE} <= {1, 2, 3}
    for task in SUITE:
        assert task.sizes.keys() == {"cpu", "cuda"}
        assert len(task.variants) >= 3


def test_sizes_follow_the_device() -> None:
    assert "N = 768" in load_suite("starter/diag_matmul")[0].source
    assert "N = 4096" in load_suite("starter/diag_matmul", device="cuda")[0].source


def test_usable_variants() -> None:
    task = SUITE["starter/diag_matmul"]
    names = [variant.name for variant in task.variants]
    plain = ["plain", "broadcast", "in_place"]
    assert names == [*plain, "c_rows", "triton_rows", "nvrtc_rows", "inline_rows"]

    def usable(device: Device, have: set[str]) -> list[str]:
        return [variant.name for variant in usable_variants(task, device, have)]

    assert usable("cpu", {"compiler", "cuda", "triton"}) == [*plain, "c_rows"]
    assert usable("cpu", set()) == plain
    assert usable("cuda", {"compiler", "cuda", "triton"}) == [*plain, "triton_rows", "nvrtc_rows", "inline_rows"]
    assert usable("cuda", {"compiler"}) == [*plain, "nvrtc_rows"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(STARTER_FOLDER / "diag_matmul", tmp_path / "suite" / "diag_matmul")
    shutil.copytree(STARTER_FOLDER / "low_rank_matmul", tmp_path / "suite" / "low_rank_matmul")
    return tmp_path / "suite"


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("task.toml", "level = 1", "level = 1\nlevle = 2", "levle: Extra inputs are not permitted"),
        ("task.toml", "level = 1", "level = 9", "level: Input should be less than or equal to 3"),
        ("task.toml", "level = 1", "level = ", "not TOML"),
        ("task.toml", '"train"', '"training"', "split: Input should be 'train' or 'test'"),
        ("task.toml", "[variants.broadcast]", "[variants.other]", r"files without a table: \['broadcast'\]"),
        ("task.toml", "{ N = 768, M = 768 }", "{ N = 700, M = 768 }", "sizes.cpu.default must equal"),
        ("task.toml", "{ N = 512, M = 1024 }", "{ N = 512 }", "for cpu is no other size of this task; set M, N"),
        ("reference.py", "N = 768", "N = 760 + 8", "defines no integer constant N at its top level"),
        ("reference.py", "get_init_inputs", "get_init", "does not define get_init_inputs"),
        ("variants/plain.py", "ModelNew", "Model", "defines no ModelNew"),
    ],
)
def test_broken_starter_task_is_named(copied: Path, file: str, old: str, new: str, reason: str) -> None:
    path = copied / "diag_matmul" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    suite = load_starter("cpu", folder=copied)
    assert suite.ids == ("starter/low_rank_matmul",)
    [entry] = suite.broken
    assert entry.path == copied / "diag_matmul"
    assert isinstance(entry.error, BrokenTaskError)
    with pytest.raises(BrokenTaskError, match=reason):
        raise entry.error


def test_missing_reference_is_named(copied: Path) -> None:
    (copied / "diag_matmul" / "reference.py").unlink()
    with pytest.raises(BrokenTaskError, match=r"reference\.py: the file is missing"):
        load_starter_task(copied / "diag_matmul")


def test_task_model_is_frozen() -> None:
    task: Task = SUITE[0]
    with pytest.raises(ValueError, match="frozen"):
        task.level = 2  # type: ignore[misc]
