"""What a user hands to optimize: which files become tasks, and which modules cannot be judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from agent.optimized import MODULE, module_file
from cudal1_agent.errors import OptimizeError
from cudal1_agent.optimize import examine_child
from cudal1_agent.optimize.examine import Examined, run_child
from cudal1_agent.optimize.target import read_target, renamed
from cudal1_data.errors import BrokenTaskError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.task import check_reference

KERNELBENCH = (
    MODULE.replace("Scaled", "Model").replace("example_inputs", "get_inputs").replace("def init_", "def get_init_")
)
MODULES = sorted((Path(__file__).parents[2] / "examples" / "optimize").glob("*.py"))


@pytest.mark.parametrize("text", [MODULE, KERNELBENCH])
def test_a_module_with_example_inputs_is_a_task_in_kernelbenchs_form(tmp_path: Path, text: str) -> None:
    target = read_target(str(module_file(tmp_path, text)))
    check_reference(target.task.source, where="task")
    assert target.task.source == KERNELBENCH


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_each_example_is_a_task(path: Path) -> None:
    check_reference(read_target(str(path)).task.source, where=path.name)


def test_templates_can_read_a_task_made_from_a_module() -> None:
    assert read(read_target(str(MODULES[0])).task.source).roots


def test_renaming_leaves_attributes_strings_and_comments_alone() -> None:
    text = "class A:\n    x = 'A'  # A\n    def f(self): return self.A, A\n"
    assert renamed(text, {"A": "Model"}) == text.replace("class A", "class Model").replace(", A\n", ", Model\n")


@pytest.mark.parametrize(
    ("text", "what", "said"),
    [
        (MODULE, "none.py", "cannot read"),
        (MODULE, "mine.py:Scald", "no class 'Scald'; did you mean 'Scaled'"),
        (MODULE.replace("example_inputs", "examples"), "mine.py", "define `def example_inputs"),
        (MODULE + "\n\nclass Other(nn.Module): ...\n", "mine.py", "name one: "),
        (MODULE + "\n\nclass Model: ...\n", "mine.py:Scaled", "defines Model beside Scaled"),
        ("x = 1\n", "mine.py", "no subclass of nn.Module"),
        ("def f(:\n", "mine.py", "not Python: syntax error in line 1"),
    ],
)
def test_a_file_that_is_no_module_gives_one_sentence(tmp_path: Path, text: str, what: str, said: str) -> None:
    module_file(tmp_path, text)
    with pytest.raises((OptimizeError, BrokenTaskError)) as error:
        read_target(str(tmp_path / what))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def described(tmp_path: Path, text: str) -> dict[str, object]:
    path = module_file(tmp_path, read_target(str(module_file(tmp_path, text))).task.source, "task.py")
    threads = torch.get_num_threads()
    try:
        return examine_child._described(path, "cpu")
    finally:
        torch.set_num_threads(threads)


def test_a_module_is_described(tmp_path: Path) -> None:
    found = Examined.model_validate(described(tmp_path, MODULE))
    assert [one.tensor.shape for one in found.inputs if one.tensor] == [(64, 8)]
    assert found.outputs[0].stride == (8, 1)
    assert found.state.keys() == {"scale"}
    assert found.configuration[""] == {"eps": "0.001"}
    assert found.functions == 64 * 8
    assert found.moved_bytes == 2 * 64 * 8 * 4
    assert found.bound_ms > 0
    assert not found.mode_matters


FORWARD = "return torch.tanh(x) * self.scale + self.eps"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (FORWARD, "return torch.dropout(x, 0.5, self.training)", "different outputs"),
        (FORWARD, "return x.add_(1)", "in place"),
        (FORWARD, "return {'y': x}", "forward returns dict"),
        ("return [torch.randn(ROWS, 8)]", "return [torch.ones(ROWS, 8)]", "the same in each call"),
        ("return [torch.randn(ROWS, 8)]", "return [torch.empty(ROWS, 8, device='meta')]", "lies on meta"),
        ("return [torch.randn(ROWS, 8)]", "return [3]", "none of its inputs is a tensor"),
        ("torch.tanh(x) * self.scale + self.eps", "self.norm(x)", "changes its state"),
    ],
)
def test_a_module_that_cannot_be_judged_is_refused_with_the_reason(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = MODULE.replace(old, new).replace(
        "self.eps = eps\n", "self.eps = eps\n        self.norm = nn.BatchNorm1d(8)\n"
    )
    with pytest.raises(examine_child._Unfit, match=said):
        described(tmp_path, text)


def test_a_module_that_never_ends_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    path = module_file(tmp_path, "while True: ...\n")
    with pytest.raises(OptimizeError, match=r"not finished after 1 s; give a larger --budget"):
        run_child("examine_child", [str(path), "cpu"], timeout_s=1.0, what="Endless")
