"""The machine's side of judging on a GPU: roofline, health, room, several GPUs. Needs one, or two where said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest
import torch
from cudal1_data import Task, load_task
from cudal1_env.campaigns.audit.judge import AuditJudge
from cudal1_env.doctor import as_candidate, examine_gpu
from cudal1_env.gate import AuditReport, InputSensitivity, TaskAudit, reference_sha256
from cudal1_env.hardware import has_gpu
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.cuda.device import CudaDevice
from cudal1_env.judge.device.roofline import Roofline
from cudal1_env.records import Evaluation, Status

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")]

NODES = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia[0-9]+", name)]
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cuda", warmup_timeout_s=15.0)) as one:  # a kernel that never ends is waited for
        yield one


@pytest.fixture(scope="module")
def mish() -> Task:
    return load_task("starter/softplus_mish", device="cuda")


def forward(body: str, *, top: str = "", init: str = "pass") -> str:
    return (
        f"{HEAD}{top}\n\nclass ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n\n    def forward(self, x):\n        {body}\n"
    )


def free_for_others() -> int:
    """Return the GPU memory that this process leaves to others and they do not use."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()


def device_of(judge: Judge) -> CudaDevice:
    assert isinstance(judge.device, CudaDevice)
    return judge.device


# --- the roofline -----------------------------------------------------------------------------------------------------


def test_no_copy_is_faster_than_the_memory_and_a_large_one_nearly_as_fast(judge: Judge) -> None:
    size = 1 << 30
    source, target = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    best_ms = float("inf")
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        best_ms = min(best_ms, start.elapsed_time(end))
    roofline = device_of(judge).roofline([size], size, [1.0])
    assert roofline is not None
    assert 0.6 < roofline.bound_ms / best_ms < 1.0


def test_a_record_contains_the_roofline_and_no_reference_is_below_it(judge: Judge) -> None:
    tasks = [
        load_task(f"starter/{name}", device="cuda")
        for name in ("softplus_mish", "rms_norm", "outer_sum", "matmul_bias_gelu")
    ]
    with AuditJudge(JudgeSettings(device="cuda")) as gate:
        shares_found = [gate.input_sensitivity(task) for task in tasks]
    for task, found in zip(tasks, shares_found, strict=True):
        shares = tuple(
            InputSensitivity(tested=tested, influential=k, share=k / max(tested, 1)) for tested, k, _ in found
        )
        entry = TaskAudit(name=task.id, sha256=reference_sha256(task), verdict="sound", sets=1, inputs=shares)
        judge.learn(AuditReport(suite="starter", device="cuda", max_sets=1, tasks=(entry,)))
        one = judge.evaluate(task, as_candidate(task))
        assert one.status is Status.CORRECT, one.message
        assert one.roofline_ms is not None
        assert one.roofline_fraction is not None
        assert 0.0 < one.roofline_fraction < 1.1, (task.id, one.roofline_fraction)


def test_a_latency_below_the_roofline_is_impossible(judge: Judge, mish: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Task(
        id="file/slow",
        name="slow",
        level=1,
        origin="file",
        source=mish.source.replace("class Model(", "class Slowed(")
        + "\n\nclass Model(Slowed):\n    def forward(self, *inputs):\n        for _ in range(8):\n"
        "            out = super().forward(*inputs)\n        return out\n",
    )
    once = mish.source + "\n\nModelNew = Model\n"
    plain = judge.evaluate(slow, once)
    assert plain.status is Status.CORRECT, plain.message
    assert plain.reference is not None
    roofline = Roofline(1, 0.6 * plain.reference.median_ms)

    def known(self: CudaDevice, input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float]) -> Roofline:
        return roofline

    monkeypatch.setattr(CudaDevice, "roofline", known)
    one = judge.evaluate(slow, once)
    assert one.status is Status.IMPOSSIBLE, one.message
    assert one.speedup is not None


def test_the_gate_measures_input_sensitivity_on_a_gpu() -> None:
    with AuditJudge(JudgeSettings(device="cuda")) as gate:
        found = gate.input_sensitivity(load_task("starter/triangular_matmul", device="cuda"))
        assert [tested for tested, _, _ in found] == [32, 32]
        assert all(6 <= influential <= 26 for _, influential, _ in found)


# --- bad programs: right status, next evaluation unaffected, nothing held ------------------------------------------

WILD = "torch.cuda._compile_kernel(SOURCE, 'wild')(grid=(1, 1, 1), block=(1, 1, 1), args=(x,)); return x.clone()"
KERNELS = '''
SOURCE = """
extern "C" __global__ void wild(float* x) { x[1ll << 44] = 1.0f; }
extern "C" __global__ void forever(volatile float* x) { while (x[0] != 1e30f) { } }
"""
'''


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (forward(WILD, top=KERNELS), {Status.RUNTIME_ERROR, Status.CRASH}),
        (
            forward("torch._assert_async(torch.zeros((), device='cuda')); return x.clone()"),
            {Status.RUNTIME_ERROR, Status.CRASH},
        ),
        (forward(WILD.replace("wild", "forever"), top=KERNELS), {Status.TIMEOUT}),
        (forward("return torch.empty(1 << 50, device='cuda')"), {Status.OUT_OF_MEMORY}),
        (
            forward(
                "return x.clone()",
                init="self.hog = torch.empty(max(1, torch.cuda.mem_get_info()[0] - (1 << 30)), dtype=torch.uint8, "
                "device='cuda')",
            ),
            {Status.OUT_OF_MEMORY},
        ),
        (
            forward(
                "return x.clone()",
                top="from cuda.bindings import driver",
                init="self.hog = driver.cuMemAlloc(max(1, torch.cuda.mem_get_info()[0] - (1 << 30)))",
            ),
            {Status.OUT_OF_MEMORY},
        ),
        (
            forward(
                "return x.clone()",
                top="HOG = torch.empty(max(1, torch.cuda.mem_get_info()[0] - (1 << 28)), dtype=torch.uint8, "
                "device='cuda')",
            ),
            {Status.OUT_OF_MEMORY},
        ),
        (
            forward("import socket; socket.create_connection(('127.0.0.1', 80)); return x.clone()"),
            {Status.RUNTIME_ERROR},
        ),
        (forward("open('/proc/1/environ').read(); import os; os._exit(0)"), {Status.CRASH, Status.RUNTIME_ERROR}),
    ],
    ids=[
        "wild write",
        "device assert",
        "forever",
        "huge",
        "hog",
        "hog of the driver's",
        "hog at its import",
        "socket",
        "proc",
    ],
)
def test_a_bad_program_leaves_others_alone(judge: Judge, mish: Task, source: str, status: set[Status]) -> None:
    before = judge.evaluate(mish, as_candidate(mish))
    free_bytes = free_for_others()
    one = judge.evaluate(mish, source)
    assert one.status in status, (one.status, one.message, one.stderr)
    assert free_bytes - free_for_others() < 512 << 20
    after = judge.evaluate(mish, as_candidate(mish))
    assert after.status is Status.CORRECT, after.message
    assert before.reference is not None
    assert after.reference is not None
    assert 0.8 < after.reference.median_ms / before.reference.median_ms < 1.25


def test_the_check_that_the_gpu_computes_takes_milliseconds(judge: Judge) -> None:
    device = device_of(judge)
    assert device.computes()
    began = time.monotonic()
    assert device.computes()
    assert time.monotonic() - began < 0.02


def test_a_program_that_keeps_much_memory_and_leaves_enough_is_correct(judge: Judge, mish: Task) -> None:
    source = mish.source + (
        "\n\nclass ModelNew(Model):\n    def __init__(self):\n        super().__init__()\n"
        "        self.hog = torch.empty(torch.cuda.mem_get_info()[0] // 3, dtype=torch.uint8, device='cuda')\n"
    )
    one = judge.evaluate(mish, source)
    assert one.status is Status.CORRECT, one.message


LARGE = """import torch
import torch.nn as nn

ROWS = 131072


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn(ROWS, 4096)]


def get_init_inputs():
    return []
"""


@pytest.mark.skipif(
    has_gpu() and torch.cuda.get_device_properties(0).total_memory < 100 << 30, reason="needs 100 GiB of GPU memory"
)
def test_two_gigabytes_of_inputs_and_of_outputs_fit(judge: Judge) -> None:
    task = Task(id="file/large", name="large", level=1, origin="file", source=LARGE)
    for _ in range(2):
        one = judge.evaluate(task, as_candidate(task))
        assert one.status is Status.CORRECT, one.message
    judge.retire()
    assert device_of(judge).free_bytes() > 64 << 30


# --- doctor, several GPUs ------------------------------------------------------------------------------------------


def test_doctor_finds_the_gpu_fit() -> None:
    found = examine_gpu()
    assert found.problem is None
    assert found.facts is not None
    assert found.facts.obstacles == []
    assert found.facts.memory_bytes > 1 << 30
    assert found.facts.level2_bytes > 1 << 20
    assert found.facts.bandwidth_gb_s > 100
    assert found.text()[-1] == "gpu       programs run on it inside the sandbox"


def test_a_program_sees_one_gpu(judge: Judge, mish: Task) -> None:
    count = "len([name for name in os.listdir('/dev') if re.fullmatch('nvidia[0-9]+', name)])"
    body = f"if torch.cuda.device_count() != 1 or {count} != 1: raise ValueError('several')\n"
    one = judge.evaluate(mish, forward(f"{body}        return x.clone()", top="import os, re"))
    assert one.status is Status.WRONG_OUTPUT, one.message


JUDGE = """
import sys
from cudal1_data import load_task
from cudal1_env.doctor import as_candidate
from cudal1_env.judge import Judge, JudgeSettings

task = load_task("starter/softplus_mish", device="cuda")
with Judge(JudgeSettings(device="cuda")) as judge:
    for _ in range(5):
        print(judge.evaluate(task, as_candidate(task)).model_dump_json(), judge.device.identity, flush=True)
"""


@pytest.mark.skipif(len(NODES) < 2, reason="needs two NVIDIA GPUs")
def test_judges_of_two_gpus_work_side_by_side() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    judges = [
        subprocess.Popen(
            [sys.executable, "-c", JUDGE],
            env=dict(os.environ, PYTHONPATH=path, CUDA_VISIBLE_DEVICES=str(k)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    found: list[tuple[set[str], list[Evaluation]]] = []
    for one in judges:
        lines = [line.rsplit(" ", 1) for line in one.communicate(timeout=280)[0].splitlines()]
        evaluations = [Evaluation.model_validate(json.loads(text)) for text, _ in lines]
        found.append(({identity.strip() for _, identity in lines}, evaluations))
    assert [one.returncode for one in judges] == [0, 0]
    assert len(found[0][0] | found[1][0]) == 2
    cores = [{one.machine.core for one in evaluations if one.machine is not None} for _, evaluations in found]
    assert len(cores[0] | cores[1]) == 2
    for _, evaluations in found:
        assert len(evaluations) == 5
        assert all(one.status is Status.CORRECT for one in evaluations)
        assert max(one.seconds.wait_s for one in evaluations) < 1.0, "they do not wait for each other"
