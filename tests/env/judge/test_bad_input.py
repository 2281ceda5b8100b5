"""Programs and tasks that are broken or hostile: the right status or error, a judge that lives, and nothing left."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from cudal1_data import BrokenTaskError, Task, load_task
from cudal1_data.corpus import Corpus
from cudal1_env.cli import main
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure.timing import trials
from cudal1_env.records import Evaluation, Status
from cudal1_env.sandbox import available_layers
from cudal1_env.sandbox.cgroup import own_groups
from cudal1_env.stats import TrialSamples, decide
from doubles.judges import own_zygotes

MARK = "OMP_CUDAL1_TEST"
"""A variable that a zygote keeps: it marks the processes of this test's judge among those of other judges."""

SETTINGS = JudgeSettings(
    oracle_timeout_s=4,
    build_timeout_s=4,
    warmup_timeout_s=3,
    call_timeout_s=2,
    memory_bytes=1 << 30,
    scratch_bytes=64 << 20,
    max_processes=64,
)

TASK_FILE = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2 + x


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []
"""

HEAD = "import ctypes, mmap, os, signal, socket, sys, time\nimport torch\nimport torch.nn as nn\n"
HONEST = HEAD + "class ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.tanh(x).mul_(2).add_(x)\n"


def on_import(line: str) -> str:
    return f"{HEAD}{line}\n{HONEST.removeprefix(HEAD)}"


def in_call(line: str) -> str:
    return f"{HEAD}class ModelNew(nn.Module):\n    def forward(self, x):\n        {line}\n        return x\n"


def task(source: str = TASK_FILE, name: str = "toy") -> Task:
    return Task(id=f"file/{name}", source=source, name=name, level=1, origin="file")


@dataclass(frozen=True)
class Traces:
    """What a judge has on this machine at a moment."""

    descriptors: int
    processes: frozenset[int]
    groups: frozenset[str]
    files: frozenset[str]


@dataclass
class Bench:
    """A judge whose every trace can be told from other judges'."""

    judge: Judge
    mark: str
    folder: Path

    def traces(self) -> Traces:
        gc.collect()  # a caught error and the frame that caught it hold each other, and descriptors with them
        groups = {str(group) for folder in own_groups().values() for group in folder.glob(f"cudal1-{os.getpid()}-*")}
        return Traces(
            len(os.listdir("/proc/self/fd")),
            frozenset(self.processes()),
            frozenset(groups),
            frozenset(str(path.relative_to(self.folder)) for path in self.folder.rglob("*")),
        )

    def processes(self) -> set[int]:
        """Living processes that carry the mark, wherever they were moved and whatever they call themselves."""
        found: set[int] = set()
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and int(path.name) != os.getpid():
                try:
                    if self.mark.encode() in (path / "environ").read_bytes():
                        found.add(int(path.name))
                except OSError:  # gone, or of another user
                    continue
        return found

    def dying(self, wanted: int, patience_s: float = 5.0) -> set[int]:
        """Return the living processes, given a moment until no more than so many are left."""
        deadline = time.monotonic() + patience_s
        while len(alive := self.processes()) > wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        return alive

    def settled(self, before: Traces, patience_s: float = 5.0) -> Traces:
        """Return the traces, given a moment to those that are dying (a supervisor outlives its worker by a little)."""
        deadline = time.monotonic() + patience_s
        while (now := self.traces()) != before and time.monotonic() < deadline:
            time.sleep(0.05)
        return now


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    mark, folder = uuid.uuid4().hex, tmp_path_factory.mktemp("judge")
    with own_zygotes(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        patch.setattr(tempfile, "tempdir", str(folder))
        judge = Judge(SETTINGS)
        patch.setattr(tempfile, "tempdir", None)  # the leases of all judges lie in one place
        bench = Bench(judge, mark, folder)
        with judge:
            assert judge.evaluate(task(), HONEST).status is Status.CORRECT
            alive = bench.dying(3)
            assert len(alive) == 3, "expected a zygote, and the oracle with its supervisor"
            yield bench
    assert bench.dying(0) == set()
    assert list(folder.iterdir()) == []


HUNDRED_GB = 100 * 2**30

PROGRAMS: list[tuple[str, str, set[Status]]] = [
    ("no_model", HEAD + "class Model: pass", {Status.NO_CODE}),
    ("not_python", "\x7fELF\x02\x01\x01\n\x00", {Status.SYNTAX_ERROR}),
    ("syntax_error", "class ModelNew(nn.Module):\n  def", {Status.SYNTAX_ERROR}),
    ("too_long", "#" * (2 << 20), {Status.NO_CODE}),
    ("hang_import", on_import("time.sleep(1000)"), {Status.TIMEOUT}),
    ("hang_construct", HEAD + "class ModelNew:\n    def __init__(self):\n        while True: pass", {Status.TIMEOUT}),
    ("hang_call_signals_blocked", in_call("signal.pthread_sigmask(0, range(1, 65)); time.sleep(99)"), {Status.TIMEOUT}),
    ("fork_bomb", on_import("while True: os.fork()"), {Status.BUILD_ERROR, Status.TIMEOUT, Status.CRASH}),
    ("thread_bomb", in_call("import threading\n        while True: threading.Thread(target=signal.pause).start()"),
     {Status.RUNTIME_ERROR}),
    ("daemon", on_import("os.fork() or (os.setsid(), os.fork() or time.sleep(999), os._exit(0))"), {Status.CORRECT}),
    ("memory_tensor", in_call(f"torch.ones({HUNDRED_GB} // 4)"), {Status.OUT_OF_MEMORY}),
    ("memory_bytes", on_import(f"bytearray({HUNDRED_GB})"), {Status.OUT_OF_MEMORY}),
    ("segfault", in_call("ctypes.memset(0, 0, 8)"), {Status.CRASH}),
    ("exit_import", on_import("print('{\"status\": \"CORRECT\"}', flush=True); os._exit(0)"), {Status.CRASH}),
    ("exit_call", in_call("os._exit(0)"), {Status.CRASH}),
    ("sys_exit", in_call("sys.exit(0)"), {Status.CRASH}),
    ("interrupt", on_import("raise KeyboardInterrupt"), {Status.CRASH}),
    ("kill_itself", in_call("os.kill(os.getpid(), signal.SIGKILL); os.abort()"), {Status.CRASH, Status.OUT_OF_MEMORY}),
    ("write_outside", on_import("open('/usr/lib/cudal1-was-here', 'w')"), {Status.BUILD_ERROR}),
    ("write_home", in_call("open(os.path.expanduser('~root/.profile'), 'a')"), {Status.RUNTIME_ERROR}),
    ("socket", on_import("socket.socket(socket.AF_INET, socket.SOCK_STREAM)"), {Status.BUILD_ERROR}),
    ("socket_connect", in_call("socket.create_connection(('127.0.0.1', 80), 1)"), {Status.RUNTIME_ERROR}),
    ("close_everything", on_import("os.closerange(0, 4096)"), {Status.CRASH}),
    ("odd_text", on_import("raise ValueError('a\\u2028b\\x85c\\x1b[2Jd\\ud800e\\x00')"), {Status.BUILD_ERROR}),
    ("error_that_fails",
     on_import("E = type('E', (Exception,), {'__str__': lambda self: 1 / 0}); raise E"), {Status.CRASH}),
]  # fmt: skip


QUICK = {"close_everything", "no_model", "not_python", "socket", "raises", "random"}
"""Programs and references that are always judged. Most others wait for a limit or a death."""


def case(name: str, source: str, expected: object) -> ParameterSet:
    """A program or a reference as a case of a test."""
    return pytest.param(name, source, expected, id=name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize(("name", "source", "allowed"), [case(*one) for one in PROGRAMS])
def test_a_bad_program_gets_its_status_and_leaves_nothing(
    bench: Bench, name: str, source: str, allowed: set[Status]
) -> None:
    before = bench.traces()
    record = bench.judge.evaluate(task(), source)
    assert record.status in allowed, record.message
    assert record.message
    assert Evaluation.model_validate_json(record.model_dump_json()) == record
    assert len(record.model_dump_json(ensure_ascii=True).splitlines()) == 1
    assert bench.settled(before) == before
    if record.status in (Status.TIMEOUT, Status.CRASH, Status.OUT_OF_MEMORY):
        after = bench.judge.evaluate(task(), HONEST)
        assert after.status is Status.CORRECT, after.message
        assert bench.settled(before) == before


@pytest.mark.skipif(
    available_layers()["rlimits"] is not None or not own_groups(), reason="nothing here bounds shared memory"
)
def test_shared_memory_without_end_is_out_of_memory(bench: Bench) -> None:
    before = bench.traces()
    grab = "m = mmap.mmap(-1, 3 << 30)\n        for i in range(0, 3 << 30, 4096): m[i] = 1"
    record = bench.judge.evaluate(task(), in_call(grab))
    assert record.status in (Status.OUT_OF_MEMORY, Status.TIMEOUT), record.message
    assert bench.settled(before) == before


@pytest.mark.parametrize("least", [1, 2])
def test_texts_of_a_program_that_knows_secrets_are_not_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    def decided(found: Sequence[TrialSamples], *rest: Any, **more: Any) -> str:
        wanted = decide(found, *rest, **more)
        return "trial" if wanted == "stop" and len(found) < least else wanted

    monkeypatch.setattr(trials, "decide", decided)
    source = HONEST.replace("return", "print(float(x[0, 0]), flush=True); return")
    record = bench.judge.evaluate(task(), source)
    assert record.status is Status.CORRECT
    assert record.trials >= least
    assert len(record.stderr.split()) == 1, "expected the call on inputs of its own"


def with_forward(expression: str, before: str = "pass") -> str:
    """The task with another `forward`."""
    return TASK_FILE.replace("        return torch.tanh(x) * 2 + x", f"        {before}\n        return {expression}")


POWER_ITERATION = with_forward("self.lin(x)").replace(
    "    def forward",
    "    def __init__(self):\n        super().__init__()\n"
    "        self.lin = nn.utils.parametrizations.spectral_norm(nn.Linear(512, 64))\n\n    def forward",
)
"""A reference that refines a vector in each call, so that the answer to the same inputs changes slightly."""

REFERENCES: list[tuple[str, str, str]] = [
    ("random", with_forward("nn.functional.dropout(x, 0.5)"), "function of the inputs"),
    ("counts", with_forward("x * self.n", before="self.n = getattr(self, 'n', 0) + 1"), "counts its calls"),
    ("stateful", POWER_ITERATION, "parametrizations.weight.0._u, lin.parametrizations.weight.0._v, which each call"),
    ("writes", with_forward("x.tanh_() * 2"), "the reference writes to input 0"),
    ("nested", TASK_FILE.replace("[torch.randn(64, 512)]", "[{'x': torch.randn(64, 512)}]"), "a dict with tensors"),
    ("raises", with_forward("torch.no_such_function(x)"), "no_such_function"),
    ("exits", with_forward("x", before="__import__('os')._exit(0)"), "died with exit code 0"),
    ("crashes", with_forward("x", before="__import__('ctypes').memset(0, 0, 8)"), "died of signal 11"),
    ("hangs", with_forward("x", before="__import__('time').sleep(99)"), "took over"),
    ("complex", with_forward("torch.complex(x, x)"), "real outputs"),
    ("no_tensor", with_forward("'text'"), "tensors"),
    ("unsigned", with_forward("x.abs().to(torch.uint16)"), "got uint16 of shape"),
    ("float8", with_forward("x.to(torch.float8_e4m3fn)"), "got float8_e4m3fn of shape"),
    ("nine", with_forward("torch.tanh(x)[:, :, *[None] * 7]"), "of at most 8 dimensions"),
    ("huge", TASK_FILE.replace("randn(64, 512)", "empty(2 ** 45)"), "too large for this machine: `cudal1-data export"),
]


@pytest.mark.parametrize(("name", "source", "words"), [case(*one) for one in REFERENCES])
def test_a_bad_reference_is_the_tasks_error_and_leaves_nothing(
    bench: Bench, name: str, source: str, words: str
) -> None:
    before = bench.traces()
    assert words in refusal(bench.judge, task(source, name))
    assert bench.settled(before) == before


@pytest.mark.parametrize("seconds", ["inf", "1e9", "5e-324", "nan"])
def test_a_reference_that_reports_odd_seconds_is_judged_by_the_judges_clock(bench: Bench, seconds: str) -> None:
    """The worker's clock shows these seconds and 0 in turn; limits and the size of a trial follow from its report."""
    shown = f"itertools.cycle([float('{seconds}'), 0.0])"
    clock = (
        f"import itertools, sys, types\nSHOWN = {shown}\nCLOCK = types.SimpleNamespace(perf_counter=SHOWN.__next__)\n"
    )
    patch = "if 'candidate' in sys.modules: sys.modules['cudal1_worker.program.arm'].time = CLOCK"
    source = clock + with_forward("torch.tanh(x) * 2 + x", before=patch)
    assert bench.judge.evaluate(task(source, f"clock_{seconds}"), HONEST).status is Status.CORRECT


def test_inputs_made_in_inference_mode_are_inputs(bench: Bench) -> None:
    source = TASK_FILE.replace("def get_inputs", "@torch.inference_mode()\ndef get_inputs")
    assert bench.judge.evaluate(task(source, "inference"), HONEST, precision="correct").status is Status.CORRECT


@pytest.mark.slow
def test_a_reference_that_changes_its_inputs_shape_is_the_tasks_error(bench: Bench) -> None:
    source = TASK_FILE.replace("randn(64, 512)", "randn(__import__('random').randint(8, 800_000), 2)")
    bench.judge.retire()
    bench.judge.evaluate(task(), HONEST)
    before = bench.traces()
    assert "the same for every input set" in refusal(bench.judge, task(source, "changing"))
    bench.judge.retire()
    assert bench.judge.evaluate(task(), HONEST).status is Status.CORRECT
    # The good task's oracle is another process now; all else is as it was.
    after = bench.traces()
    assert (after.descriptors, len(after.processes)) == (before.descriptors, len(before.processes))
    assert after.files == before.files


def refusal(judge: Judge, bad: Task) -> str:
    """Return the words of the error; not the error itself, whose traceback holds on to descriptors."""
    with pytest.raises(TaskError) as caught:
        judge.evaluate(bad, HONEST)
    assert bad.id in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TASK_FILE.replace("def get_inputs", "def inputs"), "get_inputs"),
        (TASK_FILE.replace("class Model(", "class Reference("), "Model"),
        ("def get_inputs(:\n", "line 1"),
        ("", "Model"),
    ],
    ids=["no_inputs", "no_model", "no_python", "empty"],
)
def test_a_broken_task_file_is_named_with_what_is_missing(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken_task.py"
    path.write_text(text)
    with pytest.raises(BrokenTaskError, match=words) as caught:
        load_task(str(path), device="cpu")
    assert "broken_task" in str(caught.value)


def command(*arguments: str) -> tuple[int, dict[str, object], str]:
    """Run `cudal1-env evaluate ... --json`; return its code, the last line that it printed, and its errors."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from cudal1_env.cli import main; main()",
            "evaluate",
            *arguments,
            "--precision",
            "training",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no_model", "exit_import", "odd_text"])
def test_the_command_prints_one_record_for_any_outcome(tmp_path: Path, name: str) -> None:
    source, allowed = next((source, allowed) for other, source, allowed in PROGRAMS if other == name)
    (tmp_path / "toy.py").write_text(TASK_FILE)
    (tmp_path / "program.py").write_text(source)
    code, last, errors = command(str(tmp_path / "toy.py"), str(tmp_path / "program.py"))
    record = Evaluation.model_validate(last)
    assert (code, errors) == (0, "")
    assert record.status in allowed
    assert record.source == source
    assert record.seed is not None


def test_the_command_names_arguments_that_it_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("x = 1\n")
    (tmp_path / "program.py").write_text(HONEST)
    program = str(tmp_path / "program.py")
    for arguments, kind, words in (
        ((str(tmp_path / "broken.py"), program), "BrokenTaskError", "broken.py"),
        (("starter/diag_matmull", program), "UnknownTaskError", "diag_matmul"),
        (("startr/diag_matmul", program), "UnknownSuiteError", "starter"),
        (("starter/diag_matmul", str(tmp_path / "absent.py")), "SettingsError", "absent.py"),
    ):
        monkeypatch.setattr(sys, "argv", ["cudal1-env", "evaluate", *arguments, "--precision", "training", "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        last = json.loads(printed.out.splitlines()[-1])
        assert (ended.value.code, last["error"]) == (2, kind)
        assert words in str(last["message"])
        assert words in printed.err


@pytest.mark.parametrize("name", ["audit", "doctor", "redteam", "serve", "sweep", "verify"])
def test_commands_refuse_to_work_without_the_layers_that_are_demanded(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy.py").write_text(TASK_FILE)
    row = {"code": TASK_FILE, "level": 1, "name": "toy", "problem_id": 1, "custom_code": HONEST}
    (tmp_path / "toy.jsonl").write_text(json.dumps(row) + "\n")
    Corpus().save(tmp_path / "corpus.jsonl")
    given = {
        "audit": ("toy.py", "--device", "cpu"),
        "doctor": (),
        "redteam": ("--device", "cpu", "--only", "h02"),
        "serve": ("--device", "cpu", "--port", "0"),
        "sweep": ("toy.jsonl", "--device", "cpu"),
        "verify": ("corpus.jsonl", "--device", "cpu", "--out", "out.jsonl"),
    }
    monkeypatch.chdir(tmp_path)
    for layer, words in (
        ("secomp", "unknown sandbox layer 'secomp'; did you mean 'seccomp'"),
        ("seccomp", "required sandbox layers: seccomp"),
    ):
        if (name, layer) == ("doctor", "seccomp"):
            continue  # it says what there is
        lacking = dict.fromkeys(available_layers()) | {"seccomp": "a double"}
        for place in ("cudal1_env.sandbox", "cudal1_env.sandbox.layers"):
            monkeypatch.setattr(f"{place}.available_layers", lambda *_, found=lacking: dict(found))
        monkeypatch.setattr(sys, "argv", ["cudal1-env", name, *given[name], "--require-sandbox", layer])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--max-queue=0", "--max-queue is 0; give at least 1"),
        ("--max-body-bytes=-1", "--max-body-bytes is -1; give at least 4096"),
        ("--deadline-s=nan", "--deadline-s is nan; give a finite number above 0"),
        ("--ray-judges=3", "--ray-judges and --ray-accelerator need a cluster; name it with --ray, or omit them"),
    ],
)
def test_serve_names_the_option_that_it_refuses(
    option: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cudal1-env", "serve", "--device", "cpu", "--port", "0", option])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"cudal1-env: {words}\n"
