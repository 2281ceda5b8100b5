"""What the judge checks of a GPU and its driver, as far as that can be tried without one."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cudal1_data import Task, load_task
from cudal1_env import doctor
from cudal1_env.calibration import load_spread
from cudal1_env.cli import main
from cudal1_env.doctor import Findings, GpuFindings, why_no_program_runs
from cudal1_env.errors import MachineError, TooLargeError
from cudal1_env.hardware import has_gpu
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.cpu import CpuDevice
from cudal1_env.judge.device.cuda.gpu import GpuFacts, gpu_facts, mps_runs
from cudal1_env.judge.device.cuda.nvml import Nvml
from cudal1_env.judge.measure.headroom import memory_missing, usual_memory
from cudal1_env.judge.measure.timing.trials import Trials
from cudal1_env.records import Evaluation, Status
from cudal1_env.stats import DEFAULT_SPREAD, TrialSamples
from cudal1_worker.sandbox import Spec
from hypothesis import given
from hypothesis import strategies as st

GIB = 1 << 30
BYTES = st.integers(0, 1 << 40)
HEAD = "import torch\nimport torch.nn as nn\n"
ADD = Task(
    id="file/add",
    name="add",
    level=1,
    origin="file",
    source=f"{HEAD}class Model(nn.Module):\n    def forward(self, a, b):\n        return a * 2 + b\n"
    "def get_inputs():\n    return [torch.randn(256, 512), torch.randn(256, 512)]\n"
    "def get_init_inputs():\n    return []\n",
)
RIGHT = f"{HEAD}class ModelNew(nn.Module):\n    def forward(self, a, b):\n        return torch.add(b, a, alpha=2)\n"
FAILS = f"{HEAD}class ModelNew(nn.Module):\n    def forward(self, a, b):\n        raise ValueError('no')\n"
ENDS = f"{HEAD}class ModelNew(nn.Module):\n    def forward(self, a, b):\n        import os\n        os._exit(0)\n"

WHOLE = GpuFacts(
    name="NVIDIA H200",
    uuid="00-aa",
    driver="580.1",
    cuda=(13, 0),
    compute_mode="default",
    mig=False,
    mps=False,
    memory_bytes=140 * GIB,
    level2_bytes=60 << 20,
    bandwidth_gb_s=4814.3,
    foreign_processes=0,
)


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_which_driver_is_needed() -> None:
    with pytest.raises(MachineError, match=r"^torch finds no NVIDIA GPU with a driver for CUDA [\d.]+ or later; "):
        gpu_facts()


def test_a_gpu_with_good_settings_is_not_refused() -> None:
    assert WHOLE.obstacles == []
    assert "BUSY" not in "\n".join(WHOLE.text())
    assert "BUSY: 2 foreign processes" in "\n".join(WHOLE.model_copy(update={"foreign_processes": 2}).text())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mps": True}, r"multi-process service \(MPS\) to be off.*stop it with"),
        ({"compute_mode": "exclusive process"}, "compute mode `default`.*nvidia-smi -c DEFAULT"),
        ({"mig": True}, "whole GPU.*nvidia-smi -mig 0"),
        ({"cuda": (12, 6), "driver": "560.35"}, "CUDA 12.8 or later, driver 560.35 is of CUDA 12.6; install"),
    ],
)
def test_each_obstacle_is_a_sentence_that_says_what_to_do(change: dict[str, object], sentence: str) -> None:
    (found,) = GpuFacts.model_validate({**WHOLE.model_dump(), **change}).obstacles
    with pytest.raises(MachineError, match=sentence):
        raise MachineError(found)


def test_the_multi_process_service_is_found_by_its_processes(tmp_path: Path) -> None:
    for pid, name in enumerate(("bash", "nvidia-smi", "python")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    (tmp_path / "7").mkdir()  # it has just ended
    (tmp_path / "self").mkdir()
    assert not mps_runs(tmp_path)
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "comm").write_text("nvidia-cuda-mps\n")
    assert mps_runs(tmp_path)


@pytest.mark.skipif(has_gpu(), reason="needs a machine without an NVIDIA GPU")
def test_a_gpu_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(MachineError, match="torch finds no NVIDIA GPU.*use device='cpu'"):
        Judge(JudgeSettings(device="cuda"))


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_hidden_gpu_is_none(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert not has_gpu()


def test_workers_find_the_judges_gpu_and_no_other(tmp_path: Path) -> None:
    for name in ("null", "nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    shared = ["nvidia-caps", "nvidia-uvm", "nvidiactl"]
    folder = str(tmp_path)
    assert Spec(gpus=("nvidia1",)).nvidia_nodes(folder) == sorted([*shared, "nvidia1"])
    assert Spec().nvidia_nodes(folder) == sorted([*shared, "nvidia0", "nvidia1", "nvidia10"])
    assert Spec.from_json(Spec(gpus=("nvidia1",)).to_json()).gpus == ("nvidia1",)


# --- health after a candidate --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_faulty_device_is_an_error_after_the_candidate_was_judged(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "computes", lambda self: False)
    for source in (RIGHT, FAILS):
        with pytest.raises(MachineError, match="incorrect sum"):
            judge.evaluate(ADD, source)
    monkeypatch.undo()
    assert judge.evaluate(ADD, RIGHT).status is Status.CORRECT


def test_what_the_device_itself_raises_is_the_machines_fault(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(RuntimeError):
        pass

    def lost(self: CpuDevice) -> None:
        raise Lost("it has fallen off the bus")

    monkeypatch.setattr(CpuDevice, "faults", (Lost,))
    monkeypatch.setattr(CpuDevice, "settle", lost)
    with pytest.raises(MachineError, match="Lost: it has fallen off the bus; start a new process"):
        judge.evaluate(ADD, RIGHT)
    monkeypatch.undo()
    assert judge.evaluate(ADD, RIGHT).status is Status.CORRECT


# --- room for the judge --------------------------------------------------------------------------------------------


@given(st.none() | BYTES, BYTES)
def test_only_a_candidate_that_holds_the_missing_memory_is_to_blame(held: int | None, needs: int) -> None:
    text = memory_missing(GIB, held, usual_memory(needs))
    assert (text is None) == (held is not None and held <= 2 * GIB + 3 * needs)


@pytest.mark.parametrize(
    ("used", "held"),
    [
        ({os.getpid(): 9, 1: 5, 2: 3, 3: 7}, 8),
        ({os.getpid(): 9, 3: 7}, 0),
        ({os.getpid(): 9, 1: None}, None),
        ({1: 5}, None),
    ],
    ids=["two of a worker's processes", "none of them", "memory is not told", "this process is not named"],
)
def test_the_driver_tells_what_a_worker_s_processes_hold(used: dict[int, int | None], held: int | None) -> None:
    running = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in used.items()]
    driver = SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=lambda handle: running)
    nvml = cast("Nvml", SimpleNamespace(_nvml=driver, _handle=None))
    assert Nvml.process_bytes(nvml, {1, 2}) == held


def evaluate_with_free(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, free: Iterator[int], source: str = RIGHT
) -> Evaluation:
    for key in [key for key in judge._pools if key[0] != ADD.id]:
        judge._pools.retire(key)  # beside other tasks' inputs it would be measured once more, without them
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda self: next(free))
    return judge.evaluate(ADD, source)


@pytest.mark.slow
def test_a_candidate_that_takes_the_device_for_itself_is_out_of_memory(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "process_bytes", lambda self, pids: 75 * GIB)
    one = evaluate_with_free(judge, monkeypatch, itertools.repeat(GIB))
    assert one.status is Status.OUT_OF_MEMORY
    assert "holds 75 GiB of GPU memory and leaves 1 GiB of it free; judge and reference need 4 GiB" in one.message
    monkeypatch.setattr(CpuDevice, "process_bytes", lambda self, pids: GIB)
    assert evaluate_with_free(judge, monkeypatch, itertools.repeat(GIB)).status is Status.CORRECT
    monkeypatch.undo()
    assert evaluate_with_free(judge, monkeypatch, itertools.repeat(100 * GIB)).status is Status.CORRECT


def test_a_device_that_fails_for_want_of_memory_is_the_candidates_fault(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: CpuDevice) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(CpuDevice, "faults", (MemoryError,))
    monkeypatch.setattr(CpuDevice, "settle", full)
    free = itertools.chain([100 * GIB] * 4, itertools.repeat(GIB))
    assert evaluate_with_free(judge, monkeypatch, free).status is Status.OUT_OF_MEMORY


@pytest.mark.parametrize(("held", "blamed"), [(50 * GIB, True), (GIB, False)])
def test_a_program_that_leaves_no_memory_for_the_reference_is_to_blame(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, *, held: int, blamed: bool
) -> None:
    class Full(RuntimeError):
        pass

    def full(self: CpuDevice, *needs: Any) -> Any:
        raise Full("out of memory")

    judge.evaluate(ADD, RIGHT)
    monkeypatch.setattr(CpuDevice, "faults", (Full,))
    monkeypatch.setattr(CpuDevice, "out_of_room", lambda self, error: isinstance(error, Full))
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda self: 0)
    monkeypatch.setattr(CpuDevice, "process_bytes", lambda self, pids: held)
    monkeypatch.setattr(CpuDevice, "memory", full)
    if blamed:
        one = judge.evaluate(ADD, RIGHT)
        assert one.status is Status.OUT_OF_MEMORY
        assert "holds 50 GiB of GPU memory and leaves 0 GiB" in one.message
    else:
        with pytest.raises(TooLargeError):
            judge.evaluate(ADD, RIGHT)


@pytest.mark.slow
def test_a_program_that_takes_the_memory_and_ends_does_not_make_its_task_unusable(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raised(self: Trials, *args: Any) -> None:
        raise TooLargeError("the reference failed: out of memory")

    monkeypatch.setattr(Trials, "_construct_reference", raised)
    assert judge.evaluate(ADD, ENDS).status is Status.CRASH


# --- doctor --------------------------------------------------------------------------------------------------------


def test_a_program_runs_inside_the_sandbox(judge: Judge) -> None:
    assert why_no_program_runs(judge._builder) is None


def test_the_reason_why_no_program_runs_is_reported(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal1_env.doctor._PROGRAM", "class ModelNew:\n    def __init__(self): 1 / 0\n")
    reason = why_no_program_runs(judge._builder)
    assert reason == "RUNTIME_ERROR: ModelNew(...) failed: ZeroDivisionError: division by zero (line 2)"


@pytest.mark.skipif(has_gpu(), reason="needs a machine without an NVIDIA GPU")
def test_doctor_says_in_one_line_that_there_is_no_gpu() -> None:
    findings = doctor.examine()
    assert findings.gpu is None
    assert findings.device == "cpu"
    assert "gpu       none found: programs run on the CPU" in findings.text().splitlines()
    assert Findings.model_validate_json(findings.model_dump_json()) == findings


@pytest.mark.skipif(has_gpu(), reason="needs a machine without an NVIDIA GPU")
def test_doctor_reports_a_gpu_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.examine_gpu()
    assert found.facts is None
    assert found.text() == [f"gpu       REFUSED: {found.problem}"]
    assert "torch finds no NVIDIA GPU" in str(found.problem)
    refused = GpuFindings(problem="MPS", facts=WHOLE).text()
    assert refused[0] == "gpu       NVIDIA H200, GPU-00-aa"
    assert refused[-1] == "gpu       REFUSED: MPS"


@pytest.mark.slow
def test_a_calibration_is_kept_for_the_device_that_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(doctor, "_CALIBRATION_TASKS", 1)
    trials = [TrialSamples((1.0, 1.01, 1.0), (1.0, 1.0, factor)) for factor in (1.01, 1.0, 1.02, 1.01, 1.0)]
    monkeypatch.setattr(doctor, "measure_against_itself", lambda judge, task, count: trials)
    told: list[str] = []
    spread = doctor.calibrate(told.append)
    assert load_spread("cpu") == spread
    assert load_spread("cuda", "00-aa") == DEFAULT_SPREAD
    assert "kept in" in told[-1]
    trials[0] = TrialSamples((1.0, 1.0, 1.0), (90.0, 91.0, 90.0))
    with pytest.raises(MachineError, match=r"trials of the same code differ by a factor of 7\.\d; stop other programs"):
        doctor.calibrate(told.append)
    assert load_spread("cpu") == spread


def test_a_reference_is_measured_against_itself(judge: Judge) -> None:
    (trial, *_) = doctor.measure_against_itself(judge, load_task("starter/swish_chain"), 1)
    assert trial.pairs >= 2
    assert min(*trial.reference_ms, *trial.candidate_ms) > 0.0


def test_a_fault_of_the_commands_own_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: object) -> int:
        raise ZeroDivisionError("of our own")

    monkeypatch.setattr("cudal1_env.cli.Doctor.run", broken)
    monkeypatch.setattr(sys, "argv", ["cudal1-env", "doctor"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 70, "1 says that an attack was rewarded, or a wrong answer passed"
    assert "ZeroDivisionError: of our own" in capsys.readouterr().err
