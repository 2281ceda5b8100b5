"""Programs with an extension: compiled once, before any lease, and never with another program's files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cudal1_data import Task
from cudal1_env.judge import Judge
from cudal1_env.judge.workers.build_folders import BuildFolders
from cudal1_env.judge.workers.worker import Worker
from cudal1_env.records import Status
from cudal1_worker import compilers
from doubles.judges import QUICK

REFERENCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn(4096)]


def get_init_inputs():
    return []
"""
TASK = Task(id="file/twice", source=REFERENCE, name="twice", level=1, origin="file")
PROGRAM = '''# Extensions without torch's headers, which compile in no time: one fails, one has a folder of its own.
import ctypes
import os

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

TEXT = """extern "C" void twice(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = FACTOR * x[i];
}"""


def made(name, text, **more):
    more |= {"no_implicit_headers": True, "is_python_module": False, "extra_cflags": ["-DFACTOR=2"]}
    return load_inline(name, text, **more)


try:
    made("bad", "unknown text;")
    raise SystemExit("it compiles")
except RuntimeError as error:
    assert "unknown" in str(error), error
os.makedirs("here", exist_ok=True)
path = made("own", TEXT, build_directory="here")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.twice = ctypes.CDLL(made("one", TEXT)).twice

    def forward(self, x):
        y = torch.empty_like(x)
        self.twice(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(x.numel()))
        return y
'''


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def judge(cache: Path) -> Iterator[Judge]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        one = Judge(QUICK)
    with one:
        if one._builder.key(one._case(TASK, PROGRAM, "training")) is None:
            pytest.skip("no mount namespaces here, so builds are not kept")
        yield one


@pytest.fixture
def entries(cache: Path) -> Callable[[], list[Path]]:
    """What the store holds; it begins empty."""
    folder = cache / "cudal1" / "builds"
    shutil.rmtree(folder, ignore_errors=True)
    return lambda: sorted(folder.iterdir())


def test_a_second_verdict_begins_with_the_build_of_the_first(
    judge: Judge, entries: Callable[[], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask, keep = Worker.ask, BuildFolders.keep

    def noted_ask(worker: Worker, message: dict[str, object], *rest: object, **more: object) -> object:
        if worker.pages:  # an arm's, not the oracle's
            asked.append(str(message["op"]))
        return ask(worker, message, *rest, **more)  # type: ignore[arg-type]

    def noted_keep(folders: BuildFolders, folder: Path | None, pid: int) -> Path:
        asked.append("snapshot")
        return keep(folders, folder, pid)

    monkeypatch.setattr(Worker, "ask", noted_ask)
    monkeypatch.setattr(BuildFolders, "keep", noted_keep)
    first = judge.evaluate(TASK, PROGRAM)
    assert first.status is Status.CORRECT, first.message
    # No seed, weight or input of the verdict has been told: only the text, and made-up inputs.
    assert asked[:3] == ["build", "ahead", "snapshot"]
    assert len(entries()) == 1
    asked.clear()
    second = judge.evaluate(TASK, PROGRAM)
    assert second.status is Status.CORRECT, second.message
    assert "ahead" not in asked
    assert second.seconds.build_s < first.seconds.build_s
    other = judge.evaluate(TASK, PROGRAM.replace("FACTOR=2", "FACTOR=3"))
    assert other.status is Status.WRONG_OUTPUT, other.message
    assert len(entries()) == 2


@pytest.mark.slow
def test_no_worker_after_the_first_runs_a_compiler(judge: Judge, entries: Callable[[], list[Path]]) -> None:
    """Each worker of a program finds objects and failures that its first one made."""
    case = judge._case(TASK, PROGRAM, "training")
    pool = judge._pools.take(case)
    judge._builder.drop(judge._builder.build(case, pool))
    kept = next(iter(entries())) / "files" / compilers.COMPILED
    made = sorted(path.name for path in kept.iterdir())
    assert len(made) == 2, "one text that fails, and one that two extensions share"
    assert sorted(path.name for path in kept.rglob("object")) == ["object"]
    again = judge._builder.build(case, pool)
    try:
        assert again.arm is not None
        again.arm.thaw()
        again.arm.construct(1)
        folder = Path(f"/proc/{again.arm.worker.pid}/root/tmp/build") / compilers.COMPILED
        assert sorted(path.name for path in folder.iterdir()) == made
    finally:
        judge._builder.drop(again)


@pytest.mark.slow
def test_a_damaged_build_is_made_again(judge: Judge, entries: Callable[[], list[Path]]) -> None:
    assert judge.evaluate(TASK, PROGRAM).status is Status.CORRECT
    (entry,) = entries()
    for library in entry.rglob("*.so"):
        library.write_bytes(b"damaged")
    one = judge.evaluate(TASK, PROGRAM)
    assert one.status is Status.CORRECT, one.message
    assert entries() == [entry]
    assert all(library.read_bytes() != b"damaged" for library in entry.rglob("*.so"))


PLANTER = """# triton
import os

import torch
import torch.nn as nn

FOLDER = os.environ["TRITON_CACHE_DIR"]
FOUND = sorted(os.listdir(FOLDER)) if os.path.isdir(FOLDER) else []


class ModelNew(nn.Module):
    calls = 0

    def forward(self, x):
        os.makedirs(FOLDER, exist_ok=True)
        self.calls += 1
        torch.save((x, x * 2), f"{FOLDER}/{os.getpid()}-{self.calls}")
        assert len(FOUND) <= 1, FOUND
        return x * 2
"""


def test_nothing_of_a_verdict_gets_into_the_store(judge: Judge, entries: Callable[[], list[Path]]) -> None:
    for _ in range(2):
        one = judge.evaluate(TASK, PLANTER)
        assert one.status is Status.CORRECT, one.message
        (entry,) = entries()
        assert len(list((entry / "files" / "triton").iterdir())) == 1, "what its call on made-up inputs left"


HEADERS = """import torch
import torch.nn as nn

# load_inline
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        assert open("/tmp/headers/extension.h").read() == "// header"
        for name in ("extension.h", "extension.h.gch"):
            try:
                open(f"/tmp/headers/{name}", "w")
            except OSError:
                continue
            raise AssertionError("a worker may write there")

    def forward(self, x):
        return x * 2
"""


def test_workers_see_precompiled_headers_read_only(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.mkdir(mode=0o711)
    (made / "extension.h").write_text("// header")
    monkeypatch.setattr(judge._builder.headers, "_place", made)
    found = judge.evaluate(TASK, HEADERS)
    assert found.status is Status.CORRECT, found.message
