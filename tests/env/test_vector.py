"""The three ways to vectorise: gymnasium's own two around our environment, and our entry point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from cudal1_data import Suite
from cudal1_env import CudaOptEnv, CudaOptVectorEnv
from cudal1_env.archive import Archive
from cudal1_env.errors import MachineError, SettingsError
from cudal1_env.records import Evaluation
from cudal1_env.spaces import ObservationSpace
from doubles.evaluator import REFERENCE, RuleEvaluator, program, suite, task
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

WRONG = "# status WRONG_OUTPUT\nclass ModelNew: ..."


_made: list[CudaOptVectorEnv] = []


@pytest.fixture(autouse=True)
def close_all() -> Iterator[None]:
    """Close what `make` made: an archive that is left open warns, and warnings are errors here."""
    yield
    while _made:
        _made.pop().close()


def make(num_envs: int = 3, **options: Any) -> CudaOptVectorEnv:
    judge = options.pop("evaluator", None) or RuleEvaluator()
    _made.append(CudaOptVectorEnv(num_envs, options.pop("suite", None) or suite(), evaluator=judge, **options))
    return _made[-1]


def without_records(value: Any) -> Any:
    """A copy without evaluations, whose ids differ from one evaluation to the next."""
    if isinstance(value, dict):
        return {key: without_records(item) for key, item in value.items() if key != "evaluation"}  # type: ignore[misc]
    return value


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("vector_entry_point", {}),
        ("sync", {}),
        ("async", {}),
        ("async", {"vector_kwargs": {"shared_memory": False}}),
    ],
)
def test_make_vec(mode: str, more: dict[str, Any]) -> None:
    envs = gymnasium.make_vec(
        "CudaL1-v0", num_envs=2, vectorization_mode=mode, evaluator=RuleEvaluator(), attempts=2, **more
    )
    try:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        observations, _ = envs.reset(seed=5)
        assert observations in envs.observation_space
        observations, rewards, terminated, truncated, infos = envs.step((program(2.0), WRONG))
        assert observations in envs.observation_space
        assert observations["last"]["status"] == ("CORRECT", "WRONG_OUTPUT")
        assert rewards.tolist() == [1.96, 0.0]
        assert not terminated.any()
        assert not truncated.any()
        assert infos["status"].tolist() == ["CORRECT", "WRONG_OUTPUT"]
        assert infos["_speedup"].tolist() == [True, False]
        assert all(isinstance(one, Evaluation) for one in infos["evaluation"])
        assert envs.step(envs.action_space.sample())[2].all()
    finally:
        envs.close()


def test_shared_memory_holds_the_latest_observation_of_each() -> None:
    env = CudaOptEnv(suite(), evaluator=RuleEvaluator(), max_source_chars=1_000)
    space = env.observation_space
    assert isinstance(space, ObservationSpace)
    memory = create_shared_memory(space, n=2)
    shared: Any = read_from_shared_memory(space, memory, n=2)
    assert set(shared["task"]) == {""}
    first, second = (env.reset(options={"task": name})[0] for name in ("add", "scan"))
    for i, observation in enumerate([first, second]):
        write_to_shared_memory(space, i, observation, memory)
    assert data_equivalence(dict(shared), deepcopy(shared), exact=True)
    assert shared["task"] == (first["task"], second["task"])
    with pytest.raises(ValueError, match="the space allows"):
        write_to_shared_memory(space, 0, first | {"reference": "x" * 100_000}, memory)
    env.close()


def test_the_entry_point_is_what_make_vec_takes_by_default() -> None:
    envs = gymnasium.make_vec("CudaL1-v0", num_envs=2, evaluator=RuleEvaluator(), autoreset_mode="SameStep")
    assert isinstance(envs, CudaOptVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("attempts", [1, 2])
def test_the_same_as_gymnasiums_sync_env_step_for_step(mode: AutoresetMode, attempts: int) -> None:
    # Without exemplars, because gymnasium's environments have an archive each.
    def play(envs: VectorEnv[Any, Any, Any]) -> list[Any]:
        chance = np.random.default_rng(7)
        seen: list[Any] = [envs.reset(seed=3)]
        for _ in range(8):
            texts = tuple(str(chance.choice([program(2.0), program(0.5), WRONG, "nothing"])) for _ in range(3))
            seen.append(envs.step(texts))
            over = seen[-1][2]
            if mode is AutoresetMode.DISABLED and over.any():
                seen.append(envs.reset(options={"reset_mask": over}))
        envs.close()
        return [tuple(without_records(part) for part in step) for step in seen]

    options: dict[str, Any] = {"evaluator": RuleEvaluator(), "attempts": attempts, "exemplars": 0}
    theirs = play(
        gymnasium.make_vec("CudaL1-v0", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **options)
    )
    ours = play(gymnasium.make_vec("CudaL1-v0", 3, autoreset_mode=mode, **options))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert data_equivalence(one, other, exact=True)


def test_one_call_of_the_judge_for_a_step() -> None:
    judge = RuleEvaluator()
    envs = make(4, evaluator=judge, attempts=2)
    envs.reset(seed=0)
    envs.step((program(), program(), "no program", program()))
    envs.step((program(),) * 4)
    assert judge.batches == [3, 4]
    # The step that resets judges nothing.
    _, rewards, terminated, _, _ = envs.step((program(),) * 4)
    assert judge.batches == [3, 4]
    assert (rewards.tolist(), terminated.any()) == ([0.0] * 4, False)


def test_an_exemplar_found_by_one_is_seen_by_all_at_once() -> None:
    envs = make(2, attempts=2)
    envs.reset(options={"task": "add"})
    observations = envs.step((WRONG, program(3.0)))[0]
    assert [[one["code"] for one in shown] for shown in observations["exemplars"]] == [[program(3.0)]] * 2


def test_evaluations_are_kept_in_the_order_of_the_actions() -> None:
    with Archive() as archive:
        envs = make(3, archive=archive)
        envs.reset(seed=0)
        envs.step((WRONG, "nothing", program(2.0)))
        envs.close()
        assert [kept.status for kept in archive.evaluations()] == ["WRONG_OUTPUT", "NO_CODE", "CORRECT"]


def test_an_observation_handed_out_does_not_change() -> None:
    envs = make(2, attempts=2, autoreset_mode="Disabled")
    envs.reset(options={"task": "add"})
    first = envs.step((program(2.0), program(3.0)))[0]
    shown = first["exemplars"][1][0]["code"]
    first["exemplars"][1][0]["code"] = "written over by the user"
    mask = np.array([True, False])
    second, _ = envs.reset(options={"reset_mask": mask, "task": "add"})
    assert second["exemplars"][1][0]["code"] == shown


def test_disabled_demands_a_reset_of_what_is_over() -> None:
    envs = make(2, autoreset_mode="Disabled")
    envs.reset(seed=0)
    envs.step((program(), program()))
    with pytest.raises(ResetNeeded, match=r"sub-environments \[0, 1\]"):
        envs.step((program(), program()))
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"sub-environments \[1\]"):
        envs.step((program(), program()))
    envs.reset(options={"reset_mask": np.array([False, True])})
    assert envs.step((program(), program()))[2].all()


def test_a_broken_machine_changes_nothing() -> None:
    envs = make(2)
    envs.reset(seed=0)
    with pytest.raises(MachineError):
        envs.step((program(), program() + "# broken machine"))
    assert len(envs.archive) == 0
    observations, _, terminated, _, _ = envs.step((program(), program()))
    assert terminated.all()
    assert observations["attempt"].tolist() == [1, 1]


def test_a_task_that_cannot_be_judged_truncates_its_episode_and_no_other() -> None:
    tasks = Suite("toy", [task("add"), task("bad", source=REFERENCE + "# refused\n")])
    envs = make(3, suite=tasks, autoreset_mode="SameStep")
    drawn = (envs.reset(seed=seed)[1]["task"] == "toy/bad" for seed in range(40))
    bad = next(one for one in drawn if one.sum() == 1)
    observations, rewards, terminated, truncated, infos = envs.step((program(2.0),) * 3)
    assert truncated.tolist() == bad.tolist()
    assert terminated.tolist() == (~bad).tolist()
    assert rewards.tolist() == np.where(bad, 0.0, 1.96).tolist()
    assert infos["final_info"]["task_error"][bad].tolist() == ["toy/bad: its reference is too inaccurate"]
    assert observations["task"] == ("toy/add",) * 3, "it is not drawn again"
    assert len(envs.archive) == 2


def test_seeds() -> None:
    def tasks(seed: int | Sequence[int | None]) -> list[str]:
        return make(4).reset(seed=seed)[1]["task"].tolist()

    assert tasks(3) == tasks([3, 4, 5, 6]) == tasks((3, 4, 5, 6))
    assert tasks([3, 3, 3, 3]) == [tasks(3)[0]] * 4


def test_render_shows_each() -> None:
    envs = make(2, render_mode="ansi")
    envs.reset(options={"task": "add"})
    assert envs.render() == ("toy/add (level 1), attempt 0 of 1\n",) * 2


def test_incorrect_use_is_explained() -> None:
    envs = make(2)
    with pytest.raises(SettingsError, match="num_envs is 0; give at least 1"):
        make(0)
    with pytest.raises(ValueError, match="'Sometimes'"):
        make(2, autoreset_mode="Sometimes")
    with pytest.raises(ResetNeeded, match="for all sub-environments before a reset of some"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match="reset"):
        envs.step((program(), program()))
    with pytest.raises(ValueError, match="3 seeds for 2 sub-environments"):
        envs.reset(seed=[1, 2, 3])
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="1 actions for 2 sub-environments"):
        envs.step((program(),))
    with pytest.raises(TypeError, match="got a single text"):
        envs.step("ab")
    with pytest.raises(ValueError, match="boolean array"):
        envs.reset(options={"reset_mask": np.array([1, 0])})


def test_close_leaves_what_was_given() -> None:
    judge = RuleEvaluator()
    envs = make(2, evaluator=judge)
    envs.close()
    envs.close()
    assert not judge.closed
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()
