"""Chained samples on a CPU double: what a program can see, and what it gains by looking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from cudal1_data import Task
from cudal1_env.judge import Judge
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.timing import chain
from cudal1_env.records import Status
from cudal1_env.reward import reward_of
from doubles import chained
from doubles.chained import ChainedMemory, chained_judge

HEADER = "import sys\nimport threading\nimport time\nimport torch\nimport torch.nn as nn\n"
TASK = Task(
    id="file/matvecs",
    name="matvecs",
    level=1,
    origin="file",
    source=(
        "import torch\nimport torch.nn as nn\nN = 512\n\nclass Model(nn.Module):\n    def __init__(self, n):\n"
        "        super().__init__()\n        self.a = nn.Parameter(torch.randn(n, n) / n**0.5)\n"
        "    def forward(self, x):\n        y = x\n        for _ in range(3):\n            y = torch.relu(self.a @ y)\n"
        "        return y\n\ndef get_inputs():\n    return [torch.randn(N, 64)]\n\n"
        "def get_init_inputs():\n    return [N]\n"
    ),
)
INIT = (
    "class ModelNew(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
    "        self.a = nn.Parameter(torch.randn(n, n) / n**0.5)\n"
)
HONEST = (
    HEADER
    + INIT
    + "    def forward(self, x):\n        y = x\n        for _ in range(3):\n            y = torch.relu_(self.a @ y)\n"
    "        return y\n"
)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with pytest.MonkeyPatch.context() as patch, chained_judge(patch) as one:
        yield one


def test_an_honest_program_is_correct_and_about_as_fast(judge: Judge) -> None:
    one = judge.evaluate(TASK, HONEST)
    assert one.status is Status.CORRECT, one.message + one.stderr
    assert one.speedup is not None
    assert one.speedup.low < 1.5, "a busy machine widens the interval, and moves its lower end down"
    assert one.overhead_ms is not None
    assert one.stealable_ms == pytest.approx(one.overhead_ms), "on a device with chains all of it may be stolen"
    assert one.rewarded_low is not None
    assert one.rewarded_low < one.speedup.low


@pytest.mark.slow
def test_inputs_arrive_only_when_the_call_before_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of everything that the judge does on the clock."""
    log: list[str] = []
    release, go, read = ChainedMemory.release, chained.go, Arm.read
    clocked = chain._clocked

    def noting_release(self: ChainedMemory, slot: int) -> None:
        log.append("inputs")
        release(self, slot)

    def noting_go(self: Arm, key: Sequence[int]) -> int:
        turn = go(self, key)
        log.append("go")
        return turn

    def noting_read(self: Arm, *arguments: object) -> object:
        result = read(self, *arguments)  # type: ignore[arg-type]
        log.append("read")
        return result

    def noting_clocked(*arguments: object) -> int:
        log.append("clock")
        return clocked(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ChainedMemory, "release", noting_release)
    monkeypatch.setattr(chained, "go", noting_go)
    monkeypatch.setattr(Arm, "read", noting_read)
    monkeypatch.setattr(chain, "_clocked", noting_clocked)
    with chained_judge(monkeypatch, chain_ms=50.0) as judge:
        assert judge.evaluate(TASK, HONEST).status is Status.CORRECT
    calls = [entry for entry in log if entry != "clock"]
    assert len(calls) > 100
    assert calls == ["inputs", "go", "read"] * (len(calls) // 3)
    lengths = [len(part.split()) // 3 for part in " ".join(log).split("clock")[1:]]
    assert len(set(lengths[::2])) == 1, "each sample begins with as many calls that are not timed"
    assert len(set(lengths[1::2])) > 1, "the length of a sample is no constant"


EARLY = (
    HEADER
    + INIT
    + """        frame = sys._getframe()
        while type(frame.f_locals.get("self")).__name__ != "Arm":
            frame = frame.f_back
        self.arm = frame.f_locals["self"]
        self.kept = torch.empty(n, 64)
    def forward(self, x):
        go = self.arm.control[0]
        if go > 4:
            self.arm.words[0] = go
        y = x
        for _ in range(3):
            y = torch.relu(self.a @ y)
        return self.kept.copy_(y)
"""
)
BATCHED = (
    HEADER
    + INIT
    + """        frame = sys._getframe()
        while type(frame.f_locals.get("self")).__name__ != "Arm":
            frame = frame.f_back
        self.arm = frame.f_locals["self"]
    def forward(self, x):
        slots = self.arm.side.slots
        if len(slots) < 2 or self.arm.control[0] < 4:
            return torch.relu(self.a @ torch.relu(self.a @ torch.relu(self.a @ x)))
        if self.arm.control[0] % 2:
            both = torch.cat([self.arm.inputs_in(slot)[0] for slot in slots], 1)
            self.ready = torch.relu(self.a @ torch.relu(self.a @ torch.relu(self.a @ both)))
        return self.ready[:, 64 * (self.arm.control[0] % 2):][:, :64].contiguous()
"""
)
KEPT = (
    HEADER
    + INIT
    + """        self.kept = torch.zeros(n, 64)
    def forward(self, x):
        half = x.shape[1] // 2
        if self.kept.abs().sum() == 0:
            y = x
            for _ in range(3):
                y = torch.relu(self.a @ y)
            return self.kept.copy_(y)
        y = x[:, :half]
        for _ in range(3):
            y = torch.relu(self.a @ y)
        self.kept[:, :half] = y
        return self.kept
"""
)


@pytest.mark.parametrize("source", [EARLY, BATCHED, KEPT], ids=["done word early", "two calls together", "half kept"])
def test_work_that_was_not_done_is_not_paid(judge: Judge, source: str) -> None:
    one = judge.evaluate(TASK, source)
    assert reward_of(one) <= 1.0, one.message
    assert one.status is not Status.CORRECT or source == EARLY, one.message


@pytest.mark.slow
def test_an_output_with_a_constant_part_is_not_paid(judge: Judge) -> None:
    """The constant part is right from the call before, so a task in which it costs something pays nothing above 1."""
    task = Task(
        id="file/embed",
        name="embed",
        level=1,
        origin="file",
        source=(
            "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
            "        return torch.diag_embed(torch.tanh(x))\n\ndef get_inputs():\n    return [torch.randn(8, 256)]\n\n"
            "def get_init_inputs():\n    return []\n"
        ),
    )
    once = (
        HEADER + "class ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.kept = torch.zeros(8, 256, 256)\n    def forward(self, x):\n"
        "        torch.tanh(x, out=torch.diagonal(self.kept, dim1=1, dim2=2))\n        return self.kept\n"
    )
    anew = once.replace("        torch.tanh(x, out", "        self.kept.zero_()\n        torch.tanh(x, out")
    assert judge.evaluate(task, once).status is Status.WRONG_OUTPUT, (
        "what the last call of a sample returned is overwritten"
    )
    one = judge.evaluate(task, anew)
    assert one.status is Status.CORRECT, one.message
    assert reward_of(one) <= 1.0


FEW = Task(
    id="file/few",
    name="few",
    level=1,
    origin="file",
    source=(
        "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def __init__(self, n):\n"
        "        super().__init__()\n        self.a = nn.Parameter(torch.randn(n, n) / n**0.5)\n"
        "    def forward(self, x):\n        y = torch.tanh(self.a @ torch.tanh(self.a @ x))\n"
        "        return torch.cat([x.flatten() * 2, y.sum(1)[:8]])\n\ndef get_inputs():\n"
        "    return [torch.randn(512, 128)]\n\ndef get_init_inputs():\n    return [512]\n"
    ),
)
FEW_LEFT_OUT = (
    HEADER
    + INIT
    + """        self.known, self.calls, self.place = set(), 0, 0
    def forward(self, x):
        key = float(x[0, 0])
        self.calls += 1
        if self.calls <= 2:
            self.known.add(key)
        self.place = 0 if key in self.known else self.place + 1
        if not 1 <= self.place <= MOST or self.calls <= 2:
            self.last = torch.tanh_(self.a @ torch.tanh_(self.a @ x)).sum(1)[:8]
        return torch.cat([x.flatten() * 2, self.last])
"""
)


@pytest.mark.slow
def test_few_costly_elements_left_out_in_a_chains_calls_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample hardly ever holds one of them, so a call that leaves them out is found only where its chain ends there.

    Each call has the same chance of that, so leaving out k calls is found with 1 - (1 - chance)**k. This program leaves
    them out in 12 calls of each chain. One that does so in 4 is found in about 9 of 10 verdicts (decision 001).
    """
    with chained_judge(monkeypatch, chain_ms=200.0) as judge:
        assert judge.evaluate(FEW, FEW_LEFT_OUT.replace("MOST", "0")).status is Status.CORRECT
        assert judge.evaluate(FEW, FEW_LEFT_OUT.replace("MOST", "12")).status is Status.WRONG_OUTPUT
