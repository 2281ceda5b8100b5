"""What the stages use of TRL that TRL does not promise, held to the installed version."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
from cudal1_agent.errors import ConfigError
from cudal1_agent.policies.embedded import make_embedded
from cudal1_agent.policies.transformers import load_model, load_tokenizer
from cudal1_agent.settings import EmbeddedModel
from cudal1_agent.stages.contrast import ContrastTrainer, check_steps, task_order
from cudal1_agent.stages.supervised import SupervisedTrainer
from cudal1_agent.stages.trl import arguments, unchanged_module
from datasets import Dataset
from doubles.training import suite
from transformers import AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

TASKS = tuple(suite().train)
SHAPE = EmbeddedModel(vocabulary=400, hidden=32, layers=1, heads=2, intermediate=64, context=256)
TABLE: dict[str, Any] = {
    "max_steps": 3,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 4,
    "logging_steps": 1,
    "save_steps": 3,
}


def test_trl_still_has_the_private_method_that_is_overridden() -> None:
    method = GRPOTrainer._generate_and_score_completions
    assert list(inspect.signature(method).parameters) == ["self", "inputs"]
    assert "self._generate_and_score_completions(generation_batch)" in inspect.getsource(GRPOTrainer._prepare_inputs)


def test_a_stage_undoes_what_it_replaces_in_the_models_module(tmp_path: Path) -> None:
    model = load_model(
        make_embedded(tmp_path / "model", TASKS, SHAPE, seed=0), load_tokenizer(tmp_path / "model"), use_cpu=True
    )
    module: Any = sys.modules[type(model).__module__]
    layer = module.LlamaMLP
    with pytest.raises(ZeroDivisionError), unchanged_module(model):
        module.LlamaMLP = type("Replaced", (layer,), {})
        raise ZeroDivisionError
    assert module.LlamaMLP is layer


def test_every_step_generates_from_the_prompt_written_for_it(tmp_path: Path) -> None:
    model = make_embedded(tmp_path / "model", TASKS, SHAPE, seed=0)
    config = arguments(GRPOConfig, TABLE, folder=tmp_path / "trainer", seed=0, use_cpu=True)
    config.shuffle_dataset = False
    order = task_order(TASKS, config, seed=0)
    written: list[tuple[str, int]] = []
    seen: list[tuple[list[str], list[str]]] = []

    def write(task: str, step: int) -> str:
        written.append((task, step))
        return f"{task} {step}\n"

    def score(prompts: list[str], completions: list[str], task: list[str], **_: Any) -> list[float]:
        seen.append((prompts, task))
        return [float(len(text)) for text in completions]

    trainer = ContrastTrainer(
        write_prompt=write,
        model=str(model),
        reward_funcs=[score],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "", "task": task} for task in order]),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    generated: list[list[str]] = []
    generate = trainer._generate

    def spy(prompts: Any) -> Any:
        generated.append(list(prompts))
        return generate(prompts)

    trainer._generate = spy  # type: ignore[method-assign]
    trainer.train()

    assert len(order) == 6
    expected = [
        [order[2 * step]] * 4 + [order[2 * step + 1]] * 4 for step in range(3)
    ]  # groups lie side by side, in the order of the dataset
    assert [tasks for _, tasks in seen] == expected
    assert generated == [[f"{task} {step}\n" for task in tasks] for step, tasks in enumerate(expected)]
    assert [prompts for prompts, _ in seen] == generated
    assert len(written) == 6, "one prompt for each task and step, not for each answer"


def test_a_checkpoint_within_a_generation_batch_is_refused(tmp_path: Path) -> None:
    def made(**changes: Any) -> GRPOConfig:
        return arguments(GRPOConfig, {**TABLE, **changes}, folder=tmp_path, seed=0, use_cpu=True)

    check_steps(made())
    check_steps(made(num_iterations=3))
    with pytest.raises(ConfigError, match="save_steps"):
        check_steps(made(num_iterations=2))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output_dir": "elsewhere"}, "exact resumption"),
        ({"max_steps": 0}, "max_steps in a trl table is 0; set a finite number above 0"),
        ({"max_steps": -1}, "max_steps in a trl table is -1; set a finite number above 0"),
        ({"learning_rate": -1.0}, "learning_rate in a trl table is -1.0; set a finite number of 0 or more"),
        ({"temperature": float("nan")}, "temperature in a trl table is nan; set a finite number"),
        ({"per_device_train_batch_size": -8}, "per_device_train_batch_size in a trl table is -8"),
        (
            {"gradient_accumulation_steps": 0},
            "gradient_accumulation_steps in a trl table is 0; set a finite number above 0",
        ),
        ({"max_completion_length": -1}, "max_completion_length in a trl table is -1"),
        ({"max_steps": "many"}, "max_steps in a trl table is 'many': Input should be a valid integer"),
        ({"temperature": "hot"}, "temperature in a trl table is 'hot': Input should be a valid number"),
        ({"bf16": "yes"}, "bf16 in a trl table is 'yes': Input should be a valid boolean"),
        ({"learning_rat": 1.0}, "no setting 'learning_rat'; did you mean 'learning_rate'"),
        ({"save_steps": 3, "logging_steps": 2}, "multiple of logging_steps"),
    ],
)
def test_an_invalid_trl_table_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        arguments(GRPOConfig, {**TABLE, **changes}, folder=tmp_path, seed=0, use_cpu=True)


def test_a_trl_table_without_its_number_of_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_steps in a trl table is missing"):
        arguments(GRPOConfig, {}, folder=tmp_path, seed=0, use_cpu=True)


def test_kernels_that_are_not_installed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal1_agent.stages.trl.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"cudal1-agent\[liger\]"):
        arguments(GRPOConfig, {**TABLE, "use_liger_kernel": True}, folder=tmp_path, seed=0, use_cpu=True)


def test_a_table_goes_to_trl_unchanged(tmp_path: Path) -> None:
    config = arguments(GRPOConfig, {**TABLE, "epsilon_high": 0.28, "beta": 0.5}, folder=tmp_path, seed=7, use_cpu=True)
    assert (config.epsilon_high, config.beta, config.seed) == (0.28, 0.5, 7)
    assert {name: getattr(config, name) for name in TABLE} == TABLE


def test_the_padding_of_each_logged_step_is_what_its_batches_hold(tmp_path: Path) -> None:
    model = make_embedded(tmp_path / "model", TASKS, SHAPE, seed=0)
    table: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 2, "logging_steps": 2, "save_steps": 4}
    config = arguments(SFTConfig, table, folder=tmp_path / "trainer", seed=0, use_cpu=True)
    config.train_sampling_strategy = "sequential"
    config.dataset_kwargs = {"skip_prepare_dataset": True}
    lengths = [3, 5, 4, 4, 10, 2, 7, 7]
    rows = [{"input_ids": [5] * length, "labels": [5] * length} for length in lengths]
    trainer = SupervisedTrainer(
        model=str(model), args=config, train_dataset=Dataset.from_list(rows), processing_class=load_tokenizer(model)
    )
    trainer.train()
    shares = [line["padding_share"] for line in trainer.state.log_history if "loss" in line]
    assert shares == pytest.approx([1 - 16 / (2 * 5 + 2 * 4), 1 - 26 / (2 * 10 + 2 * 7)])


def test_a_model_learns_the_same_without_a_mask_over_padding(tmp_path: Path) -> None:
    model = make_embedded(tmp_path / "model", TASKS, SHAPE, seed=0)
    rows = [{"input_ids": [5 + place for place in range(n)], "labels": [-100] + [7] * (n - 1)} for n in (3, 9, 5, 5)]
    losses: list[list[float]] = []
    masks: list[bool] = []
    for trainer_class in (SFTTrainer, SupervisedTrainer):
        table: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "save_steps": 2}
        config = arguments(SFTConfig, table, folder=tmp_path / trainer_class.__name__, seed=0, use_cpu=True)
        config.train_sampling_strategy = "sequential"
        config.dataset_kwargs = {"skip_prepare_dataset": True}
        trainer = trainer_class(
            model=str(model), args=config, train_dataset=Dataset.from_list(rows), processing_class=load_tokenizer(model)
        )
        inner: Any = trainer.model
        inner.model.register_forward_pre_hook(
            lambda _, values, named: masks.append(named.get("attention_mask") is not None), with_kwargs=True
        )
        trainer.train()
        losses.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert masks == [True, True, False, False]
