"""The drop-in: its own tests pass, and each promise of its guard holds."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from agent.optimized import KERNEL, MODULE, module_file
from cudal1_agent.errors import OptimizeError
from cudal1_agent.optimize import dropin_child, examine_child
from cudal1_agent.optimize.examine import Examined
from cudal1_agent.optimize.folder import DROPIN, OutFolder
from cudal1_agent.optimize.target import Target, read_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return read_target(str(module_file(tmp_path_factory.mktemp("module"))))


@pytest.fixture(scope="module")
def dropin(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    out = tmp_path_factory.mktemp("out") / "scaled_dropin"
    threads = torch.get_num_threads()
    task = module_file(out.parent, target.task.source, "task.py")
    examined = Examined.model_validate(examine_child._described(task, "cpu"))
    torch.set_num_threads(threads)
    folder = OutFolder(out, target, "cpu")
    folder.put(folder.stage(KERNEL, examined, [1e-5]))
    sys.path.insert(0, str(out.parent))
    yield importlib.import_module("scaled_dropin")
    sys.path.remove(str(out.parent))


def written(dropin: ModuleType) -> ModuleType:
    return importlib.import_module(f"{dropin.__name__}.test_dropin")


def test_the_tests_that_are_written_beside_a_dropin_pass(dropin: ModuleType) -> None:
    assert len(dropin_child.tests_of(written(dropin))) >= 8


def test_a_dropin_runs_the_text_that_was_judged(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As text, the last line is a comment. As UTF-7, it begins another line.
    hidden = f"# coding: utf-7\n{KERNEL}NAME = 'shown'\n# +AAo-NAME = 'hidden'\n"
    task = module_file(tmp_path, target.task.source, "task.py")
    examined = Examined.model_validate(examine_child._described(task, "cpu"))
    out = OutFolder(tmp_path / "hidden_dropin", target, "cpu")
    out.put(out.stage(hidden, examined, [1e-5]))
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("hidden_dropin.kernel").NAME == "shown"


def test_a_dropin_with_an_incorrect_kernel_fails_its_tests(
    target: Target, dropin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = importlib.import_module(f"{dropin.__name__}.op")
    op.clear()
    kernel = op.kernel.ModelNew
    monkeypatch.setattr(op.kernel.ModelNew, "forward", lambda self, x: torch.tanh(x).mul(self.scale))
    with pytest.raises(AssertionError, match="test_the_kernel_gives_the_answers_of_the_original"):
        dropin_child.tests_of(written(dropin))
    assert kernel is op.kernel.ModelNew
    monkeypatch.undo()
    op.clear()


def test_the_guard_names_what_differs(dropin: ModuleType) -> None:
    first, second = written(dropin)._made()
    x = torch.randn(64, 8)
    with torch.no_grad():
        assert second.why_not(x) is None
        assert "shape" in second.why_not(x[:3])
        assert "float64" in second.why_not(x.double())
        assert "strides" in second.why_not(torch.randn(8, 64).t())
        assert "meta" in second.why_not(x.to("meta"))
        assert "1" in second.why_not(x, x)
    assert "gradient" in second.why_not(x)
    torch.testing.assert_close(second(x[:3]), first(x[:3]))


def test_gradients_flow_through_the_original(dropin: ModuleType) -> None:
    _, second = written(dropin)._made()
    second(torch.randn(64, 8)).sum().backward()
    assert second.scale.grad is not None


def test_a_module_with_other_settings_is_served_by_the_original(dropin: ModuleType) -> None:
    other = dropin.Scaled(8, eps=0.5)
    with torch.no_grad():
        assert "other settings" in other.why_not(torch.randn(64, 8))
        torch.testing.assert_close(other(torch.zeros(64, 8)), torch.full((64, 8), 0.5))


def test_copies_and_saved_modules_have_a_state_of_their_own(dropin: ModuleType) -> None:
    _, second = written(dropin)._made()
    x = torch.randn(64, 8)
    with torch.no_grad():
        before = second(x)
        twin = copy.deepcopy(second)
        twin.scale.zero_()
        torch.testing.assert_close(twin(x), torch.full((64, 8), 1e-3))
        torch.testing.assert_close(second(x), before)


@pytest.mark.slow
def test_torch_compile_calls_the_operator_and_gives_the_same(dropin: ModuleType) -> None:
    _, second = written(dropin)._made()
    x = torch.randn(64, 8)
    with torch.no_grad():
        compiled = torch.compile(second, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), second(x))


def test_a_folder_that_holds_something_else_is_refused(target: Target, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("mine")
    with pytest.raises(OptimizeError, match="holds other files"):
        OutFolder(tmp_path / "notes", target, "cpu")
    with pytest.raises(OptimizeError, match="a Python name, such as my_block"):
        OutFolder(tmp_path / "my-block", target, "cpu")
    with pytest.raises(OptimizeError, match="a Python name, such as module_12_block"):
        OutFolder(tmp_path / "12_Block", target, "cpu")
    OutFolder(tmp_path / "block", target, "cpu").begin()
    changed = read_target(str(module_file(tmp_path, MODULE.replace("tanh", "sin"))))
    with pytest.raises(OptimizeError, match="another version of Scaled"):
        OutFolder(tmp_path / "block", changed, "cpu")


def test_a_dropin_is_taken_back_whole(target: Target, tmp_path: Path) -> None:
    folder = OutFolder(tmp_path / "block", target, "cpu")
    folder.begin()
    for name in DROPIN:
        (folder.path / name).write_text("old")
    folder.take_back()
    assert {one.name for one in folder.path.iterdir()} == {"search"}
