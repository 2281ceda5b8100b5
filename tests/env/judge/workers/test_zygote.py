"""What torch's compiler imports is there before workers are forked, where that does them no harm."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from cudal1_env.errors import WorkerLostError
from cudal1_env.judge import Judge
from cudal1_env.judge.measure.precompile import compiles, compiles_by_torch
from cudal1_env.judge.workers.zygote import Zygote
from cudal1_env.records import Evaluation, Status
from cudal1_worker import gpus, preload
from cudal1_worker import protocol as wire
from doubles import evaluator as doubles


def judged(judge: Judge, statement: str) -> Evaluation:
    """A right program whose module runs a statement when it is imported."""
    program = f"import sys\nimport torch\n{statement}\nclass ModelNew(torch.nn.Module):\n"
    program += "    def forward(self, x):\n        return 1 + x\n"
    return judge.evaluate(doubles.task(), program)


@pytest.mark.slow
def test_what_the_compiler_needs_is_there_for_programs_that_name_it_only(judge: Judge) -> None:
    there = "assert 'torch._inductor.compile_fx' in sys.modules  # which torch.compile imports"
    assert judged(judge, there).status is Status.CORRECT
    elsewhere = "assert not any(name.endswith('.compile_fx') for name in sys.modules)"
    assert judged(judge, elsewhere).status is Status.CORRECT


@pytest.mark.slow
def test_a_zygote_drops_preloaded_modules_that_open_a_gpu(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "opens_a_device.py"
    module.write_text("from cudal1_worker import gpus\ngpus.NODES = '/dev/zero'\nheld = open('/dev/zero')\n")
    monkeypatch.syspath_prepend(tmp_path)
    zygote = Zygote(preload=["no_such_module", "opens_a_device", "torch._inductor.compile_fx"])
    monkeypatch.setattr(judge._builder, "_with_compiler", zygote)
    try:
        there = "assert {'opens_a_device', 'torch._inductor.compile_fx'}.isdisjoint(sys.modules)  # torch.compile"
        assert judged(judge, there).status is Status.CORRECT
    finally:
        zygote.close()


def test_a_program_finds_none_of_our_packages_but_the_workers(judge: Judge) -> None:
    """The others hold programs for bundled tasks, and templates that write programs for any task."""
    packages = "[f'{top}/cudal1_{name}/*' for top in sys.path for name in ('data', 'env', 'agent')]"
    said = judged(judge, f"import glob\nfor one in {packages}:\n    assert not glob.glob(one), one")
    assert said.status is Status.CORRECT, said.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give workers users of their own")
def test_living_workers_have_different_users_and_none_is_root(judge: Judge) -> None:
    spec = judge._builder.spec(None, core=None)
    with contextlib.ExitStack() as held:
        workers = [held.enter_context(contextlib.closing(judge._builder.zygote.fork("arm", spec))) for _ in range(3)]
        users = [os.stat(f"/proc/{one.pid}").st_uid for one in workers]
    assert len(set(users)) == 3
    assert 0 not in users


@pytest.mark.slow
def test_a_zygote_that_is_late_does_not_answer_the_next_question(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    zygote, spec = Zygote(), judge._builder.spec(None, core=None)
    receive, late = wire.receive, [True]

    def slow(channel: socket.socket, **named: Any) -> Any:
        if late and channel is zygote._channel and zygote.torch:
            late.clear()
            raise wire.ChannelTimeout("nothing came")
        return receive(channel, **named)

    zygote.start()
    monkeypatch.setattr(wire, "receive", slow)
    with pytest.raises(WorkerLostError, match="nothing came"):
        zygote.fork("oracle", spec)
    worker = zygote.fork("oracle", spec)
    try:
        assert worker.alive
    finally:
        worker.close()
        zygote.close()


def test_an_interrupted_start_leaves_no_answer_for_the_next_request(judge: Judge) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    zygote, before = Zygote(), signal.signal(signal.SIGUSR1, interrupt)  # pytest-timeout has SIGALRM
    late = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))  # importing torch takes longer
    try:
        late.start()
        with pytest.raises(KeyboardInterrupt):
            zygote.start()
        with contextlib.closing(zygote.fork("oracle", judge._builder.spec(None, core=None))) as worker:
            assert worker.alive
    finally:
        late.cancel()
        signal.signal(signal.SIGUSR1, before)
        zygote.close()


@pytest.mark.parametrize("there", [False, True])
def test_what_is_preloaded_asks_for_a_gpu_without_starting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    def starts_cuda() -> bool:
        pytest.fail("expected nobody to ask the driver")

    (tmp_path / "asks_for_a_gpu.py").write_text("import torch\nfound = torch.cuda.is_available()\n")
    (tmp_path / "gpuctl").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "NODES", str(tmp_path / ("gpu" if there else "none")))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", starts_cuda)
    monkeypatch.delitem(sys.modules, "asks_for_a_gpu", raising=False)
    preload.preload(["no_such_module", "asks_for_a_gpu"])
    assert sys.modules["asks_for_a_gpu"].found is there
    assert torch.cuda.is_available is starts_cuda


def test_compilers_hash_their_files_once_for_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_compiler.py").write_text(
        "import functools\ncalls = []\n@functools.cache\ndef key():\n    calls.append(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_compiler", raising=False)
    monkeypatch.setattr(preload, "_HASHES", (("a_compiler", "key"), ("a_compiler", "not_there"), ("not_there", "key")))
    preload.preload(["no_such_module", "a_compiler"])
    module = sys.modules["a_compiler"]
    module.key()
    assert module.calls == [1]


@pytest.mark.parametrize(
    ("text", "by_torch", "at_all"),
    [
        ("torch.compile(f)", True, True),
        ("self.compile(mode='default')", True, True),
        ("re.compile('x')", False, False),
        ("import triton", False, True),
        ("load_inline(name='x')", False, True),
        ("torch.cuda._compile_kernel(text, 'f')", False, False),
    ],
)
def test_compilers_are_known_by_name(text: str, by_torch: bool, at_all: bool) -> None:
    assert (compiles_by_torch(text), compiles(text)) == (by_torch, at_all)
