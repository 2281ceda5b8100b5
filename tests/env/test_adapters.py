"""Trainers and benchmarks of other projects get verdicts through plain modules."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from cudal1_data import Suite, load_suite, load_task
from cudal1_data.hashes import digest
from cudal1_env.adapters import prompt_of
from cudal1_env.adapters.kernelbench import eval_kernel_against_ref, result_of, write_results
from cudal1_env.adapters.trl import environment_factory, speed_reward
from cudal1_env.env import CudaOptEnv
from cudal1_env.errors import MachineError, SettingsError
from cudal1_env.gate import AUDIT_FORM, AuditLine, TaskAudit
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.local import LocalEvaluator
from cudal1_env.records import PROTOCOL_VERSION
from cudal1_env.remote import RemoteEvaluator
from cudal1_env.reward import Rule
from doubles.evaluator import REFERENCE, RuleEvaluator, evaluation, program, suite
from env.services import serving
from task_programs import ADD

CHECKOUT = "CUDAL1_KERNELBENCH"
"""Environment variable with the folder of a checkout of KernelBench."""
ANALYSIS_NEEDS = ("pydra-config", "tabulate", "numpy", "torch", "python-dotenv", "tqdm", "openai", "litellm")
"""What KernelBench's analysis imports."""
VERIFIERS = "verifiers==0.4.0"
PAYS = """
import asyncio, sys, types
from cudal1_env.adapters.verifiers import CudaConfig, CudaTaskset
url, suite, reply = sys.argv[1:]
(task,) = CudaTaskset(CudaConfig(suite=suite, split="", url=url)).load()
print(asyncio.run(task.speed(types.SimpleNamespace(last_reply=reply))))
"""
"""What a taskset pays for a reply."""


def fenced(source: str) -> str:
    return f"Here it is.\n```python\n{source}```\n"


def test_a_trl_reward_is_the_measured_speed() -> None:
    evaluator = RuleEvaluator()
    logged: dict[str, float] = {}
    reward = speed_reward(evaluator, suite())
    completions = [fenced(program(2.0)), [{"role": "assistant", "content": fenced(program(3.0))}], "no program"]
    rewards = reward(completions=completions, task=["toy/add", "toy/scan", "toy/add"], log_metric=logged.__setitem__)
    assert rewards == [pytest.approx(1.96), pytest.approx(2.94), 0.0]
    assert evaluator.batches == [2]
    assert logged == {"correct": pytest.approx(2 / 3)}


def test_a_broken_machine_is_no_trl_reward() -> None:
    reward = speed_reward(RuleEvaluator(), suite())
    assert reward(completions=[[]], task=["toy/add"]) == [0.0]
    with pytest.raises(SettingsError, match="1 answers and 0 task ids; give the rows a column `task`"):
        reward(completions=["x"])
    with pytest.raises(MachineError):
        reward(completions=[program(1.0, "# broken machine")], task=["toy/add"])


def test_a_trl_environment_pays_its_best_attempt() -> None:
    environment = environment_factory(RuleEvaluator(), suite(), attempts=2)()
    environment.reset(task="toy/add", prompt="unused")
    assert environment.get_reward() == 0.0
    assert environment.submit(program(2.0)).startswith("CORRECT")
    assert "0 attempts left" in environment.submit("# status CRASH\nclass ModelNew: pass")
    assert environment.submit(program(9.0)) == "No attempts are left."
    assert environment.get_reward() == pytest.approx(1.96)
    environment.reset(task="toy/scan")
    assert environment.get_reward() == 0.0


@pytest.mark.parametrize("rule", get_args(Rule))
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("source", [program(3.0), program(0.5), "# status CRASH\nclass ModelNew: pass", "no program"])
def test_trl_pays_what_the_environment_pays(tmp_path: Path, source: str, marked: bool, rule: Rule) -> None:
    (tmp_path / "add.py").write_text(REFERENCE)
    tasks = load_suite(tmp_path, device="cpu")
    if marked:
        mark_all(tasks, tmp_path)
    paid = speed_reward(RuleEvaluator(), tasks, rule=rule)(completions=[source], task=[tasks[0].id])
    rollout = environment_factory(RuleEvaluator(), tasks, rule=rule)()
    rollout.reset(task=tasks[0].id)
    rollout.submit(source)
    with contextlib.closing(CudaOptEnv(tasks, evaluator=RuleEvaluator(), split=None, reward=rule)) as env:
        env.reset()
        assert env.step(source)[1] == rollout.get_reward() == paid[0]
    if source == program(3.0):
        assert (paid[0] == {"speedup": 1.0, "log": 0.0, "milestone": 1.0}[rule]) == marked


def mark_all(tasks: Suite, folder: Path) -> None:
    """Write an audit that marks every task of a folder."""
    lines = [
        AuditLine(
            protocol=PROTOCOL_VERSION,
            device="cpu",
            max_sets=8,
            suite=tasks.name,
            task=TaskAudit(name=one.id, sha256=digest(one.source), verdict="survivors", survivors=("zeros",), sets=1),
        )
        for one in tasks
    ]
    (folder / "audit.json").write_bytes(b"".join(AUDIT_FORM.write(line) + b"\n" for line in lines))


def test_the_kernelbench_function_answers_in_its_form() -> None:
    evaluator = RuleEvaluator()
    timed = eval_kernel_against_ref(
        REFERENCE, program(2.0), measure_performance=True, num_perf_trials=100, evaluator=evaluator
    )
    assert (timed.compiled, timed.correctness, timed.runtime, timed.ref_runtime) == (True, True, 3.0, 6.0)
    untimed = eval_kernel_against_ref(REFERENCE, program(2.0), 42, 5, evaluator=evaluator, verbose=False)
    assert (untimed.correctness, untimed.runtime) == (True, -1.0)
    failed = eval_kernel_against_ref(REFERENCE, "# status BUILD_ERROR\nclass ModelNew: pass", evaluator=evaluator)
    assert (failed.compiled, failed.correctness) == (False, False)
    assert failed.metadata["status"] == "BUILD_ERROR"
    with pytest.raises(SettingsError, match="precision"):
        eval_kernel_against_ref(REFERENCE, program(), precision="torch.float16", evaluator=evaluator)


def test_the_kernelbench_function_takes_an_answer_without_a_program() -> None:
    with LocalEvaluator("cpu") as evaluator:
        nothing = eval_kernel_against_ref(ADD.source, None, evaluator=evaluator)
    assert (nothing.compiled, nothing.correctness) == (False, False)
    assert (nothing.metadata["status"], nothing.metadata["message"]) == (
        "NO_CODE",
        "the program defines no `ModelNew`",
    )


def test_the_kernelbench_function_asks_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(allow_tasks=True) as service:
        monkeypatch.setenv("CUDAL1_URL", service.url)
        with contextlib.closing(RemoteEvaluator(service.url)) as remote:
            assert eval_kernel_against_ref(REFERENCE, program(2.0), evaluator=remote).correctness


def test_kernelbench_files_pair_by_position(tmp_path: Path) -> None:
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    names = ["1_Square.py", "2_Standard.py", "10_Tensor.py"]
    for name in names:
        (level / name).write_text(REFERENCE)
    records = [
        evaluation("kernelbench/level1/10", speedup=2.0),
        evaluation("kernelbench/level1/1@N=8", speedup=3.0),
        evaluation("kernelbench/level2/2", speedup=4.0),
    ]
    write_results(records, level, tmp_path / "runs" / "mine", tmp_path / "results" / "timing" / "H100" / "mine.json")
    results = json.loads((tmp_path / "runs/mine/eval_results.json").read_text())
    baseline = json.loads((tmp_path / "results/timing/H100/mine.json").read_text())["level1"]
    assert list(results) == ["1", "2", "10"]
    assert list(baseline) == names
    assert results["2"] == [
        {"sample_id": 0, "compiled": False, "correctness": False, "metadata": {}, "runtime": -1.0, "runtime_stats": {}}
    ]
    # As the analysis of KernelBench computes it.
    correct = np.array([one[0]["correctness"] for one in results.values()])
    speed = np.array([one["mean"] for one in baseline.values()]) / np.array(
        [one[0]["runtime"] for one in results.values()]
    )
    assert speed[correct].tolist() == [pytest.approx(3.0), pytest.approx(2.0)]


def test_a_record_keeps_what_kernelbench_has_no_field_for() -> None:
    metadata = result_of(evaluation(speedup=2.0)).metadata
    assert metadata["protocol"]
    assert metadata["message"]


def test_a_prompt_holds_the_reference() -> None:
    assert REFERENCE in prompt_of(suite()[0])


@pytest.mark.slow
def test_the_analysis_of_kernelbench_reads_records_of_the_cpu(tmp_path: Path) -> None:
    """In an environment of its own, with a checkout that CUDAL1_KERNELBENCH names."""
    checkout = Path(os.environ.get(CHECKOUT, ""))
    script = checkout / "scripts" / "benchmark_eval_analysis.py"
    if not script.is_file():
        pytest.skip(f"{CHECKOUT} names no checkout of KernelBench")
    isolated = ["uv", "run", "--isolated", "--no-project", "--python", "3.11"]
    isolated += [part for package in ANALYSIS_NEEDS for part in ("--with-editable", package)]
    program = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"
    with Judge(JudgeSettings(device="cpu")) as judge:
        records = [
            judge.evaluate(load_task(f"{checkout}:level1/{task}@batch_size=8"), program.format(text))
            for task, text in (("23", "torch.softmax(x, 1)"), ("19", "torch.relu(x) + 1"))
        ]
    write_results(records, checkout / "KernelBench" / "level1", tmp_path / "runs" / "mine", tmp_path / "baseline.json")
    words = ["run_name=mine", "level=1", "hardware=cpu", "baseline=mine", f"eval_results_dir={tmp_path / 'runs'}"]
    words += [f"baseline_file={tmp_path / 'baseline.json'}", f"output_file={tmp_path / 'analysis.json'}"]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [*isolated, "python", str(script), *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Aligned 100 problems for analysis" in done.stdout
    found = json.loads((tmp_path / "analysis.json").read_text())
    assert (found["total_eval"], found["compiled_count"], found["correct_count"]) == (100, 2, 1)
    candidate, reference = records[0].candidate, records[0].reference
    assert candidate is not None
    assert reference is not None
    assert found["geo_mean_speedup"] == pytest.approx(reference.median_ms / candidate.median_ms)


@pytest.mark.slow
def test_verifiers_validates_the_taskset(repository: Path, tmp_path: Path) -> None:
    """In an environment of its own, because the pins of verifiers do not fit ours."""
    if shutil.which("uv") is None:
        pytest.skip("needs uv, for an environment with verifiers")
    packages = [f"{repository}/packages/{name}" for name in ("cudal1-data", "cudal1-env")]
    isolated = ["uv", "run", "--isolated", "--no-project", "--python", "3.11", "--with", VERIFIERS]
    isolated += [part for package in packages for part in ("--with-editable", package)]
    probe = subprocess.run([*isolated, "python", "-c", "import verifiers.v1"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"{VERIFIERS} cannot be installed here: {probe.stderr[-200:]}")
    (tmp_path / "tasks" / "level1").mkdir(parents=True)
    (tmp_path / "tasks" / "level1" / "1_Add.py").write_text(REFERENCE)
    with serving(allow_tasks=True) as service:
        taskset = ["--taskset.url", service.url, "--taskset.suite", str(tmp_path / "tasks"), "--taskset.split", ""]
        command = [
            *isolated,
            "vf-validate",
            "cudal1_taskset",
            *taskset,
            "-o",
            str(tmp_path / "out"),
            "--runtime.type",
            "subprocess",
        ]
        environment = os.environ | {"PYTHONPATH": str(repository / "examples")}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        mark_all(load_suite(tmp_path / "tasks", device="cpu"), tmp_path / "tasks")
        pays = [*isolated, "python", "-c", PAYS, service.url, str(tmp_path / "tasks"), program(3.0)]
        paid = subprocess.run(pays, capture_output=True, text=True, timeout=280)
        judged = [source for judge in service.judges for _, source in judge.jobs]
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = (tmp_path / "out").rglob("summary.json")
    assert "valid" in summary.read_text()
    assert any("ModelNew = Model" in source for source in judged)
    assert paid.stdout.strip() == "1.0", paid.stderr


@pytest.mark.slow
def test_trl_trains_with_the_reward_and_makes_a_tool_of_the_environment(tmp_path: Path) -> None:
    from cudal1_agent.policies.embedded import make_embedded
    from cudal1_agent.settings import EmbeddedModel
    from cudal1_agent.stages.trl import arguments
    from datasets import Dataset
    from doubles.training import suite as tasks
    from transformers.utils.chat_template_utils import get_json_schema
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    environment = environment_factory(RuleEvaluator(), suite())()
    tools = [name for name, one in vars(type(environment)).items() if callable(one) and not name.startswith("_")]
    assert sorted(tools) == ["get_reward", "reset", "submit"]
    schema = get_json_schema(environment.submit)["function"]
    assert "ModelNew" in schema["parameters"]["properties"]["program"]["description"]

    train = tuple(tasks().train)
    shape = EmbeddedModel(vocabulary=400, hidden=32, layers=1, heads=2, intermediate=64, context=256)
    table = {"max_steps": 1, "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 4}
    evaluator = RuleEvaluator()
    trainer = GRPOTrainer(
        model=str(make_embedded(tmp_path / "model", train, shape, seed=0)),
        reward_funcs=speed_reward(evaluator, tasks()),
        args=arguments(GRPOConfig, table, folder=tmp_path / "trainer", seed=0, use_cpu=True),
        train_dataset=Dataset.from_list([{"prompt": "write", "task": task.id} for task in train]),
    )
    trainer.train()
    assert "rewards/speed/mean" in str(trainer.state.log_history)
