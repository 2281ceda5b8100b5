"""The task gate: what an audit finds on tiny tasks with a real judge, and what the environment makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cudal1_data import Suite, Task, load_suite
from cudal1_env import CudaOptEnv, CudaOptVectorEnv
from cudal1_env.campaigns.audit import audit_file, audit_task, audit_tasks
from cudal1_env.campaigns.audit.judge import AuditJudge
from cudal1_env.campaigns.audit.mutants import Subject, is_equivalent, left_by_worker, makers
from cudal1_env.campaigns.audit.run import MAX_SETS
from cudal1_env.campaigns.parts import part_of
from cudal1_env.commands.audit import Audit
from cudal1_env.commands.campaign import Machine
from cudal1_env.errors import TOO_LARGE, RecordError, SettingsError
from cudal1_env.gate import AuditLine, AuditReport, TaskAudit, find_audit, load_audit, reference_sha256, report_of
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.mutants import rounded
from cudal1_env.records import PROTOCOL_VERSION
from cudal1_env.reward import LOG_FLOOR
from doubles.evaluator import RuleEvaluator, program, suite, task
from env.services import serving

CPU = Machine(device="cpu")


REFERENCE = """\
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, y):
        return {forward}


def get_inputs():
    return [torch.randn(48, 32), torch.randn(48, 32)]


def get_init_inputs():
    return []
"""


WIDE = "torch.tanh(x + y) * 4e-7 + 1.0"
"""A reference whose answer moves by less than eight units in its last place."""


def reference(forward: str, init: str = "pass") -> Task:
    source = REFERENCE.format(forward=forward, init=init)
    return Task(id="file/small", source=source, name="small", level=1, origin="file")


@pytest.fixture(scope="module")
def judge() -> Iterator[AuditJudge]:
    with AuditJudge() as one:
        yield one


# --- mutants ---


def test_every_mutant_differs_from_an_ordinary_answer() -> None:
    random = np.random.default_rng(0)
    right, other, x = (random.normal(size=48) for _ in range(3))
    expected = Expected((6, 8), "float32", aliases=False)
    subject = Subject(right, expected, float(abs(right).max()), (x.reshape(6, 8), x), other, random)
    found = makers(subject)
    assert list(found) == [
        "zeros",
        "constant",
        "another set's answer",
        "scaled by 0.97",
        "scaled by 1.01",
        "one element wrong",
        "swapped rows",
        "input 0",
        "rounded to bfloat16",
        "rounded to float16",
        "NaN at one place",
    ]
    for name, make in found.items():
        mutant = make()
        assert mutant is not None
        left = left_by_worker(mutant, expected)
        assert (left.shape, left.dtype) == ((48,), np.float32)
        assert not is_equivalent(left, subject), name
    assert is_equivalent(left_by_worker(right, expected), subject)
    assert sorted(found["swapped rows"]()) == sorted(right)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_worker_rounds_anyway_is_no_mutant(dtype: str) -> None:
    """Subnormal numbers of float16 err by more than a unit in the last place of their own, which is harmless."""
    random = np.random.default_rng(0)
    right = random.normal(size=64)
    right[::8] *= 1e-7
    subject = Subject(right, Expected((64,), dtype, aliases=False), float(abs(right).max()), (), right, random)
    found = makers(subject)
    assert [name for name in found if name.startswith("rounded")] == ["rounded to bfloat16"] * (dtype == "float16")
    assert is_equivalent(left_by_worker(right, subject.expected), subject)
    for name in ("scaled by 1.01", "zeros", "one element wrong"):
        mutant = found[name]()
        assert mutant is not None
        assert not is_equivalent(left_by_worker(mutant, subject.expected), subject), name


def test_mutants_of_integers_and_of_single_numbers() -> None:
    random = np.random.default_rng(0)
    right = np.array([0, 1, 1, 0, 1])
    flags = Subject(right, Expected((5,), "bool", aliases=False), 1.0, (), 1 - right, random)
    for name in ("zeros", "constant", "one element wrong"):
        mutant = makers(flags)[name]()
        assert mutant is not None
        assert left_by_worker(mutant, flags.expected).dtype == np.bool_
        assert not is_equivalent(left_by_worker(mutant, flags.expected), flags)
    assert "rounded to float16" not in makers(flags)
    number = Subject(np.array([3.0]), Expected((), "float32", aliases=False), 3.0, (), np.array([4.0]), random)
    assert makers(number)["swapped rows"]() is None
    assert makers(number)["constant"]() is None


def test_rounding_to_bfloat16_is_torchs() -> None:
    import torch

    values = np.concatenate(
        [np.random.default_rng(0).normal(size=4000) * 10.0 ** np.arange(-40, 40, 0.02), [0.0, 3e38, 3.4e38]]
    )
    assert np.array_equal(rounded(values, "bfloat16"), torch.from_numpy(values).float().bfloat16().float().numpy())


# --- tasks ---


@pytest.mark.slow
def test_a_sound_task_lets_nothing_through(judge: AuditJudge) -> None:
    linear = reference("self.norm(self.lin(x)) + y", "self.lin = nn.Linear(32, 32); self.norm = nn.LayerNorm(32)")
    one = audit_task(judge, linear)
    assert (one.verdict, one.survivors, one.equivalents) == ("sound", (), ())
    assert one.sha256 == reference_sha256(linear)
    assert 1 <= one.sets < MAX_SETS, "expected to end when everything is caught"
    assert audit_task(judge, linear) == one, "expected an audit to repeat itself"


@pytest.mark.slow
def test_a_checker_with_a_wide_tolerance_is_marked(judge: AuditJudge) -> None:
    one = audit_task(judge, reference(WIDE))
    assert one.verdict == "survivors"
    assert {"constant", "another set's answer", "swapped rows"} <= set(one.survivors)
    assert not {"zeros", "scaled by 1.01"} & {*one.survivors, *one.equivalents}
    assert (one.sets, one.distributions) == (MAX_SETS, ("own", "shifted", "heavy", "needle"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_outputs_of_half_precision_let_no_mutant_through(judge: AuditJudge, dtype: str) -> None:
    one = audit_task(judge, reference(f"(x + y).to(torch.{dtype})"))
    assert (one.verdict, one.survivors, one.equivalents) == ("sound", (), ())


@pytest.mark.slow
def test_mutants_equal_to_the_answer_are_counted_apart(judge: AuditJudge) -> None:
    one = audit_task(judge, reference("torch.relu(x) * 0"))
    unseen = "step 1 (relu), if it was another call's (line 9)"
    assert one.survivors == ("constant output 0", unseen), "expected no mutant beside them"
    assert {"zeros", "another set's answer", "swapped rows", "scaled by 1.01"} <= set(one.equivalents)


@pytest.mark.slow
def test_each_of_several_outputs_is_tried(judge: AuditJudge) -> None:
    one = audit_task(judge, reference(f"(x + y, {WIDE}, x > y)"))
    mutants = {name.split(" (")[1] for name in one.survivors if name.endswith(")") and "left out" not in name}
    assert mutants == {"output 1)"}
    assert "constant output 1" in one.survivors


@pytest.mark.slow
def test_a_product_that_an_integer_hides_is_no_harmless_one(judge: AuditJudge) -> None:
    one = audit_task(judge, reference("(x[:4] @ y[:8].T).argmax(-1)"))
    assert any(name.startswith("tf32 at step 1 (mm)") for name in one.survivors), one


def test_a_task_that_the_judge_refuses_is_a_line(judge: AuditJudge) -> None:
    one = audit_task(judge, reference("x + torch.rand(48, 32)"))
    assert (one.verdict, one.sets) == ("refused", 0)
    assert "random" in one.reason


@pytest.mark.slow
def test_the_command_writes_what_the_environment_reads(tmp_path: Path) -> None:
    folder = tmp_path / "level1"
    folder.mkdir()
    (folder / "1_Sound.py").write_text(reference("x + y").source)
    (folder / "2_Wide.py").write_text(reference(WIDE).source)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from cudal1_env.cli import main; main()", "audit", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    done = run(str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "audit.json"))
    assert done.returncode == 1, done.stderr
    assert "2 tasks: 1 sound, 1 survivors, 0 refused" in done.stdout
    report = json.loads(load_audit(tmp_path / "audit.json").model_dump_json())
    assert [one["name"] for one in report["tasks"]] == ["kernelbench/level1/1", "kernelbench/level1/2"]
    assert report["suite"] == tmp_path.name, "expected no path of this machine in it"
    done = run(f"{tmp_path}:level1/1", "--device", "cpu", "--json")
    assert (done.returncode, json.loads(done.stdout)["tasks"]) == (0, report["tasks"][:1])

    loaded = load_suite(tmp_path)
    env = CudaOptEnv(loaded, split=None, device="cpu", evaluator=RuleEvaluator())
    for name, reward in (("level1/1", 1.96), ("level1/2", 1.0)):
        env.reset(options={"task": name})
        assert env.step(program(2.0))[1] == reward
    env.close()


@pytest.mark.parametrize("scan", [False, True])
def test_an_audit_of_no_task_is_an_error(tmp_path: Path, scan: bool) -> None:
    (tmp_path / "1_Broken.py").write_text("x = 1\n")
    with pytest.raises(SettingsError, match="no task of .* can be used; mend its files"):
        Audit(suite=str(tmp_path), scan=scan, machine=Machine(device="cpu")).run()


def test_an_audit_that_was_cut_off_resumes(judge: AuditJudge, tmp_path: Path) -> None:
    first, second = reference("x + y"), reference("x - y")
    out = tmp_path / "audit.json"

    def begin() -> AuditJudge:
        return judge

    def never() -> AuditJudge:
        raise AssertionError("expected no judge where all is known")

    whole = audit_tasks(begin, "cpu", "s", [first], audit_file(out, "cpu"), lambda text: None)
    assert load_audit(out) == whole
    told: list[str] = []
    more = audit_tasks(begin, "cpu", "s", [first, second], audit_file(out, "cpu"), told.append)
    assert [text.split()[0] for text in told] == ["[2/2]"]
    assert more.tasks[0] == whole.tasks[0]
    assert [one.sha256 for one in more.tasks] == [reference_sha256(first), reference_sha256(second)]
    assert audit_tasks(never, "cpu", "s", [second, first], audit_file(out, "cpu"), print).tasks == more.tasks[::-1]
    text = out.read_text()
    out.write_text(text[:-100])
    again = audit_tasks(begin, "cpu", "s", [first, second], audit_file(out, "cpu"), lambda text: None)
    assert (again, out.read_text()) == (more, text)


def test_a_task_that_was_too_large_is_audited_again(judge: AuditJudge, tmp_path: Path) -> None:
    task = reference("x + y")
    crowded = TaskAudit(
        name=task.id, sha256=reference_sha256(task), verdict="refused", sets=1, reason=f"it failed; {TOO_LARGE}: ..."
    )
    file = audit_file(tmp_path / "audit.json", "cpu")
    line = AuditLine(protocol=PROTOCOL_VERSION, device="cpu", max_sets=MAX_SETS, suite="s", task=crowded)
    file.add(line)
    whole = audit_tasks(lambda: judge, "cpu", "s", [task], file, lambda text: None)
    assert whole.tasks[0].verdict == "sound"
    file.add(line)
    assert load_audit(tmp_path / "audit.json") == whole, "expected a lack of memory to take no verdict's place"


def found(**texts: str) -> AuditReport:
    tasks = [TaskAudit(name=name, sha256=text, verdict="sound", sets=1) for name, text in texts.items()]
    return AuditReport(suite="s", device="cpu", protocol=PROTOCOL_VERSION, max_sets=MAX_SETS, tasks=tuple(tasks))


def lines_of(report: AuditReport) -> list[AuditLine]:
    return [
        AuditLine(protocol=report.protocol, device=report.device, max_sets=report.max_sets, suite="s", task=task)
        for task in report.tasks
    ]


def test_a_file_keeps_what_it_holds_of_other_tasks() -> None:
    before, now = found(a="1", b="2", c="2"), found(b="3", d="4")
    assert report_of([*lines_of(before), *lines_of(now)]) == found(a="1", b="3", c="2", d="4")
    assert report_of(lines_of(now)) == now


@pytest.mark.parametrize("other", [{"device": "cuda"}, {"protocol": "0"}, {"max_sets": 1}])
def test_an_audit_under_other_conditions_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    path = tmp_path / "audit.json"
    path.write_text(found(a="1").model_copy(update=other).model_dump_json(indent=1))
    before = path.read_bytes()
    with pytest.raises(RecordError, match=r"audit\.json.*give another --out"):
        audit_file(path, "cpu")
    for asked in ("known", "join"):
        with pytest.raises(RecordError, match=r"audit\.json.*give another file"):
            audit_file(tmp_path / "out.json", "cpu", **{asked: [path]})
    assert path.read_bytes() == before
    assert not (tmp_path / "out.json").exists()


def test_a_published_document_is_read_and_becomes_lines_where_an_audit_resumes(tmp_path: Path) -> None:
    path, out = tmp_path / "audit.json", tmp_path / "out.json"
    path.write_text(found(a="1", b="2").model_dump_json(indent=1))
    assert load_audit(path) == found(a="1", b="2")
    file = audit_file(path, "cpu")
    file.add(*lines_of(found(c="3")))
    assert load_audit(path) == found(a="1", b="2", c="3")
    assert len(path.read_text().splitlines()) == 3
    joined = audit_file(out, "cpu", known=[path], join=[path])
    assert load_audit(out) == found(a="1", b="2", c="3")
    assert len(joined.known) == 6


def test_the_command_keeps_other_tasks_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> object:
        raise AssertionError("expected no judge where all is known")

    monkeypatch.setattr("cudal1_env.campaigns.audit.judge.AuditJudge", never)
    folder, out = tmp_path / "level1", tmp_path / "audit.json"
    folder.mkdir()
    for number, forward in ((1, "x + y"), (2, "x - y")):
        (folder / f"{number}_Task.py").write_text(reference(forward).source)
    found = [
        TaskAudit(name=one.id, sha256=reference_sha256(one), verdict="survivors", survivors=("zeros",), sets=1)
        for one in load_suite(tmp_path)
    ]
    whole = AuditReport(
        suite=tmp_path.name, device="cpu", protocol=PROTOCOL_VERSION, max_sets=MAX_SETS, tasks=tuple(found)
    )
    out.write_text(whole.model_dump_json())
    assert Audit(suite=f"{tmp_path}:level1/2", machine=CPU, out=out).run() == 1
    assert load_audit(out) == whole
    other = whole.model_copy(update={"device": "cuda"}).model_dump_json()
    out.write_text(other)
    with pytest.raises(RecordError, match="give another --out"):
        Audit(suite=str(tmp_path), machine=CPU, out=out).run()
    assert out.read_text() == other


def test_a_device_without_memory_makes_a_task_too_large_and_is_tried_again(
    judge: AuditJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Exception):
        """What a driver raises that has no memory to give."""

    def full(*_: object) -> object:
        raise Full("out of memory")

    task = reference("x + y")
    monkeypatch.setattr(judge.device, "faults", (Full,))
    monkeypatch.setattr(judge.device, "out_of_room", lambda error: "memory" in str(error))
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "sets", full)
        one = audit_task(judge, task)
        assert (one.verdict, TOO_LARGE in one.reason) == ("refused", True)
    monkeypatch.setattr(judge.device, "name", "cuda")
    with monkeypatch.context() as patch:
        patch.setattr("cudal1_env.campaigns.audit.judge._search", full)
        one = audit_task(judge, task)
        assert (one.verdict, one.inputs, TOO_LARGE in one.reason) == ("sound", (), True)
        assert audit_task(judge, task, sensitivity=False).reason == ""


def test_parts_keep_a_tasks_items_together_and_lose_none() -> None:
    items = ["a1", "b1", "a2", "c1", "b2", "d1", "a3"]
    parts = [part_of(items, f"{k}/2", lambda item: item[0]) for k in range(2)]
    assert parts == [["a1", "a2", "c1", "a3"], ["b1", "b2", "d1"]]
    assert part_of(items, "", lambda item: item[0]) == items
    assert part_of(items, "1/2") == ["b1", "c1", "d1"]
    for wrong in ("2/2", "1", "0/0", "-1/2", "a/b"):
        with pytest.raises(SettingsError, match="K/N"):
            part_of(items, wrong, lambda item: item[0])


# --- the environment ---


def audited(*names: str) -> AuditReport:
    found = [
        TaskAudit(
            name=f"toy/{name}",
            sha256=reference_sha256(marked(name)),
            verdict="survivors",
            survivors=("zeros",),
            sets=12,
        )
        for name in names
    ]
    return AuditReport(suite="toy", device="cpu", max_sets=12, tasks=tuple(found))


def marked(name: str) -> Task:
    return next(one for one in toys() if one.name == name)


def toys() -> list[Task]:
    return [task("add"), task("scan", source=task().source + "# another\n")]


@pytest.fixture
def report_file(tmp_path: Path) -> Path:
    path = tmp_path / "found.json"
    path.write_text(audited("scan").model_dump_json())
    return path


def test_a_marked_task_pays_nothing_above_one_and_says_why(report_file: Path) -> None:
    env = CudaOptEnv(Suite("toy", toys()), evaluator=RuleEvaluator(), audit=report_file, attempts=2)
    env.reset(options={"task": "scan"})
    observation, reward, _, _, info = env.step(program(3.0))
    assert (reward, info["status"], info["speedup"]) == (1.0, "CORRECT", 3.0)
    assert info["evaluation"].rewarded_low == 1.0
    message = observation["last"]["message"]
    assert message == info["evaluation"].message
    assert "no reward above 1" in message
    assert "an audit found incorrect programs that are accepted: zeros" in message
    assert [one["speedup"] for one in observation["exemplars"]] == [1.0], "no prompt recommends what is not paid"
    env.reset(options={"task": "add"})
    observation, reward, *_ = env.step(program(3.0))
    assert reward > 2.9
    assert observation["last"]["message"] == "the double says CORRECT"
    env.close()
    env = CudaOptEnv(Suite("toy", toys()), evaluator=RuleEvaluator(), audit=report_file, reward="log", attempts=2)
    env.reset(options={"task": "scan"})
    assert env.step(program(3.0))[1] == 0.0
    assert env.step("no program")[1] == LOG_FLOOR
    env.close()


def test_a_vector_environment_marks_its_parts(report_file: Path) -> None:
    envs = CudaOptVectorEnv(2, Suite("toy", toys()), evaluator=RuleEvaluator(), audit=report_file)
    envs.reset(options={"task": "scan"})
    _, rewards, _, _, infos = envs.step((program(3.0), program(2.0)))
    assert rewards.tolist() == [1.0, 1.0]
    assert "zeros" in infos["evaluation"][1].message
    envs.close()


def test_an_environment_without_the_audit_pays_what_was_measured() -> None:
    env = CudaOptEnv(Suite("toy", toys()), evaluator=RuleEvaluator(), audit=None)
    env.reset(options={"task": "scan"})
    assert env.step(program(3.0))[1] > 2.9
    env.close()


@pytest.mark.parametrize("audit", [True, False])
def test_a_client_limits_the_verdicts_of_a_service_without_the_audit(report_file: Path, audit: bool) -> None:
    with serving(allow_tasks=True) as service:
        env = CudaOptEnv(Suite("toy", toys()), evaluator=service.url, audit=report_file if audit else None)
        env.reset(options={"task": "scan"})
        assert (env.step(program(3.0))[1] == 1.0) == audit
        env.close()


def test_where_an_audit_is_found(tmp_path: Path, report_file: Path) -> None:
    assert find_audit(None, "starter") is None
    assert find_audit("auto", "toy") is None
    table = tmp_path / "tasks.jsonl"
    table.write_text("{}\n")
    assert find_audit("auto", str(table)) is None
    text = report_file.read_text()
    (tmp_path / "tasks.audit.json").write_text(text)
    assert find_audit("auto", str(table)) == find_audit(report_file, "toy") == audited("scan")
    assert find_audit("auto", str(tmp_path)) is None
    (tmp_path / "audit.json").write_text(text)
    assert find_audit("auto", str(tmp_path)) == audited("scan")
    with pytest.raises(RecordError, match=r"^\S*tasks\.jsonl is not the file of an audit: .*; `cudal1-env audit"):
        CudaOptEnv(suite(), evaluator=RuleEvaluator(), audit=table)
    with pytest.raises(RecordError, match=r"^cannot read \S*none\.json: No such file or directory; `cudal1-env audit"):
        find_audit(tmp_path / "none.json", "toy")
