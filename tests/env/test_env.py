"""The environment against gymnasium's contract and ours, with a judge that believes what programs say of themselves."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from cudal1_data import Suite, UnknownSuiteError, UnknownTaskError, Variant
from cudal1_env import CudaOptEnv, CudaOptVectorEnv
from cudal1_env.archive import Archive
from cudal1_env.env import MAX_MESSAGE_CHARS, MAX_SPEEDUP
from cudal1_env.errors import MachineError, SettingsError, TaskError
from cudal1_env.records import Evaluation, Status
from cudal1_env.spaces import SourceText
from doubles.evaluator import REFERENCE, RuleEvaluator, evaluation, program, suite, task
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import flatten, flatten_space, unflatten
from gymnasium.utils.env_checker import check_env, data_equivalence
from hypothesis import given
from hypothesis import strategies as st

ANSWER = "## Performance Analysis\n...\n## Algorithm Design\n...\n## Code\n```python\n{}```\n"


_made: list[CudaOptEnv] = []


@pytest.fixture(autouse=True)
def close_all() -> Iterator[None]:
    """Close what `make` made: an archive that is left open warns, and warnings are errors here."""
    yield
    while _made:
        _made.pop().close()


def make(**options: Any) -> CudaOptEnv:
    judge = options.pop("evaluator", None) or RuleEvaluator()
    _made.append(CudaOptEnv(options.pop("suite", None) or suite(), evaluator=judge, **options))
    return _made[-1]


# --- spaces ---


@given(text=st.text(st.characters(), max_size=60))
def test_a_source_space_holds_what_utf_8_holds(text: str) -> None:
    space = SourceText(50)
    surrogate = any("\ud800" <= char <= "\udfff" for char in text)
    assert (text in space) == (len(text) <= 50 and not surrogate)
    if text in space:
        flat = flatten(space, text)
        assert flat in flatten_space(space)
        assert unflatten(space, flat) == text


def test_samples_are_short_seeded_and_in_the_space() -> None:
    space = SourceText(100_000, seed=3)
    samples = [space.sample() for _ in range(50)]
    assert all(sample in space and len(sample) <= 64 and sample.isascii() for sample in samples)
    assert len(set(samples)) > 40
    assert [SourceText(100_000, seed=3).sample() for _ in range(2)] == [samples[0]] * 2
    assert len(SourceText(5, min_length=5).sample()) == 5
    assert len(space.sample(mask=(7, None))) == 7


def test_source_spaces_are_copied_pickled_and_compared() -> None:
    space = SourceText(1000, min_length=1)
    assert copy.deepcopy(space) == space == pickle.loads(pickle.dumps(space))
    assert len(pickle.dumps(space)) < 10_000
    assert space != SourceText(1001, min_length=1)
    assert "" not in space


# --- gymnasium's contract ---


def test_check_env_has_no_complaint() -> None:
    # Warnings are errors in this suite.
    with gymnasium.make("CudaL1-v0", evaluator=RuleEvaluator(), attempts=2) as env:
        check_env(env.unwrapped)
    with gymnasium.make("CudaL1-v0", suite=suite(), evaluator=RuleEvaluator(), render_mode="ansi") as env:
        check_env(env.unwrapped)


@pytest.mark.parametrize(
    "text", ["import cudal1_env; env = gymnasium.make('CudaL1-v0')", "env = gymnasium.make('cudal1_env:CudaL1-v0')"]
)
def test_both_names_make_the_environment_offline_and_without_torch(text: str) -> None:
    code = (
        f"import gymnasium, sys\n{text}\nenv.reset(seed=0)\nenv.close()\nassert env.spec.nondeterministic\n"
        "print([name for name in ('torch', 'transformers', 'scipy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_verdicts_without_a_clock_separate_correct_from_incorrect_and_have_no_speedup() -> None:
    env = make(attempts=2, precision="correct")
    env.reset(seed=1)
    _, reward, _, _, info = env.step(program(4.0))
    assert (reward, info["status"]) == (0.0, "CORRECT")
    assert "speedup" not in info
    assert info["evaluation"].precision == "correct"
    assert env.step("x = 1")[4]["status"] == "NO_CODE"


def test_observations_and_infos_have_the_documented_keys() -> None:
    env = make(attempts=2)
    observation, info = env.reset(seed=1)
    assert observation in env.observation_space
    assert (info["task"], info["level"]) == (observation["task"], observation["level"])
    assert observation["last"] == {"status": "", "message": "", "speedup": 0.0}
    observation, reward, terminated, truncated, info = env.step(program(2.0))
    assert observation in env.observation_space
    assert (reward, terminated, truncated) == (1.96, False, False)
    assert observation["attempt"] == 1
    assert observation["last"]["status"] == "CORRECT"
    assert (info["speedup"], info["speedup_low"], info["speedup_high"]) == (2.0, 1.96, 2.04)
    assert (info["latency_ms"], info["reference_latency_ms"], info["build_s"]) == (3.0, 6.0, 0.125)
    assert isinstance(info["evaluation"], Evaluation)
    assert info["evaluation"].source == program(2.0)


def test_an_episode_ends_after_its_attempts_and_not_before() -> None:
    env = make(attempts=3)
    env.reset(seed=0)
    assert [env.step(program())[2] for _ in range(3)] == [False, False, True]
    with pytest.raises(ResetNeeded, match="after 3 attempts"):
        env.step(program())
    env.reset()
    assert env.step(program())[0]["attempt"] == 1


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        make().step(program())


@pytest.mark.parametrize(
    ("kind", "rewards"),
    [
        ("speedup", [1.96, 1.0, 0.5, 0.0]),
        ("log", [np.log(1.96), 0.0, np.log(0.5), np.log(0.1)]),
        ("milestone", [5.0, 1.0, 1.0, 0.0]),
    ],
)
def test_rewards(kind: str, rewards: list[float]) -> None:
    env = make(attempts=4, reward=kind)
    env.reset(seed=0)
    texts = [program(2.0), program(1.01), program(0.5), "# status WRONG_OUTPUT\nclass ModelNew: ..."]
    assert [env.step(text)[1] for text in texts] == pytest.approx(rewards)


# --- answers ---


def test_a_whole_answer_and_bare_source_are_the_same() -> None:
    judge = RuleEvaluator()
    env = make(evaluator=judge, attempts=2)
    env.reset(seed=0)
    env.step(ANSWER.format(program(2.0)))
    env.step(program(2.0))
    assert [source for _, source in judge.jobs] == [program(2.0)] * 2


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.CORRECT])
def test_every_failure_is_data(status: Status) -> None:
    env = make()
    env.reset(seed=0)
    text = f"# status {status}\nclass ModelNew: ..."
    observation, reward, terminated, _, info = env.step(text)
    assert (observation["last"]["status"], info["status"]) == (status, status)
    assert (reward, terminated, float(observation["last"]["speedup"])) == (0.0, True, 0.0)
    assert "speedup" not in info
    assert [kept.status for kept in env.archive.evaluations()] == [status]


@pytest.mark.parametrize(
    ("text", "message"),
    [("I give up.", "holds no program"), ("", "holds no program"), ("x = 1\n" * 200, "at most 1000 are read")],
)
def test_an_answer_without_a_program_costs_no_worker(text: str, message: str) -> None:
    judge = RuleEvaluator()
    env = make(evaluator=judge, max_source_chars=1000)
    env.reset(seed=0)
    observation, reward, _, _, info = env.step(text)
    assert (info["status"], reward, judge.jobs) == ("NO_CODE", 0.0, [])
    assert message in observation["last"]["message"]
    assert env.archive.evaluations() == [info["evaluation"]]


def test_any_text_at_all_is_an_action() -> None:
    env = make(attempts=4)
    env.reset(seed=0)
    for text in ("class ModelNew:\x00", "class ModelNew: '\ud800'", "```\n" * 9, "import \U0001f600"):
        observation, _, _, _, _ = env.step(text)
        assert observation in env.observation_space


def test_long_messages_are_cut_and_absurd_speedups_bounded() -> None:
    class Verbose(RuleEvaluator):
        def _judge(self, task: Any, source: str) -> Evaluation:
            return super()._judge(task, source).model_copy(update={"message": "m" * 10_000})

    env = make(evaluator=Verbose())
    env.reset(seed=0)
    observation, _, _, _, info = env.step(program(1e9))
    assert observation in env.observation_space
    assert len(observation["last"]["message"]) == MAX_MESSAGE_CHARS
    assert len(info["evaluation"].message) == 10_000
    assert observation["last"]["speedup"] == MAX_SPEEDUP


def test_a_broken_machine_is_an_exception_and_costs_no_attempt() -> None:
    env = make(attempts=1)
    env.reset(seed=0)
    with pytest.raises(MachineError, match="as the program asked"):
        env.step(program() + "# broken machine")
    assert len(env.archive) == 0
    observation, _, terminated, _, _ = env.step(program())
    assert (observation["attempt"], terminated) == (1, True)


def test_a_task_that_cannot_be_judged_truncates_the_episode_and_is_not_drawn_again() -> None:
    tasks = Suite("toy", [task("add"), task("bad", source=REFERENCE + "# refused\n")])
    env = make(suite=tasks, attempts=3)
    env.reset(options={"task": "bad"})
    observation, reward, terminated, truncated, info = env.step(program())
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["task_error"] == "toy/bad: its reference is too inaccurate"
    assert env.observation_space.contains(observation)
    with pytest.raises(ResetNeeded):
        env.step(program())
    assert len(env.archive) == 0
    assert {env.reset(seed=i)[1]["task"] for i in range(20)} == {"toy/add"}
    alone = make(suite=Suite("toy", [task("bad", source=REFERENCE + "# refused\n")]))
    alone.reset()
    alone.step(program())
    with pytest.raises(TaskError, match="no task of 'toy' is left that can be judged: toy/bad: its reference"):
        alone.reset()


# --- tasks ---


def test_a_task_is_chosen_by_id_or_the_end_of_it() -> None:
    env = make()
    for name in ("toy/scan", "scan"):
        observation, info = env.reset(options={"task": name})
        assert (info["task"], observation["level"]) == ("toy/scan", 2)


def test_an_unknown_task_gets_the_nearest_names() -> None:
    env = make()
    with pytest.raises(UnknownTaskError, match=r"'toy/scam'.*did you mean toy/scan"):
        env.reset(options={"task": "toy/scam"})


def test_a_held_out_task_is_played_only_on_request() -> None:
    env = make()
    seen = {env.reset(seed=i)[1]["task"] for i in range(60)}
    assert seen == {"toy/add", "toy/scan", "toy/norm"}
    with pytest.raises(UnknownTaskError, match=r"toy/held is in the split 'test'.*split='test'"):
        env.reset(options={"task": "held"})
    assert make(split="test").reset()[1]["task"] == "toy/held"
    assert make(split=None).reset(options={"task": "held"})[1]["task"] == "toy/held"


def test_tasks_are_drawn_uniformly() -> None:
    env = make()
    env.reset(seed=0)
    counts = Counter(env.reset()[1]["task"] for _ in range(900))
    assert min(counts.values()) > 240


def test_a_random_task_is_never_drawn() -> None:
    env = make(suite=Suite("toy", [task("add"), task("dropout", tags=("random",))]))
    assert {env.reset(seed=i)[1]["task"] for i in range(20)} == {"toy/add"}
    assert env.reset(options={"task": "dropout"})[1]["task"] == "toy/dropout"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suite": Suite("toy", [task(split="test")])}, "split=None plays all"),
        ({"suite": Suite("toy", [task(tags=("random",))])}, "none to play in the split"),
        ({"suite": Suite("toy", [task(source="#" * 2000)]), "max_source_chars": 1000}, "max_source_chars=1000"),
        ({"attempts": 0}, "attempts is 0; give a whole number from 1 on"),
        ({"exemplars": -1}, "exemplars is -1; give a whole number from 0 on"),
        ({"render_mode": "human"}, "unknown render_mode 'human'"),
        ({"exemplar_rule": "best"}, "unknown exemplar rule 'best'; did you mean 'bucket'"),
        ({"attempts": "2"}, "attempts is '2'; give a whole number from 1 on"),
        ({"reward": "speed"}, "unknown reward 'speed'; did you mean 'speedup'"),
        ({"precision": "fast"}, "unknown precision 'fast'; there are training, report, correct"),
        ({"precision": None}, "unknown precision None; there are training, report, correct"),
        ({"split": "valid"}, "unknown split 'valid'; did you mean 'validation'"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_an_unknown_suite_and_an_unknown_option() -> None:
    with pytest.raises(UnknownSuiteError, match="starter"):
        CudaOptEnv("startr")
    with pytest.raises(SettingsError, match="unknown reset options \\['seed'\\]"):
        make().reset(options={"seed": 1})
    with pytest.raises(SettingsError, match="the reset option 'task' is 3; give the id"):
        make().reset(options={"task": 3})
    mixed: Any = {1: 2, "a": 1}
    with pytest.raises(SettingsError, match=r"unknown reset options \[1, 'a'\]"):
        make().reset(options=mixed)


@pytest.mark.parametrize("options", ["starter/diag_matmul", ["task"]])
def test_reset_options_that_are_no_mapping_are_refused(options: Any) -> None:
    with pytest.raises(SettingsError, match="give a dictionary such as {'task': ID}"):
        make().reset(options=options)
    vector = CudaOptVectorEnv(2, suite(), evaluator=RuleEvaluator())
    with contextlib.closing(vector), pytest.raises(SettingsError, match="give a dictionary such as {'task': ID}"):
        vector.reset(options=options)


def test_a_first_reset_that_fails_costs_no_later_verdict() -> None:
    with gymnasium.make("CudaL1-v0", suite=suite(), evaluator=RuleEvaluator()) as env:
        with pytest.raises(UnknownTaskError):
            env.reset(options={"task": "none"})
        env.reset()
        assert env.step(program(2.0))[4]["status"] == "CORRECT"


def test_an_action_that_is_no_text_is_refused_and_costs_no_attempt() -> None:
    env = make()
    env.reset()
    with pytest.raises(TypeError, match="expected an answer as text, got list; decode it first"):
        env.step([1, 2])  # pyright: ignore[reportArgumentType]
    assert env.step(np.str_(program(2.0)))[2]


# --- exemplars and archive ---


def test_exemplars_come_from_the_archive_and_carry_their_speed(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    with make(archive=path) as env:
        env.reset(options={"task": "add"})
        env.step(program(2.0))
        env.reset(options={"task": "scan"})
        env.step(program(4.0))
    with make(archive=str(path)) as env:
        observation, _ = env.reset(options={"task": "add"})
        assert observation["exemplars"] == ({"code": program(2.0), "speedup": 2.0},)
        assert observation in env.observation_space


def test_variants_that_cannot_be_compared_or_shown_are_no_exemplars() -> None:
    with Archive() as archive:
        archive.add(evaluation(task_source="the same id at another size"))
        archive.add(evaluation(source=program() + "#" * 5000))
        archive.add(evaluation(status=Status.WRONG_OUTPUT))
        shown = evaluation(source=program(3.0), speedup=3.0)
        archive.add(shown)
        env = make(archive=archive, max_source_chars=1000)
        observation, _ = env.reset(options={"task": "add"})
        assert [one["code"] for one in observation["exemplars"]] == [shown.source]


@pytest.mark.parametrize(("options", "count"), [({}, 2), ({"exemplars": 3}, 3), ({"exemplars": 0}, 0)])
def test_as_many_exemplars_as_asked(options: dict[str, Any], count: int) -> None:
    env = make(attempts=5, **options)
    env.reset(options={"task": "add"})
    for speedup in (1.0, 2.0, 3.0, 4.0):
        observation = env.step(program(speedup))[0]
    assert len(observation["exemplars"]) == count


def test_the_rule_of_exemplars_is_a_setting() -> None:
    env = make(attempts=2, exemplar_rule="none")
    env.reset(options={"task": "add"})
    assert env.step(program())[0]["exemplars"] == ()


def test_a_seed_decides_tasks_and_exemplars_and_nothing_else_does() -> None:
    def play() -> list[Any]:
        env = make(attempts=3)
        seen: list[Any] = [env.reset(seed=11)[0]]
        for _ in range(2):
            seen += [env.step(program(speedup))[0] for speedup in (1.0, 2.0, 3.0)]
            seen.append(env.reset()[0])
        return seen

    first = play()
    np.random.seed(5)
    random.seed(5)
    assert data_equivalence(first, play())


def test_playing_leaves_the_global_generators_alone() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    env = make()
    env.reset(seed=3)
    env.step(program())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index,union-attr]


# --- the rest ---


def test_render_describes_the_state_in_text() -> None:
    env = make(render_mode="ansi", attempts=2)
    env.reset(options={"task": "scan"})
    assert env.render() == "toy/scan (level 2), attempt 0 of 2\n"
    env.step(program(2.0))
    text = env.render()
    assert text is not None
    assert "attempt 1 of 2\nCORRECT: the double says CORRECT\nlatency 3 ms against 6 ms" in text


def test_render_without_a_mode_warns() -> None:
    env = make()
    env.reset()
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert env.render() is None


def test_close_leaves_a_given_judge_open_and_may_be_repeated() -> None:
    judge, archive = RuleEvaluator(), Archive()
    env = make(evaluator=judge, archive=archive)
    env.reset()
    env.step(program())
    env.close()
    env.close()
    assert not judge.closed
    for use in (env.reset, lambda: env.step("x")):
        with pytest.raises(ClosedEnvironmentError, match="the environment is closed; make a new one"):
            use()
    assert len(archive) == 1
    archive.close()


def test_a_full_message_of_info_is_small_enough_to_send() -> None:
    env = make()
    env.reset()
    info = env.step(program())[4]
    assert pickle.loads(pickle.dumps(info)) == info


# --- known variants ---


def test_known_variants_are_measured_once_and_shown_in_the_first_observation() -> None:
    variants = tuple(Variant(name=f"v{n}", source=program(1.0 + n / 2), techniques=("rewrite",)) for n in range(6))
    one = task("add", variants=variants)
    judge = RuleEvaluator()
    env = make(suite=Suite("toy", [one]), evaluator=judge, seed_variants=True)
    observation, _ = env.reset(seed=0)
    assert len(observation["exemplars"]) == 2
    speedups = {float(one["speedup"]) for one in observation["exemplars"]}
    assert len(speedups) == 2
    assert observation["attempt"] == 0
    assert observation in env.observation_space
    measured = len(judge.jobs)
    assert measured >= 6
    env.reset()
    assert len(judge.jobs) == measured, "a task is seeded when it first comes up"


def test_without_seeds_the_first_observation_has_no_exemplars() -> None:
    env = make(suite=Suite("toy", [task("add", variants=(Variant(name="v", source=program(2.0)),))]))
    assert env.reset(seed=0)[0]["exemplars"] == ()


def test_seeds_need_a_clock() -> None:
    with pytest.raises(SettingsError, match="seed_variants needs speedups"):
        make(seed_variants=True, precision="correct")
