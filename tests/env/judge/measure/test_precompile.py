"""Programs that compile do so before they are judged, wherever in them that is."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from cudal1_data import Task
from cudal1_env.baselines.programs import BASELINES, program
from cudal1_env.judge import Judge
from cudal1_env.judge.measure import precompile as precompilation
from cudal1_env.judge.measure.precompile import compiles
from cudal1_env.judge.workers import lease
from cudal1_env.judge.workers.lease import Hold
from cudal1_env.records import Evaluation, Status
from doubles.judges import QUICK

REFERENCE = """import torch
import torch.nn as nn

N = 4096


class Model(nn.Module):
    def forward(self, x, index):
        return x[index] * 2


def get_inputs():
    return [torch.randn(N), torch.randperm(N)]


def get_init_inputs():
    return []
"""
TASK = Task(id="file/twice", source=REFERENCE, name="twice", level=1, origin="file")
COMPILER = """# stands for load_inline: leaves a file, and takes a second where there is none
import os
import time
import torch
import torch.nn as nn

FILE = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "built")


def compiled():
    if not os.path.exists(FILE):
        time.sleep(1.0)
        os.makedirs(os.path.dirname(FILE), exist_ok=True)
        open(FILE, "w").close()


"""
BODY = """class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, index):
        {call}
        return x[index] * 2
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    limits = {"warmup_timeout_s": 0.9, "build_timeout_s": 20.0, "build_store_bytes": 0}
    with Judge(QUICK.model_copy(update=limits)) as one:
        yield one


@pytest.mark.slow
def test_torchs_compiler_is_imported_before_a_lease_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with Judge(QUICK.model_copy(update={"build_store_bytes": 0})) as one:
        seen: list[str] = []

        def sharing(*names: str) -> AbstractContextManager[tuple[Hold, float]]:
            seen.append(one._builder._with_compiler.torch)
            return lease.sharing(*names)

        monkeypatch.setattr(precompilation, "sharing", sharing)
        head = "import torch\nimport torch.nn as nn\n# torch.compile\n"
        found = one.evaluate(TASK, head + BODY.format(init="pass", call="pass"))
        assert found.status is Status.CORRECT, found.message
    assert seen
    assert all(seen), "the process that has the compiler knows its version when it has started"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("init", "call"), [("compiled()", "pass"), ("pass", "compiled()")], ids=["constructor", "first call"]
)
def test_a_build_counts_as_one_wherever_it_is(judge: Judge, init: str, call: str) -> None:
    one = judge.evaluate(TASK, COMPILER + BODY.format(init=init, call=call))
    assert one.status is Status.CORRECT, one.message
    assert one.seconds.build_s > 1.0
    assert one.seconds.warmup_s < 0.9


@pytest.mark.slow
def test_builds_of_a_batch_go_side_by_side(judge: Judge) -> None:
    programs = [COMPILER + BODY.format(init="compiled()", call="pass") + f"# {k}\n" for k in range(3)]
    jobs = [(TASK, program) for program in programs]
    for one in judge.evaluate_many(jobs):
        assert one.status is Status.CORRECT, one.message
        assert 1.0 < one.seconds.build_s < 2.5
    assert not judge._builder.precompilations._kept


@pytest.mark.slow
def test_only_the_latest_precompilations_are_kept(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompilation, "_MAX_KEPT", 2)
    quick = COMPILER.replace("time.sleep(1.0)", "pass") + BODY.format(init="compiled()", call="pass")
    precompilations = judge._builder.precompilations
    for k in range(4):
        case = judge._case(TASK, f"{quick}# {k}\n", "training")
        precompilations.keep(case, judge._pools.take(case))
    assert len(precompilations._kept) == 2
    root = judge._builder.folders._root
    assert len([path for path in root.iterdir() if path.name.startswith("kept-")]) == 2
    for one in precompilations._kept.values():
        judge._builder.folders.drop(one.snapshot)
    precompilations._kept.clear()


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize(("text", "cores"), [("# triton\n", len(os.sched_getaffinity(0))), ("", 1)])
def test_a_program_that_compiles_is_held_to_a_core_when_it_is_timed(judge: Judge, text: str, cores: int) -> None:
    text += f"import os\nimport torch\nimport torch.nn as nn\nassert len(os.sched_getaffinity(0)) == {cores}\n"
    init = f"assert len(os.sched_getaffinity(0)) == {cores}; self.calls = 0"
    call = "self.calls += 1; assert self.calls < 9 or len(os.sched_getaffinity(0)) == 1"
    one = judge.evaluate(TASK, text + BODY.format(init=init, call=call))
    assert one.status is Status.CORRECT, one.message
    assert one.calls > 9


@pytest.mark.parametrize("text", ["", "# triton\n"], ids=["imported", "precompiled"])
def test_no_program_runs_while_another_judge_measures(judge: Judge, text: str) -> None:
    """It could slow down the other's reference while the other's candidate is frozen, as the two could agree."""
    found: list[Evaluation] = []
    thread = threading.Thread(target=lambda: found.append(judge.evaluate(TASK, f"{text}raise ValueError")))
    with lease.lease(lease.core_name(judge.core)):
        thread.start()
        thread.join(3.0)
        assert thread.is_alive()
    thread.join()
    assert [one.status for one in found] == [Status.BUILD_ERROR]


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("# triton\nraise ValueError('no')\n", Status.BUILD_ERROR),
        ("# triton\nclass Other: pass\n", Status.NO_CODE),
        (COMPILER + BODY.format(init="raise ValueError", call="pass"), Status.RUNTIME_ERROR),
        pytest.param(COMPILER + BODY.format(init="time.sleep(2)", call="pass"), Status.TIMEOUT, marks=pytest.mark.slow),
        pytest.param(COMPILER + BODY.format(init="os._exit(0)", call="pass"), Status.CRASH, marks=pytest.mark.slow),
    ],
    ids=["import", "no class", "constructor", "slow", "end"],
)
def test_a_precompilation_that_fails_decides_nothing_beyond_the_import(
    judge: Judge, source: str, status: Status
) -> None:
    one = judge.evaluate(TASK, source)
    assert one.status is status, one.message


@pytest.mark.slow
def test_a_build_counts_though_the_program_refuses_the_made_up_inputs(judge: Judge) -> None:
    call = "compiled()\n        if not index.any():\n            raise ValueError('expected a permutation')"
    one = judge.evaluate(TASK, COMPILER + BODY.format(init="pass", call=call))
    assert one.status is Status.CORRECT, one.message
    assert one.seconds.build_s > 1.0
    assert one.seconds.warmup_s < 0.9


@pytest.mark.parametrize(("end", "kept"), [("raise MemoryError", True), ("os._exit(0)", False)])
def test_compiled_files_are_kept_if_the_worker_lives(judge: Judge, end: str, kept: bool) -> None:
    case = judge._case(TASK, COMPILER + BODY.format(init="compiled()", call=end), "training")
    precompilation = judge._builder.precompilations.take(case, judge._pools.take(case), leased=False)
    assert precompilation is not None
    assert (precompilation.snapshot is not None) == kept
    if precompilation.snapshot is not None:
        assert [path.name for path in precompilation.snapshot.rglob("built")] == ["built"]
        judge._builder.folders.drop(precompilation.snapshot)


def test_nothing_stays_of_a_program_whose_second_import_fails(judge: Judge) -> None:
    again = COMPILER + "if os.path.exists(FILE):\n    raise ValueError('no')\n"
    one = judge.evaluate(TASK, again + BODY.format(init="compiled()", call="pass"))
    assert one.status is Status.BUILD_ERROR, one.message
    assert [path.name for path in judge._builder.folders._root.iterdir() if path.name.startswith("kept-")] == []


@pytest.mark.slow
def test_the_same_program_twice_in_a_batch_is_precompiled_twice(judge: Judge) -> None:
    job = (TASK, COMPILER + BODY.format(init="compiled()", call="pass") + "# twice\n")
    for one in judge.evaluate_many([job, job]):
        assert one.status is Status.CORRECT, one.message
        assert one.seconds.build_s > 1.0
        assert one.seconds.warmup_s < 0.9


def test_a_precompilation_reveals_nothing_of_the_judges_inputs(judge: Judge) -> None:
    """What it was called on is left in the build folder; a program that answers from there is wrong."""
    kept = (
        "path = FILE + '.pt'\n"
        "        if not os.path.exists(path):\n"
        "            os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        "            torch.save(x[index] * 2, path)\n"
        "        return torch.load(path)"
    )
    one = judge.evaluate(TASK, COMPILER + BODY.format(init="pass", call=kept))
    assert one.status is Status.WRONG_OUTPUT, one.message


def test_programs_with_nothing_to_compile_are_not_precompiled() -> None:
    assert not compiles("import torch\nclass ModelNew: pass\n")
    assert compiles("from torch.utils.cpp_extension import load_inline\n")
    assert compiles("@triton.jit\ndef kernel(): pass\n")
    assert compiles("model.compile(mode='reduce-overhead')")
    assert not compiles("import re\nWORD = re.compile('a')\n")


def test_baselines_that_compile_are_precompiled() -> None:
    for name in BASELINES:
        if name != "eager":
            assert compiles(program(name, REFERENCE)) == name.startswith("compile"), name
