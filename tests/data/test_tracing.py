"""Near-duplicates: the same computation has the same fingerprint, another one has another."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from itertools import permutations
from pathlib import Path

import pytest
from cudal1_data import Task, load_suite
from cudal1_data.dedup.overlaps import find_overlaps
from cudal1_data.sources.kernelbench import notes
from cudal1_data.task import Memory
from cudal1_data.tracing import TaskGraph, Tracer, process, trace_tasks
from cudal1_data.tracing.canonical.build import Builder, Number
from cudal1_data.tracing.canonical.chains import joined
from cudal1_data.tracing.canonical.graph import Graph, Node, fingerprint
from hypothesis import given, settings
from hypothesis import strategies as st


def reference(forward: str, *, init: str = "pass", inputs: str = "torch.randn(8, 16)", head: str = "") -> str:
    """A reference program; `forward` takes x, or x and y."""
    arguments = "x" if inputs.count("torch.") == 1 else "x, y"
    return (
        f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n{head}\n"
        f"class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, {arguments}):\n        {forward}\n"
        f"def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
    )


def same(tracer: Tracer, first: str, second: str) -> bool:
    tasks = [Task(id="t", source=source, name="t", level=1, origin="t") for source in (first, second)]
    found = [tracer.trace(task, behaviour=False) for task in tasks]
    assert [one.error for one in found] == [None, None]
    return found[0].fingerprint == found[1].fingerprint


IMAGE = "torch.randn(2, 4, 8, 8)"
PAIR = "torch.randn(8, 16), torch.randn(8, 16)"
SAME = {
    "module and function": (
        reference("return self.f(x)", init="self.f = nn.Linear(16, 4)"),
        reference(
            "return F.linear(x, self.w, self.b)",
            init="self.w = nn.Parameter(torch.randn(4, 16)); self.b = nn.Parameter(torch.randn(4))",
        ),
    ),
    "a weight kept the other way round": (
        reference("return self.f(x)", init="self.f = nn.Linear(16, 4, bias=False)"),
        reference("return x @ self.kernel", init="self.kernel = nn.Parameter(torch.randn(16, 4))"),
    ),
    "one more dimension of rows": (
        reference("return torch.relu(self.f(x)) * 2", init="self.f = nn.Linear(16, 4)", inputs="torch.randn(3, 5, 16)"),
        reference("return 2 * F.relu(self.f(x))", init="self.f = nn.Linear(16, 4)"),
    ),
    "names, order, what is not used": (
        reference("y = x.exp(); unused = y.sum(); return y + x"),
        reference("a = x; b = torch.exp(a); return a + b"),
    ),
    "other shapes": (
        reference("return torch.softmax(x, dim=1).sum()"),
        reference("return torch.softmax(x, dim=-1).sum()", inputs="torch.randn(300, 2)"),
    ),
    "constants": (reference("return x * 2 * 3 + 1 + 2"), reference("return (x * N + 3)", head="N = 6")),
    "other constants": (reference("return x * 2"), reference("return x / 7")),
    "in place": (reference("y = x * 2; y += 1; return y.relu_()"), reference("return F.relu(x * 2 + 1)")),
    "softmax by hand": (
        reference("return F.softmax(x, -1)"),
        reference("e = torch.exp(x - x.amax(1, keepdim=True)); return e / e.sum(1, keepdim=True)"),
    ),
    "layer norm by hand": (
        reference("return self.n(x)", init="self.n = nn.LayerNorm(16, elementwise_affine=False)"),
        reference("d = x - x.mean(-1, keepdim=True); return d / torch.sqrt((d * d).mean(-1, keepdim=True) + 1e-5)"),
    ),
    "brackets": (
        reference("return (x + y) + x.exp()", inputs=PAIR),
        reference("return x + (y + x.exp())", inputs=PAIR),
    ),
    "sides": (reference("return x * y", inputs=PAIR), reference("return y * x", inputs=PAIR)),
    "order of arguments": (reference("return x - y", inputs=PAIR), reference("return y - x", inputs=PAIR)),
    "sizes of a convolution": (
        reference("return self.c(x)", init="self.c = nn.Conv2d(4, 6, 3, padding=1)", inputs=IMAGE),
        reference("return self.c(x)", init="self.c = nn.Conv2d(4, 9, (5, 2))", inputs=IMAGE),
    ),
    "bias added later": (
        reference("return self.c(x)", init="self.c = nn.Conv2d(4, 6, 3)", inputs=IMAGE),
        reference(
            "return F.conv2d(x, self.w) + self.b",
            init="self.w = nn.Parameter(torch.ones(6, 4, 3, 3)); self.b = nn.Parameter(torch.ones(6, 1, 1))",
            inputs=IMAGE,
        ),
    ),
    "precision": (reference("return x.exp()"), reference("return x.exp()", inputs="torch.randn(8, 16).bfloat16()")),
    "computed twice": (reference("return x.exp() * x.exp()"), reference("y = x.exp(); return y * y")),
    "relu in other words": (reference("return F.relu(x)"), reference("return torch.where(x > 0, x, 0.0)")),
    "attention": (
        reference("return F.scaled_dot_product_attention(x, x, x)", inputs="torch.randn(2, 3, 5, 4)"),
        reference(
            "return torch.softmax((x / 2 ** 0.5) @ (x / 2 ** 0.5).transpose(-2, -1), -1) @ x",
            inputs="torch.randn(2, 3, 7, 4)",
        ),
    ),
    "gradients": (
        reference(
            "x.requires_grad_(); g = torch.enable_grad(); g.__enter__(); "
            "y = torch.autograd.grad((x * x * x).sum(), x)[0]; g.__exit__(None, None, None); return y"
        ),
        reference(
            "x.requires_grad_(); g = torch.enable_grad(); g.__enter__(); "
            "y = torch.autograd.grad((x * (x * x)).sum(), x)[0]; g.__exit__(None, None, None); return y",
            inputs="torch.randn(3, 5)",
        ),
    ),
    "a condition that always holds": (
        reference("return torch.where(torch.full((16,), 3.0) > 2, x.exp(), x.tanh())"),
        reference("return x.exp()"),
    ),
    "a mask that hides nothing": (
        reference("return x.exp().tril(100).masked_fill(torch.zeros_like(x) > 0, -1.0)"),
        reference("return x.exp()"),
    ),
    "a mask that hides all": (
        reference("return y + x.exp().triu(100)", inputs=PAIR),
        reference("return y", inputs=PAIR),
    ),
    "a bound that binds nothing": (
        reference("return torch.clamp(x.exp(), min=float('-inf'), max=float('inf'))"),
        reference("return x.exp()"),
    ),
    "between two values": (
        reference("return torch.lerp(x, y, 0.25)", inputs=PAIR),
        reference("return x + 0.25 * (y - x)", inputs=PAIR),
    ),
    "a number that takes operators": (
        reference("return x.exp() * (torch.arange(3).sum() - 2) + torch.zeros(8, 1)"),
        reference("return x.exp()"),
    ),
    "products with unit matrices": (
        reference("return torch.eye(8) @ x.exp() @ torch.eye(16)"),
        reference("return x.exp()"),
    ),
    "a transposed product with a unit matrix": (
        reference("return (x.exp() @ torch.eye(16)).T"),
        reference("return x.exp().T"),
    ),
    "a product with nothing in it": (
        reference("return x.exp() @ torch.zeros(16, 16) + x.tanh()"),
        reference("return x.tanh()"),
    ),
    "one tensor joined": (reference("return torch.cat([x.exp()], 1)"), reference("return x.exp()")),
    "a transposed product": (
        reference("return (x.exp() @ y.T).T", inputs=PAIR),
        reference("return y @ x.exp().T", inputs=PAIR),
    ),
    "transposed products of a batch": (
        reference("return (x.exp() @ x.mT).mT", inputs="torch.randn(2, 3, 5, 4)"),
        reference("return x @ x.exp().mT", inputs="torch.randn(2, 3, 7, 4)"),
    ),
    "recurrence of another length": (
        reference("return self.r(x)[0]", init="self.r = nn.GRU(4, 5)", inputs="torch.randn(6, 2, 4)"),
        reference("return self.r(x)[0]", init="self.r = nn.GRU(4, 5)", inputs="torch.randn(9, 2, 4)"),
    ),
}
OTHER = {
    "operators": (reference("return x.exp()"), reference("return x.tanh()")),
    "a square and a product": (reference("return x * x"), reference("return x * y", inputs=PAIR)),
    "rows and columns": (reference("return x.sum(0)"), reference("return x.sum(1)")),
    "softmax of rows and columns": (reference("return x.softmax(0)"), reference("return x.softmax(1)")),
    "part and whole": (reference("return x.sum(1)"), reference("return x.sum()")),
    "transposed": (
        reference("return x @ y", inputs="torch.randn(4, 4), torch.randn(4, 4)"),
        reference("return x.T @ y", inputs="torch.randn(4, 4), torch.randn(4, 4)"),
    ),
    "order of operators": (reference("return x.exp().sum(1)"), reference("return x.sum(1).exp()")),
    "one more operator": (reference("return F.relu(x)"), reference("return F.relu(x) + 1")),
    "exponents": (reference("return x ** 2"), reference("return x ** 3")),
    "signs": (reference("return 1 - x"), reference("return 1 + x")),
    "root of a square": (reference("return (x * x).sqrt()"), reference("return x * 1")),
    "how an operand spreads": (
        reference("return x * y", inputs=PAIR),
        reference("return x * y", inputs="torch.randn(8, 16), torch.randn(16)"),
    ),
    "row and column": (
        reference("return x * y", inputs="torch.randn(8, 16), torch.randn(8, 1)"),
        reference("return x * y", inputs="torch.randn(8, 16), torch.randn(16)"),
    ),
    "with and without bias": (
        reference("return self.f(x)", init="self.f = nn.Linear(16, 4)"),
        reference("return self.f(x)", init="self.f = nn.Linear(16, 4, bias=False)"),
    ),
    "layers": (
        reference("return self.a(x)", init="self.a = nn.Linear(16, 16)"),
        reference("return self.a(self.a(x))", init="self.a = nn.Linear(16, 16)"),
    ),
    "one weight twice or two weights": (
        reference("return self.a(self.a(x))", init="self.a = nn.Linear(16, 16)"),
        reference("return self.b(self.a(x))", init="self.a = nn.Linear(16, 16); self.b = nn.Linear(16, 16)"),
    ),
    "groups of a convolution": (
        reference("return self.c(x)", init="self.c = nn.Conv2d(4, 4, 3)", inputs=IMAGE),
        reference("return self.c(x)", init="self.c = nn.Conv2d(4, 4, 3, groups=4)", inputs=IMAGE),
    ),
    "convolution of points": (
        reference("return self.c(x)", init="self.c = nn.Conv2d(4, 4, 3)", inputs=IMAGE),
        reference("return self.c(x)", init="self.c = nn.Conv2d(4, 4, 1)", inputs=IMAGE),
    ),
    "windows of one and two dimensions": (
        reference("return F.avg_pool1d(x, 2)", inputs="torch.randn(2, 4, 8)"),
        reference("return F.avg_pool2d(x, 2)", inputs=IMAGE),
    ),
    "pooling": (
        reference("return F.max_pool2d(x, 2)", inputs=IMAGE),
        reference("return F.avg_pool2d(x, 2)", inputs=IMAGE),
    ),
    "fractions cut off": (reference("return x.long().float()"), reference("return x * 1")),
    "scan and sum": (reference("return x.cumsum(1)"), reference("return x.sum(1, keepdim=True).expand_as(x)")),
    "batches of matrices": (
        reference("return x @ y", inputs="torch.randn(3, 4, 5), torch.randn(3, 5, 4)"),
        reference("return x @ y", inputs="torch.randn(3, 4, 5), torch.randn(5, 4)"),
    ),
    "masks": (
        reference("return x.masked_fill(torch.arange(16) < 3, 0.0)"),
        reference("return x.masked_fill(torch.arange(16) < 16, 0.0)"),
    ),
    "the unit matrix added": (
        reference("return x + torch.eye(16)", inputs="torch.randn(16, 16)"),
        reference("return x + torch.ones(16, 16)", inputs="torch.randn(16, 16)"),
    ),
    "a matrix with ones beside its diagonal": (
        reference("return x @ torch.eye(16).roll(1, 0)"),
        reference("return x * 1"),
    ),
    "draws": (
        reference("return x * torch.bernoulli(torch.full((16,), 0.5))"),
        reference("return x * torch.full((16,), 0.5)"),
    ),
    "triangles": (reference("return x.tril()"), reference("return x.triu()")),
}


@pytest.mark.parametrize("name", SAME)
def test_same_computation(tracer: Tracer, name: str) -> None:
    assert same(tracer, *SAME[name])


@pytest.mark.parametrize("name", OTHER)
def test_other_computation(tracer: Tracer, name: str) -> None:
    assert not same(tracer, *OTHER[name])


@pytest.mark.slow
def test_a_task_that_cannot_be_traced_leaves_the_others_alone() -> None:
    sources = {
        "good": reference("return x + 1"),
        "values": reference("return x * 2 if x.sum() > 0 else x"),
        "raises": reference("raise ValueError('not today')"),
        "dies": reference("import os; os._exit(3)"),
        "hangs": reference("import time; time.sleep(600)"),
        "prints": reference("print('hello'); return x + 2"),
    }
    tasks = [Task(id=name, source=source, name=name, level=1, origin="t") for name, source in sources.items()]
    found = {one.id: one for one in trace_tasks(tasks, timeout_s=20)}
    assert found["good"].fingerprint == found["prints"].fingerprint is not None
    assert "not today" in (found["raises"].error or "")
    assert "exit status 3" in (found["dies"].error or "")
    assert "more than 20 s" in (found["hangs"].error or "")
    assert "DataDependent" in (found["values"].error or "") or "GuardOnData" in (found["values"].error or "")
    report = find_overlaps(("mine", list(found.values())), ("again", [found["prints"]]))
    assert [one.task for one in report.overlaps] == ["good"]
    assert report.failed.keys() == {"values", "raises", "dies", "hangs"}


def test_files_of_one_name_in_two_suites_are_compared(tracer: Tracer) -> None:
    graph = tracer.trace(Task(id="file/op", source=reference("return x + 2"), name="op", level=1, origin="file"))
    assert [one.task for one in find_overlaps(("mine", [graph]), ("test", [graph])).overlaps] == ["file/op"]
    assert not find_overlaps(("mine", [graph]), ("mine", [graph])).overlaps


def test_several_processes_trace_and_results_keep_the_order_of_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    second = threading.Event()

    def trace(_: Tracer, task: Task) -> TaskGraph:
        if task.id == "first":
            assert second.wait(30), "expected two tracers at work"
        else:
            second.set()
        return TaskGraph(id=task.id, error="a double")

    monkeypatch.setattr(Tracer, "trace", trace)
    monkeypatch.setattr(process, "PER_CHILD", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    tasks = [Task(id=name, source=name, name=name, level=1, origin="t") for name in ("first", "second", "third")]
    assert [one.id for one in trace_tasks(tasks)] == ["first", "second", "third"]


def test_a_trace_reports_randomness_and_memory(tracer: Tracer) -> None:
    source = reference("return F.dropout(self.f(x), 0.5)", init="self.f = nn.Linear(16, 4)")
    found = tracer.trace(Task(id="t", source=source, name="t", level=1, origin="t"))
    assert found.random
    assert found.memory == Memory(inputs_bytes=8 * 16 * 4, state_bytes=(16 * 4 + 4) * 4, outputs_bytes=8 * 4 * 4)
    assert not tracer.trace(Task(id="u", source=source.replace("0.5", "0.0"), name="u", level=1, origin="t")).random


def test_inputs_larger_than_any_machine_need_no_memory(tracer: Tracer) -> None:
    source = reference("return x + 1", inputs="torch.randn(2 ** 20, 2 ** 20)")
    found = tracer.trace(Task(id="t", source=source, name="t", level=1, origin="t"))
    assert found.memory is not None
    assert found.memory.total_bytes == 8 * 2**40


def test_no_torch_without_a_trace() -> None:
    code = "import sys, cudal1_data, cudal1_data.tracing, cudal1_data.dedup, cudal1_data.cli"
    code += "; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


leaves = st.lists(st.sampled_from(["exp", "tanh", "abs"]), min_size=1, max_size=4)


def chain(op: str, leaves: list[str], numbers: list[float]) -> Graph:
    """x.exp() + 2 + x.abs() + ... in the order given."""
    builder = Builder()
    x = builder.leaf("input", (4, 5))
    values = [*(builder.pointwise(leaf, [x], (4, 5)) for leaf in leaves), *map(Number, numbers)]
    total = values[0]
    for value in values[1:]:
        total = builder.pointwise(op, [total, value], (4, 5), ordered=False)
    return joined(builder.graph([total]))


@settings(deadline=None)
@given(st.sampled_from(["add", "mul"]), leaves, st.randoms())
def test_the_order_of_a_chain_does_not_matter(op: str, names: list[str], random: object) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fingerprint(chain(op, names, [])) == fingerprint(chain(op, shuffled, []))
    assert fingerprint(chain(op, names, [2.0, 3.0])) == fingerprint(chain(op, shuffled, [7.5]))
    assert fingerprint(chain(op, names, [2.0])) != fingerprint(chain(op, names, []))
    neutral = [4.0, -4.0] if op == "add" else [4.0, 0.25]
    assert fingerprint(chain(op, names, neutral)) == fingerprint(chain(op, names, []))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes = [Node("input", identity=(place,)) for place in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 6))):
        sources = draw(st.lists(st.integers(0, len(nodes) - 1), min_size=1, max_size=2))
        ordered = draw(st.booleans())
        op = draw(st.sampled_from(["f", "g"]))
        nodes.append(Node(op, (), tuple((source, "") for source in sources), ordered))
    return Graph(tuple(nodes), ((len(nodes) - 1, ""),))


@settings(deadline=None, max_examples=60)
@given(graphs(), st.data())
def test_fingerprints_know_no_names(graph: Graph, data: st.DataObject) -> None:
    """Nodes in any other order that still puts sources first, and swapped arguments of symmetric nodes."""
    count = len(graph.nodes)
    ready, order = set(range(count)), list[int]()
    while ready:
        free = sorted(place for place in ready if not ready & set(graph.nodes[place].sources))
        order.append(data.draw(st.sampled_from(free)))
        ready.remove(order[-1])
    places = {old: new for new, old in enumerate(order)}

    def moved(node: Node) -> Node:
        edges = tuple((places[source], label) for source, label in node.edges if source is not None)
        edges = edges if node.ordered else data.draw(st.sampled_from(list(permutations(edges))))
        return Node(node.op, node.attributes, edges, node.ordered, node.identity)

    swapped = Graph(
        tuple(moved(graph.nodes[old]) for old in order),
        tuple((places[source], label) for source, label in graph.outputs if source is not None),
    )
    assert fingerprint(swapped) == fingerprint(graph)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(graphs())
def test_another_operator_is_another_graph(graph: Graph) -> None:
    last = graph.nodes[-1]
    changed = Graph((*graph.nodes[:-1], Node("h", (), last.edges, last.ordered)), graph.outputs)
    assert fingerprint(changed) != fingerprint(graph)


@pytest.mark.slow
def test_starter_tasks_name_what_they_overlap(tracer: Tracer) -> None:
    """Near-duplicates of KernelBench among the starter tasks say so; the notes hold KernelBench's graphs."""
    graphs = {note.graph: name for name, note in notes().items() if note.graph is not None}
    assert len(graphs) > 200
    seen: dict[str, str] = {}
    for task in load_suite("starter"):
        found = tracer.trace(task, behaviour=False).fingerprint
        assert found is not None
        assert seen.setdefault(found, task.id) == task.id  # nor is one of them a near-duplicate of another
        if found in graphs:
            assert task.overlaps is not None, f"{task.id} has the graph of {graphs[found]}"
            named = notes()[task.overlaps.removeprefix("kernelbench/")]
            assert named.graph == found


@pytest.mark.parametrize(
    ("inputs", "forward"),
    [("torch.randn(ROWS, COLS)", "return x + 1"), ("torch.randn(ROWS, 4), torch.randn(4, COLS)", "return x @ y")],
    ids=["large inputs", "a large product of small inputs"],
)
def test_large_references_are_told_without_their_memory(inputs: str, forward: str) -> None:
    head = "ROWS = int('4096')\nCOLS = int('32768')"  # no constants, so they stay: a gigabyte in float64
    source = reference(forward, inputs=inputs, head=head)
    with Tracer() as tracer:
        graph = tracer.trace(Task(id="t", source=source, name="t", level=1, origin="t"))
        assert tracer._child._child is not None
        status = Path(f"/proc/{tracer._child._child.pid}/status").read_text()
    assert (graph.error, graph.behaviour) == (None, ())
    peak_kb = int(status.split("VmHWM:")[1].split()[0])
    assert peak_kb < 900_000
