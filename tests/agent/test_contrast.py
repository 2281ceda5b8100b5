"""Stage 3: what its prompts show, what TRL is told of answers, and what an arm changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cudal1_agent.config import with_flags
from cudal1_agent.data.prompts import build_answer
from cudal1_agent.errors import ConfigError
from cudal1_agent.evaluation.assessment import prompts_for, rule_of
from cudal1_agent.policies.embedded import make_embedded
from cudal1_agent.run.folder import METRICS
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.run.session import Session
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import ContrastSettings, Settings
from cudal1_agent.stages.contrast import ContrastTrainer, contrast_config, prompt_writer, run_contrast
from cudal1_agent.stages.scoring import NO_SECTIONS, REFUSED, TRUNCATED, Drawn, Outcome, Scorer, alike
from cudal1_agent.stages.seeds import seed
from cudal1_data import Task
from cudal1_env.exemplars import BucketExemplars, NoExemplars
from cudal1_env.gate import AuditReport, TaskAudit, reference_sha256
from cudal1_env.reward import LOG_FLOOR, RewardSmoother, reward_of
from datasets import Dataset
from doubles.training import SMALL_MODEL, HashEvaluator, evaluation, session, suite
from transformers import AutoTokenizer

TRL: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "max_completion_length": 4,
    "logging_steps": 1,
    "save_steps": 2,
}
SETTINGS = with_flags(
    Settings(),
    {
        "device": "cpu",
        "embedded": SMALL_MODEL.model_dump(),
        "contrast": {"plain_share": 0.0, "trl": TRL},
        "prompt": {"max_tokens": 400},
    },
)
END = 1


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def scored(run: Session, answers: Sequence[str], ids: Sequence[Sequence[int]] | None = None, **more: Any) -> Any:
    scorer = Scorer(run, RewardSmoother(), 2, ends=frozenset({END}))
    rewards = scorer(
        answers,
        ids or [[5, END]] * len(answers),
        [run.tasks.train[0].id] * len(answers),
        SimpleNamespace(global_step=7),
        lambda name, value: None,
        **more,
    )
    return rewards, scorer, read_metrics(run.folder.path / METRICS)[-1]


def programs(run: Session, *, correct: bool, count: int) -> list[str]:
    """Programs of the first task that the double calls correct, or not."""
    task, found = run.tasks.train[0], []
    for number in range(100):
        source = f"class ModelNew: ...  # {number}\n"
        if HashEvaluator().evaluate(task, source).correct == correct:
            found.append(source)
    return found[:count]


def log_reward(task: Task, source: str) -> float:
    return reward_of(HashEvaluator().evaluate(task, source), "log")


def test_a_marked_task_pays_and_shows_nothing_above_one(tmp_path: Path) -> None:
    first = suite()[0]
    found = TaskAudit(name=first.id, sha256=reference_sha256(first), verdict="survivors", survivors=("zeros",), sets=12)
    report = AuditReport(suite="small", device="cpu", max_sets=12, tasks=(found,))
    evaluator = HashEvaluator()
    evaluator.learn(report)
    with session(tmp_path / "run", SETTINGS) as run:
        run.verdicts = Verdicts(evaluator, run.folder.archive)
        fast = next(one for one in programs(run, correct=True, count=99) if log_reward(first, one) > 0.0)
        scorer = scored(run, [build_answer("a", "b", fast)])[1]
        assert scorer.smoother.recent == (0.0,), "the logarithm of 1"
        (kept,) = run.folder.archive.evaluations()
        assert kept.speedup is not None
        assert kept.speedup.point > 1.0
        drawn: list[Drawn] = []
        prompt = prompt_writer(run, tmp_path / "run" / "model", drawn, chat=False)(first.id, 0)
        assert len(drawn[0].programs) == 1
        assert "(1.00)" in str(prompt)
        contrastive = with_flags(SETTINGS, {"evaluation": {"exemplars": True}})
        builder = run.prompts(tmp_path / "run" / "model")
        evaluated = prompts_for(builder, contrastive, run.folder.archive)(first)
        assert "(1.00)" in evaluated


def test_truncated_answers_get_no_reward_and_answers_without_sections_that_of_a_failure(tmp_path: Path) -> None:
    with session(tmp_path / "run", SETTINGS) as run:
        good, bad = programs(run, correct=True, count=1)[0], programs(run, correct=False, count=1)[0]
        answers = [build_answer("a", "b", good), build_answer("a", "b", bad), good, build_answer("a", "b", good)]
        rewards, scorer, batch = scored(run, answers, [[5, END], [5, END], [5, END], [5, 5]])
        assert batch["statuses"] == {"CORRECT": 1, "WRONG_OUTPUT": 1, NO_SECTIONS: 1, TRUNCATED: 1}
        assert batch["step"] == 7
        [correct] = run.folder.archive.variants(run.tasks.train[0].id)
        assert batch["correct"] == {correct.task: [correct.source_sha256]}
        right = reward_of(HashEvaluator().evaluate(run.tasks.train[0], good), "log")
        assert scorer.smoother.recent == (right, LOG_FLOOR, LOG_FLOOR)
        assert rewards[3] is None
        assert rewards[1] == rewards[2] < 0 < rewards[0]
        assert run.verdicts.measured == 2, "neither the bare program nor the truncated answer is judged"


def test_answers_to_a_task_that_cannot_be_judged_are_not_learnt_from(tmp_path: Path) -> None:
    with session(tmp_path / "run", SETTINGS) as run:
        run.verdicts.judge([(run.tasks.train[1], programs(run, correct=True, count=1)[0])])
        run.verdicts.refused[run.tasks.train[0].source] = "the double refuses it"
        answers = [build_answer("a", "b", program) for program in programs(run, correct=True, count=2)]
        rewards, scorer, batch = scored(run, answers)
        assert batch["statuses"] == {REFUSED: 2}
        assert rewards == [None, None]
        assert scorer.smoother.recent == ()


def test_groups_count_as_alike_unless_outcomes_or_intervals_differ() -> None:
    task = suite().train[0]

    def outcome(speedup: float | None) -> Outcome:
        verdict = evaluation(task, f"{speedup}", speedup)
        return Outcome(verdict.status.value, 0.0, verdict)

    assert alike([outcome(1.0), outcome(1.01)])
    assert alike([outcome(None), outcome(None)])
    assert not alike([outcome(1.0), outcome(2.0)])
    assert not alike([outcome(1.0), outcome(None)])
    assert alike([Outcome(NO_SECTIONS, 0.0), Outcome(NO_SECTIONS, 0.0)])


def test_seeds_give_every_first_prompt_two_exemplars_of_different_buckets(tmp_path: Path) -> None:
    with session(tmp_path / "run", SETTINGS) as run:
        seed(run, None)
        [record] = [one for one in read_metrics(run.folder.path / METRICS) if one["event"] == "seeds"]
        assert min(record["buckets"]) >= 2
        measured = run.verdicts.measured
        drawn: list[Drawn] = []
        write = prompt_writer(run, run.folder.path / "model", drawn, chat=False)
        for task in run.tasks.train:
            assert "code2 (" in str(write(task.id, 0))
        assert [one.shown for one in drawn] == [one.wanted for one in drawn] == [2] * 3
        for one in drawn:
            known = {found.source_sha256 for found in run.folder.archive.variants(one.task)}
            assert known.issuperset(one.programs), "a record names the programs that a prompt showed"
        seed(run, None)
        assert run.verdicts.measured == measured, "what is in the archive is not measured again"


@pytest.mark.parametrize(
    ("exemplars", "share", "shown"), [(1, 0.0, {1}), (2, 1.0, {0}), (0, 0.0, {0}), (2, 0.5, {0, 2})]
)
def test_number_of_exemplars_and_share_without_any_are_settings(
    tmp_path: Path, exemplars: int, share: float, shown: set[int]
) -> None:
    flags = {"prompt": {"exemplars": exemplars}, "contrast": {"plain_share": share}}
    with session(tmp_path / "run", with_flags(SETTINGS, flags)) as run:
        seed(run, None)
        drawn: list[Drawn] = []
        write = prompt_writer(run, run.folder.path / "model", drawn, chat=False)
        for step in range(12):
            write(run.tasks.train[0].id, step)
        assert {one.shown for one in drawn} == shown


def test_temperature_and_width_reach_the_rule_and_arms_without_exemplars_have_none() -> None:
    assert rule_of(ContrastSettings(tau=0.3, width=0.5)) == BucketExemplars(tau=0.3, width=0.5)
    assert rule_of(ContrastSettings(arm="evolution")) == BucketExemplars()
    assert rule_of(ContrastSettings(arm="none")) == rule_of(ContrastSettings(arm="vanilla")) == NoExemplars()


def advantages(tmp_path: Path, arm: str, rewards: Sequence[float | None]) -> list[float]:
    """What GRPO makes of the rewards of two groups."""
    folder = tmp_path / f"model-{arm}"
    make_embedded(folder, tuple(suite().train), SMALL_MODEL, seed=0)
    config = contrast_config(with_flags(SETTINGS, {"contrast": {"arm": arm}}), tmp_path / "trainer", use_cpu=True)
    trainer = ContrastTrainer(
        write_prompt=lambda task, step: f"{task}\n",
        model=str(folder),
        reward_funcs=[lambda completions, **_: list(rewards)],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "", "task": "a"}, {"prompt": "", "task": "b"}]),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    assert trainer.model is not None
    trainer.model.train()
    rows = [{"prompt": "", "task": name} for name in ("a", "a", "b", "b")]
    return trainer._generate_and_score_completions(rows)["advantages"].tolist()


@pytest.mark.parametrize(
    ("batching", "cache", "padded_to", "continuous"),
    [("static", None, None, False), ("compiled", "static", 512, False), ("continuous", None, None, True)],
)
def test_stage_3_writes_answers_as_the_policys_settings_say(
    batching: str, cache: str | None, padded_to: int | None, continuous: bool, tmp_path: Path
) -> None:
    settings = with_flags(SETTINGS, {"policy": {"batching": batching}})
    config = contrast_config(settings, tmp_path / "trainer", use_cpu=True)
    assert (config.cache_implementation, config.pad_to_multiple_of) == (cache, padded_to)
    assert config.use_transformers_continuous_batching == continuous


def test_a_compiled_step_and_autocast_are_refused_together(tmp_path: Path) -> None:
    # On an H200, autocast gave keys of float32 and values of bfloat16, and the cache took the first.
    flags = {"policy": {"batching": "compiled"}, "contrast": {"trl": {"bf16": True}}}
    with pytest.raises(ConfigError, match="remove bf16"):
        contrast_config(with_flags(SETTINGS, flags), tmp_path, use_cpu=True)


def test_grpo_keeps_the_scale_of_smoothed_rewards_and_vanilla_divides_it_out(tmp_path: Path) -> None:
    rewards = [0.2, 0.6, -1.5, 1.5]
    assert advantages(tmp_path, "bucket", rewards) == pytest.approx([-0.2, 0.2, -1.5, 1.5])
    assert advantages(tmp_path, "vanilla", rewards) == pytest.approx([-0.7071, 0.7071] * 2, abs=1e-3)
    assert advantages(tmp_path, "none", [0.2, None, -1.5, 1.5]) == pytest.approx([0.0, 0.0, -1.5, 1.5])


def test_the_arm_decides_scale_rewards_and_a_table_may_not() -> None:
    with pytest.raises(ConfigError, match="remove scale_rewards"):
        contrast_config(
            with_flags(SETTINGS, {"contrast": {"trl": {"scale_rewards": "group"}}}), Path("x"), use_cpu=True
        )


@pytest.mark.parametrize(("arm", "batching"), [("bucket", "static"), ("bucket", "compiled"), ("evolution", "static")])
def test_evolution_shows_exemplars_and_leaves_the_weights_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str, batching: str
) -> None:
    trl = {"mask_truncated_completions": False, "learning_rate": 0.01, "warmup_steps": 0, "weight_decay": 0.1}
    # A compiled step has prompts of one length; this model's context is 512 tokens.
    padded = {"pad_to_multiple_of": 400} if batching == "compiled" else {}
    contrast = {"arm": arm, "reward": "speedup", "trl": trl | padded}
    flags = {"contrast": contrast, "policy": {"batching": batching}}
    with session(tmp_path / "run", with_flags(SETTINGS, flags)) as run:
        model, folder = run.folder.path / "model", tmp_path / "stage"
        seed(run, None)
        # An untrained model writes no program, so rewards are drawn from the texts here.
        monkeypatch.setattr(Scorer, "__call__", lambda self, completions, **more: _by_text(self, completions, **more))
        run_contrast(run, None, model=model, folder=folder)
        before, after = (path / "model.safetensors" for path in (model, folder / "model"))
        assert (before.read_bytes() == after.read_bytes()) == (arm == "evolution")


def _by_text(scorer: Scorer, completions: Sequence[str], **_: Any) -> list[float]:
    assert [one.shown for one in scorer.drawn] == [2, 2]
    scorer.drawn.clear()
    return [float(number) for number, _ in enumerate(completions)]
