"""The family `llm`: blocks of language models in three dtypes, each sound at its size for a CPU."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch
from cudal1_data import Task, UnknownSuiteError, UnknownTaskError, load_suite, load_task
from cudal1_data.generator import make_task, tag_of
from cudal1_data.generator.families.llm import BLOCKS
from cudal1_data.task import check_reference
from cudal1_env.campaigns.scan import Scan
from cudal1_env.campaigns.scan_child import measured
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

SUITE = load_suite("generated:llm?n=180&seed=11")


def block_of(task: Task) -> str:
    """The block that a task's name begins with."""
    return task.name.removeprefix("llm, ").partition(":")[0]


def test_every_block_is_made_in_every_dtype() -> None:
    assert len(BLOCKS) == 11
    counts = Counter(tag_of(task, "dtype") for task in SUITE)
    assert set(counts) == {"float32", "bfloat16", "float16"}
    assert min(counts.values()) >= 0.2 * len(SUITE)
    found = {(block_of(task), tag_of(task, "dtype")) for task in SUITE}
    assert found == {(name, dtype) for name in BLOCKS for dtype in counts}


def test_sources_are_in_the_form_of_kernelbench() -> None:
    for task in SUITE:
        check_reference(task.source, where=task.id)
        assert max(map(len, task.source.splitlines())) <= 150, task.id
        assert not re.search(r"seed|\.float\(\)|torch\.float32|torch\.float64", task.source), task.id
        for name, value in task.sizes["cpu"].default.items():
            assert re.search(rf"^{name} = {value}$", task.source, re.M), task.id


def test_sizes_on_a_gpu_are_those_of_models() -> None:
    for task in SUITE:
        sizes = task.sizes["cuda"].default
        assert 2048 <= sizes.get("HIDDEN", 2048) <= 16384, task.id
        assert sizes.get("HEAD_DIM", 64) in (64, 128), task.id
        assert 1 <= sizes.get("KV_HEADS", 1) <= 8, task.id
        assert 32000 <= sizes.get("VOCAB", 32000) <= 128256, task.id
        assert sizes.get("HEADS", 8) % sizes.get("KV_HEADS", 1) == 0, task.id
        assert min(sizes.values()) >= 1


class Traffic(TorchDispatchMode):
    """Counts the bytes that operators read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.gigabytes = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Carry out one operator call."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [one for one in tree_leaves((args, kwargs, result)) if isinstance(one, torch.Tensor)]
            self.gigabytes += sum(one.nbytes for one in tensors) / 1e9
        return result


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_a_gpu_has_enough_to_do_and_memory_to_spare(block: str) -> None:
    """Bytes that the reference's operators move at a GPU's sizes, and floating-point operations; no tensor is made."""
    for task in [task for task in SUITE if block_of(task) == block][:6]:
        names = program(task.on("cuda"))
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as flops, Traffic() as traffic:
            model = names["Model"](*names["get_init_inputs"]())
            inputs = names["get_inputs"]()
            traffic.gigabytes, before = 0.0, flops.get_total_flops()
            outputs = model(*inputs)
        kept = [*inputs, *model.parameters(), *(outputs if isinstance(outputs, tuple) else [outputs])]
        assert sum(one.nbytes for one in kept) <= 2.5e9, task.id
        enough = traffic.gigabytes >= 0.5 or (flops.get_total_flops() - before) / 790e9 >= 0.3
        assert enough, f"{task.id}: {traffic.gigabytes:.2f} GB"
        assert traffic.gigabytes <= 16, f"{task.id}: {traffic.gigabytes:.2f} GB"


def test_structures_are_many_and_outputs_several() -> None:
    structures = Counter(tag_of(task, "structure") for task in SUITE)
    assert len(structures) >= 0.5 * len(SUITE)
    assert sum("; " in text for text in structures) >= 10
    assert {task.split for task in SUITE} == {"train", "validation", "test"}


def test_no_task_has_gradients() -> None:
    with pytest.raises(ValueError, match="llm has no tasks with gradients"):
        make_task("llm", 0, 0, backward=True)
    with pytest.raises(UnknownTaskError, match="llm has no tasks with gradients"):
        load_task("generated/llm-0-0-backward")
    with pytest.raises(UnknownSuiteError, match="llm has no tasks with gradients; leave it or backward=1 out"):
        load_suite("generated:softmax+llm?n=4&backward=1")
    assert {tag_of(task, "family") for task in load_suite("generated?n=34")} >= {"llm"}
    assert "llm" not in {tag_of(task, "family") for task in load_suite("generated?n=34&backward=1")}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_task_of_each_block_passes_all_checks(block: str) -> None:
    assert faults_of(next(task for task in SUITE if block_of(task) == block)) == ()


@pytest.mark.slow
@pytest.mark.parametrize("task", SUITE[:22], ids=lambda task: task.id.partition("/")[2])
def test_every_task_passes_all_checks(task: Task) -> None:
    assert faults_of(task) == ()


def faults_of(task: Task) -> tuple[str, ...]:
    """What is wrong with a task at its size for a CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return tuple(Scan(task=task.id, sha256="", **measured(task.source, task.id)).faults)
    finally:
        torch.set_num_threads(threads)


def program(task: Task) -> dict[str, Any]:
    """Names of a task's program."""
    names: dict[str, Any] = {}
    exec(compile(task.source, task.id, "exec"), names)
    return names


def test_tokens_are_the_same_for_logits_with_the_rounding_of_another_order() -> None:
    """Filters and choices must not hang on the last place of a logit."""
    tasks = [task for task in SUITE if block_of(task) == "sampling"][:5]
    rows = moved = 0
    for task in tasks:
        names = program(task)
        torch.manual_seed(3)
        model, inputs = names["Model"](), names["get_inputs"]()
        wide = [one.double() if one.is_floating_point() else one for one in inputs]
        shaken = [wide[0] * (1 + 1e-7 * torch.randn_like(wide[0])), *wide[1:]]
        first, second = (model(*values)[0] for values in (wide, shaken))
        rows += len(first)
        moved += int((first != second).sum())
    assert rows >= 40
    assert moved == 0


def test_routers_choose_as_many_experts_as_they_say() -> None:
    tasks = [task for task in SUITE if block_of(task) == "router" and "factor" in task.source]
    assert len(tasks) >= 3
    for task in tasks:
        names = program(task)
        torch.manual_seed(3)
        weights = names["Model"]()(*names["get_inputs"]())
        assert ((weights > 0).sum(-1) == names["TOP_K"]).all(), task.id


def test_the_structure_names_all_inputs_and_weights() -> None:
    for task in SUITE:
        inputs = re.search(r"def forward\(self, (.*)\):", task.source)
        assert inputs is not None
        text = tag_of(task, "structure")
        leaves = set(re.findall(r"\b[xwi]\d+", text))
        weights = len(re.findall(r"nn\.Parameter\(", task.source))
        assert len(leaves) == inputs[1].count(",") + 1 + weights, task.id
