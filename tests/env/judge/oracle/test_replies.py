"""Forged answers of an oracle are its task's error, in words, and the judge goes on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cudal1_data import Task
from cudal1_env.campaigns.audit.judge import AuditJudge
from cudal1_env.errors import TaskError, TooLargeError, WorkerLostError
from cudal1_env.judge import Judge
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.oracle import replies
from cudal1_env.judge.oracle.client import OracleClient
from cudal1_env.records import Evaluation, Precision, Status
from cudal1_worker import layout
from cudal1_worker import protocol as wire
from doubles.judges import QUICK
from pydantic import ValidationError

SOURCE = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.scale = scale

    def forward(self, x):
        return self.lin(x) * self.scale


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return [2.0]
"""
CHANGED = """

import gc
from cudal1_worker.oracle.oracle import Oracle

def changed(honest):
    def handler(message, fds):
        answer = honest(message, fds)
        {change}
        return answer
    return handler

for one in gc.get_objects():
    if isinstance(one, Oracle):
        one.handlers[{op!r}] = changed(one.handlers[{op!r}])
"""
"""What a task adds to change its oracle's answers to a request, before they are sent."""

HONEST = SOURCE.replace("class Model(", "class ModelNew(")


def task(name: str, source: str = SOURCE) -> Task:
    return Task(id=f"file/{name}", source=source, name=name, level=1, origin="file")


def liar(op: str, change: str) -> Task:
    """A task that changes its oracle's answers to a request."""
    return task("liar", SOURCE + CHANGED.format(op=op, change=change))


@pytest.fixture(scope="module")
def judge() -> Iterator[AuditJudge]:
    with AuditJudge(QUICK) as judge:
        yield judge


def ask_everything(judge: AuditJudge, one: Task) -> None:
    """Send the task's oracle every request that a judge sends."""
    for known in judge.known_sets(one, 1):
        assert judge.steps(one, known)[0].shapes
        judge.faulty(one, known, "none")
        judge.step_changes(one, known, "tf32", 0)
    judge.known_parts(one)
    judge.input_sensitivity(one)
    pool = judge._known_pool(one)
    pool.private_inputs()
    pool.fingerprints()


def test_an_honest_oracle_is_asked_everything(judge: AuditJudge) -> None:
    ask_everything(judge, task("honest"))


OUT = "answer['outputs'][0]"
IN = "answer['entries'][0]['tensor']"
LIES: list[tuple[str, str, str]] = [
    ("describe", "answer = {'error': 1, 'text': 'x'}", "error: Input should be a valid string"),
    ("describe", "answer = {}", "Field required"),
    ("describe", "answer = {'error': 'raised'}", "text: Field required"),
    ("describe", "answer['size_bytes'] = 1 << 60", "the size of the tensors together"),
    ("describe", "answer['size_bytes'] = -1", "bytes: Input should be greater"),
    ("describe", f"{IN}['bytes'] = 1 << 40; answer['size_bytes'] = 1 << 40", "a dense tensor and its size"),
    ("describe", f"{IN}['offset'] = 4096", "one after another"),
    ("describe", f"{IN}['strides'] = [1 << 30, 1]", "a dense tensor"),
    ("describe", f"{IN}['strides'] = [8]", "a stride for each dimension"),
    ("describe", f"{IN}['dtype'] = 'object'", "a dtype of the protocol"),
    ("describe", "answer['entries'] = [{'value': {'array': 'AAAA', 'of': 'int8', 'shape': [2]}}]", "entries: "),
    ("describe", "answer['arguments'] = {'list': [{'dtype': 'code'}]}", "arguments: expected a dtype"),
    ("describe", "answer['arguments'] = {'dict': [[{'list': []}, 1]]}", "arguments"),
    ("describe", "answer['arguments'] = {'dict': [[1]]}", "pairs of key and value"),
    ("describe", "\n        for _ in range(200): answer['arguments'] = {'list': [answer['arguments']]}", "nested at"),
    ("describe", "answer['arguments'] = '\\u00e9' * 1_390_000", "fit into a message"),
    ("describe", f"{OUT}['shape'] = [-5, 'a']", "outputs: Input should be greater"),
    ("describe", f"{OUT}['shape'] = [1] * 1000", "outputs: Tuple should have at most 64"),
    ("describe", f"{OUT}['strides'] = []", "outputs: expected a stride"),
    ("describe", f"{OUT}['dtype'] = 'x' * 1000", "outputs: String should have at most"),
    ("describe", "answer['state'] = [['lin.weight']]", "state: "),
    ("describe", "answer['work_bytes'] = None", "work_bytes"),
    ("describe", "answer['constant_inputs'] = [7]", "positions of inputs"),
    ("describe", "answer['state'][0]['fixed'] = None", "state: "),
    ("state", "answer = {'names': ['lin.weight'], 'entries': [{}], 'size_bytes': 4096}", "entries"),
    ("state", "answer['names'] = answer['names'][:1]", "a name for each tensor"),
    ("state", "answer['names'] = ['a', 'b']", "names of the state"),
    ("state", "answer['size_bytes'] = 1 << 50", "the size of the tensors"),
    ("make", "answer = {'reports': []}", "a report on each output"),
    ("make", "answer['reports'][0] *= 2", "a report on each output"),
    ("make", "answer['reports'][0][0]['bulk'] = -1.0", "reports: Input should be"),
    ("make", "answer['reports'][0][0]['scale'] = float('nan')", "reports: Input should be"),
    ("make", "answer['reports'][0][0]['reference_error'] = '1'", "reports: Input should be"),
    ("recurrence", "answer['outputs'] = [float('inf')]", "outputs: Input should be"),
    ("recurrence", "answer['outputs'] = []", "a share of each output"),
    ("unseen", "answer['work'] = 5", "work: Input should be"),
    ("steps", "answer['steps'] = [{}]", "steps: Field required"),
    ("faulty", "answer = {}", "failed: Field required"),
    ("changes", "answer['changes'] = 'perhaps'", "changes: Input should be"),
    ("vary", "answer['most'] = []", "a share of each input"),
    ("change", "answer = {}", "changes: Field required"),
    ("fingerprints", "answer['fingerprints'] = {'lin.weight': 5}", "fingerprints: Input should be"),
]


@pytest.mark.parametrize(("op", "change", "words"), LIES)
def test_a_malformed_answer_is_the_tasks_error(judge: AuditJudge, op: str, change: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        ask_everything(judge, liar(op, change))
    assert f"file/liar: the reference disturbs its channel in {op}: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        f"{OUT}['shape'], {OUT}['strides'] = [1 << 40], [1]",
        f"{IN}.update(shape=[1 << 40], strides=[1], bytes=1 << 42); answer['size_bytes'] = 1 << 42",
        "answer['work_bytes'] = 1 << 60",
    ],
    ids=["outputs", "inputs", "work"],
)
def test_a_size_beyond_the_limit_of_memory_is_refused_before_any_block_is_made(
    judge: AuditJudge, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(judge.device, "block", made.append)
    with pytest.raises(TooLargeError, match=r"inputs, answers or state take .* GB of .* GB"):
        ask_everything(judge, liar("describe", change))
    assert made == []


def test_weights_beyond_the_limit_of_memory_are_refused(judge: AuditJudge) -> None:
    sizes = "shape=[1 << 40], strides=[1], bytes=1 << 42"
    change = (
        f"answer['names'], answer['entries'] = answer['names'][:1], answer['entries'][:1]; "
        f"answer['entries'][0]['tensor'].update({sizes}); answer['size_bytes'] = 1 << 42"
    )
    with pytest.raises(TooLargeError, match="or state take"):
        ask_everything(judge, liar("state", change))


def test_a_machine_without_memory_for_a_block_is_too_small_for_the_task(judge: AuditJudge) -> None:
    pool = judge._pools.take(Case(task("good"), "", "training"))
    with pytest.raises(TooLargeError, match="there is no memory for"):
        pool.oracle._memory(1 << 60)
    assert pool.private_inputs().size


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[torch.randn(4, 8)]", "[[torch.randn(4, 8)]]", "file/odd: input 0 of get_inputs() is a list with tensors; "),
        ("[torch.randn(4, 8)]", "torch.randn(4, 8)", "file/odd: get_inputs() returns a tensor; return a list"),
        ("return [2.0]", "return [object()]", "a value of get_inputs() or get_init_inputs() is of type object; "),
        ("* self.scale", "* self.scale, None", "file/odd: an output of Model.forward is of type NoneType; "),
        ("import torch\n", "import torsch\n", "file/odd: the reference failed in its import: ModuleNotFoundError"),
        ("nn.Linear(8, 8)", "nn.Linear(8)", "file/odd: the reference failed in its constructor or first call: TypeE"),
        ("import torch\n", "import torch\n__import__('os')._exit(3)\n", "process died with exit code 3 in its import"),
    ],
)
def test_a_reference_that_cannot_be_judged_is_described_in_its_authors_words(
    judge: AuditJudge, old: str, new: str, said: str
) -> None:
    with pytest.raises(TaskError) as caught:
        ask_everything(judge, task("odd", SOURCE.replace(old, new, 1)))
    assert said in str(caught.value)


def test_texts_of_an_oracle_can_be_written_anywhere(judge: AuditJudge) -> None:
    raises = SOURCE.replace(
        "        return self", "        raise ValueError('\\ud800' + 'x' * 1_000_000)\n        return self"
    )
    with pytest.raises(TaskError, match="failed in its constructor or first call: ValueError: [?]xxx") as caught:
        ask_everything(judge, task("raises", raises))
    assert len(str(caught.value).encode()) < 5000
    assert len(replies.Failure(error="raised", text="\ud800" * 10_000_000).text.encode()) < 5000
    assert replies.Unseen(work="a\udfffb", tried=True).work == "a?b"
    assert json.loads(json.dumps(str(TaskError("\ud800")))).encode() == b"?"


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.5, None, True, "text"],
        ({"a": (1, [2]), (1, "b"): torch.float16}, torch.Size([3])),
        [torch.arange(6).reshape(2, 3), torch.zeros(0, 4), torch.tensor(1.5, dtype=torch.bfloat16)],
    ],
)
def test_every_argument_that_a_worker_can_encode_is_kept(value: object) -> None:
    encoded = json.loads(json.dumps(layout.encode(value)))
    assert replies._decodable(encoded) == encoded


@pytest.mark.parametrize("size", [(), (0, 3), (4, 8), (3, 1, 5)])
@pytest.mark.parametrize("dtype", wire.DTYPES)
def test_every_layout_that_a_worker_describes_is_kept(size: tuple[int, ...], dtype: str) -> None:
    value = torch.zeros(size, dtype=getattr(torch, dtype))
    entries, size_bytes = layout.manifest([value, value.mT if value.dim() > 1 else value, value.expand(2, *size)])
    stored = replies.Stored.model_validate({"names": ["a", "b", "c"], "entries": entries, "size_bytes": size_bytes})
    assert json.loads(json.dumps(stored.layout)) == entries


def test_a_layout_of_a_type_that_no_judge_reads_is_refused_in_words() -> None:
    with pytest.raises(TypeError, match=r"expected tensors of type float32.*; got torch.uint16"):
        layout.manifest([torch.zeros(2, dtype=torch.uint16)])
    with pytest.raises(TypeError, match=r"got torch.float8_e4m3fn"):
        layout.encode([torch.float8_e4m3fn])


def test_a_malformed_answer_is_described_without_its_own_text() -> None:
    for answer in ({"fingerprints": {"\ud800secret": []}}, {"fingerprints": ["\ud800secret"]}):
        with pytest.raises(ValidationError) as caught:
            replies.Fingerprinted.model_validate(answer)
        assert "secret" not in replies.why_malformed(caught.value)


# --- an oracle that is killed ----------------------------------------------------------------------------------------

KILLED = SOURCE.replace(
    "    def forward(self, x):",
    """    def forward(self, x):
        import resource
        Model.calls = getattr(Model, "calls", 0) + 1
        if Model.calls == 10:
            resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
            while True:
                pass""",
)
"""A reference that limits its time, and is killed for it, once its oracle has described it."""


@pytest.mark.parametrize("precision", ["correct", "training"])
def test_a_task_that_kills_its_oracle_costs_no_other_program_its_verdict(
    judge: AuditJudge, precision: Precision
) -> None:
    outcomes: dict[int, Evaluation | TaskError] = {}
    judge.evaluate_each(
        [(task("killed", KILLED), HONEST), (task("good"), HONEST)], outcomes.__setitem__, precision=precision
    )
    killed, good = outcomes[0], outcomes[1]
    assert isinstance(killed, TooLargeError), killed
    assert "killed in probe, most likely for its memory or by a limit that it set" in str(killed)
    assert isinstance(good, Evaluation)
    assert good.status is Status.CORRECT


@pytest.mark.parametrize("precision", ["correct", "training"])
def test_a_program_whose_oracle_the_machine_killed_once_is_judged_again(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, killed = OracleClient.ask, list[int]()

    def killing(self: OracleClient, op: str, *given: Any, **named: Any) -> Any:
        if op == "make" and self.task.id == "file/good" and not killed:
            killed.append(self.worker.pid)
            os.kill(self.worker.pid, signal.SIGKILL)
        return ask(self, op, *given, **named)

    monkeypatch.setattr(OracleClient, "ask", killing)
    outcomes: dict[int, Evaluation | TaskError] = {}
    with Judge(QUICK) as judge:
        jobs = [(task("good"), HONEST), (task("other", SOURCE + "# other\n"), HONEST)]
        judge.evaluate_each(jobs, outcomes.__setitem__, precision=precision)
    assert len(killed) == 1
    assert [one.status for one in outcomes.values() if isinstance(one, Evaluation)] == [Status.CORRECT] * 2


def test_an_oracle_that_is_gone_gives_the_same_error_again_and_a_new_one_gives_answers(judge: AuditJudge) -> None:
    case = Case(task("good"), "", "training")
    pool = judge._pools.take(case)
    os.kill(pool.oracle.worker.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(TooLargeError, match="killed in draw"):
            pool.private_inputs()
    assert pool.closed
    assert judge._pools.take(case).private_inputs().size


def test_an_oracle_that_the_judge_ends_is_no_fault_of_its_task(judge: AuditJudge) -> None:
    pool = judge._pools.take(Case(task("good"), "", "training"))
    pool.oracle.worker.interrupt()
    with pytest.raises(WorkerLostError, match="the judge ended the oracle during draw"):
        pool.private_inputs()
