"""The environment: an observation shows a task, an action is an answer with a program, the reward is its speedup."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, cast, get_args

import gymnasium
import numpy as np
from cudal1_data import Split, Suite, Task, UnknownTaskError, load_suite
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete, Sequence

from cudal1_env.answers import MAX_SOURCE_CHARS, evaluate_answers, evaluate_or_refuse
from cudal1_env.archive import Archive
from cudal1_env.errors import SettingsError, TaskError, check_choice
from cudal1_env.evaluator import Evaluator
from cudal1_env.exemplars import Exemplar, ExemplarRule, exemplars_by_name, scored
from cudal1_env.gate import find_audit
from cudal1_env.hardware import available_needs, resolve_device
from cudal1_env.known import Seeding, seed_archive
from cudal1_env.local import LocalEvaluator
from cudal1_env.records import Device, Evaluation, Precision
from cudal1_env.remote import RemoteEvaluator
from cudal1_env.reward import Rule, reward_of
from cudal1_env.spaces import ObservationSpace, SourceText

MAX_ID_CHARS = 256
"""Longest task id in an observation."""

MAX_MESSAGE_CHARS = 2_000
"""Longest message in an observation, in characters; a longer one is cut. The record holds the full message."""

MAX_STATUS_CHARS = 32
"""Longest status name."""

MAX_BYTES_BESIDE_TEXT = 1_000
"""Bytes of a pickled observation that are not program text, for each program it shows."""

MAX_SPEEDUP = 1e6
"""Largest speedup in an observation; a larger one is clipped to it. gymnasium warns about unbounded boxes."""

Observation = dict[str, Any]
"""One element of `observation_space`."""


class EnvOptions(TypedDict, total=False):
    """Arguments of `CudaOptEnv` that vector environments pass on unchanged."""

    device: Literal["auto", "cpu", "cuda"]
    split: Split | None
    attempts: int
    exemplars: int
    exemplar_rule: ExemplarRule
    reward: Rule
    precision: Precision
    audit: str | Path | None
    seed_variants: bool
    max_source_chars: int
    render_mode: str | None


def observation_space(max_source_chars: int, *, attempts: int, max_level: int, exemplars: int = 2) -> ObservationSpace:
    """Return the space of observations.

    Args:
        max_source_chars: Longest program.
        attempts: Attempts in an episode.
        max_level: Highest level of the tasks.
        exemplars: Maximum number of exemplars.
    """
    source = SourceText(max_source_chars)
    speedup = Box(0.0, MAX_SPEEDUP, (), np.float64)
    # A character takes up to four bytes.
    max_chars = (1 + exemplars) * max_source_chars + MAX_ID_CHARS + MAX_STATUS_CHARS + MAX_MESSAGE_CHARS
    return ObservationSpace(
        {
            "task": SourceText(MAX_ID_CHARS),
            "reference": source,
            "level": Discrete(max_level, start=1),
            "attempt": Discrete(attempts + 1),
            "exemplars": Sequence(Dict({"code": source, "speedup": speedup})),
            "last": Dict(
                {
                    "status": SourceText(MAX_STATUS_CHARS),
                    "message": SourceText(MAX_MESSAGE_CHARS),
                    "speedup": speedup,
                }
            ),
        },
        max_bytes=4 * max_chars + MAX_BYTES_BESIDE_TEXT * (1 + exemplars),
    )


def check_arguments(options: Mapping[str, Any]) -> None:
    """Check the arguments of an environment that need no suite.

    Raises:
        SettingsError: An argument has a value that is not allowed, or two arguments contradict each other.
    """
    for name, known in (("split", Split), ("reward", Rule), ("precision", Precision)):
        if options[name] is not None or name != "split":
            check_choice(name, options[name], get_args(known))
    for name, least in (("attempts", 1), ("exemplars", 0), ("max_source_chars", 1)):
        value = options.get(name)
        if not isinstance(value, int) or value < least:
            raise SettingsError(f"{name} is {value!r}; give a whole number from {least} on")
    if (mode := options.get("render_mode")) not in (None, "ansi"):
        raise SettingsError(f"unknown render_mode {mode!r}; the only one is 'ansi'")
    if options.get("seed_variants") and options.get("precision") == "correct":
        raise SettingsError(
            "seed_variants needs speedups, but precision='correct' times nothing; leave one of them out"
        )


def check_options(options: object) -> dict[str, Any]:
    """Return the options of `reset`; None is none.

    Raises:
        SettingsError: They are no mapping.
    """
    if not isinstance(options, Mapping | None):
        raise SettingsError(f"the reset options are {options!r}; give a dictionary such as {{'task': ID}}")
    return dict(cast("Mapping[str, Any]", options or {}))


class CudaOptEnv(gymnasium.Env[Observation, str]):
    """Write a faster program for a task; the judge measures it.

    ## Action space
    `SourceText`: a whole answer with a code block (see `extract_source`) or bare source that defines `ModelNew`.

    ## Observation space
    | key | what it is |
    | --- | --- |
    | `task` | task id |
    | `reference` | the reference program |
    | `level` | KernelBench's difficulty level |
    | `attempt` | number of attempts made in this episode |
    | `exemplars` | up to `exemplars` earlier programs: `code` and measured `speedup` |
    | `last` | `status`, `message` and `speedup` of the last attempt; empty texts and 0 before the first |

    ## Reward
    0 for an incorrect program. For a correct one: the rewarded end if that is above 1; exactly 1 if the interval
    contains 1 and its lower end is at least 0.8; otherwise the point estimate, capped at 1. The rewarded end is the
    lower end of the speedup's interval, with the stealable overhead added to the candidate's time.

    At `correct` precision the judge times nothing. A correct program then gets the reward of the slowest correct
    program: 0 under the rule `speedup`, log(0.1) under `log`, 1 under `milestone`.

    A task whose checker accepts incorrect answers (`cudal1-env audit`) pays at most 1; the record's message says so.

    ## Info
    `task` and `level`; after a step also `status`, seconds by phase, the record (`evaluation`) and, for a correct
    program, speedup and latencies with units. Unknown values are left out.

    ## Episode end
    Terminated after `attempts` attempts. Truncated, with a reward of 0 and the reason in `info["task_error"]`, if the
    judge refuses the task, for example because its reference is too inaccurate; the task is not drawn again.

    A failing program never raises: its failure is part of the record. A broken machine raises `MachineError`, and the
    attempt does not count.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  # as gymnasium declares it

    def __init__(
        self,
        suite: str | Path | Suite = "starter",
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        split: Split | None = "train",
        attempts: int = 1,
        exemplars: int = 2,
        exemplar_rule: ExemplarRule = "bucket",
        reward: Rule = "speedup",
        precision: Precision = "training",
        archive: str | Path | Archive | None = None,
        evaluator: Evaluator | str | None = None,
        audit: str | Path | None = "auto",
        seed_variants: bool = False,
        max_source_chars: int = MAX_SOURCE_CHARS,
        render_mode: str | None = None,
    ) -> None:
        """Make an environment.

        Args:
            suite: Suite of tasks, or its name or path as `load_suite` accepts it.
            device: Kind of device on which programs run, and for which task sizes are chosen. `auto` is the device of
                the service if there is one, otherwise this machine's.
            split: Split whose tasks are played; None plays all tasks.
            attempts: Attempts in an episode. 1 is the paper's setting: one answer to each prompt.
            exemplars: Maximum number of earlier programs in an observation.
            exemplar_rule: Rule that chooses these programs; see `cudal1_env.exemplars`.
            reward: Rule that turns a verdict into a number; see `cudal1_env.reward`.
            precision: How narrow intervals must be; `correct` times nothing, and pays `cudal1_env.reward.UNTIMED`.
            archive: File that keeps evaluations and supplies exemplars; None keeps them in memory until `close`.
            evaluator: An `Evaluator`, or the URL of a service (`cudal1-env serve`). None starts a judge on this machine
                at the first step. The environment does not close an `Evaluator` that it was given.
            audit: File of `cudal1-env audit --out`; its marked tasks pay at most 1. `auto` uses the suite's own file.
                None lifts the limit, unless the given `Evaluator` or the service has the audit already.
            seed_variants: When a task is first drawn, measure its known programs (its variants, then programs from
                templates) until the archive has six of them in three score buckets or no more are known. So the first
                observation already has exemplars. On held-out tasks this shows known answers to the policy.
            max_source_chars: Longest text of an answer, a reference or an exemplar, in characters.
            render_mode: None or `ansi`.

        Raises:
            SettingsError: No task is left to play.
            UnknownSuiteError: No suite has this name.
            MachineError: The archive cannot be opened.
            RecordError: The audit file holds no audit.
        """
        check_arguments(locals())
        self._rule = exemplars_by_name(exemplar_rule)
        self.render_mode = render_mode
        self.device: Device
        self.evaluator, self._own, self.device = choose_evaluator(evaluator, device)
        self.suite = suite if isinstance(suite, Suite) else load_suite(suite, device=self.device)
        self.split: Split | None = split
        self.tasks = self.suite if split is None else self.suite.where(lambda task: task.split == split)
        self.attempts = attempts
        self.exemplars = exemplars
        self.precision: Precision = precision
        self.max_source_chars = max_source_chars
        self._reward: Rule = reward
        self._seeding = Seeding() if seed_variants else None
        if (found := find_audit(audit, self.suite.name, self.device)) is not None:
            self.evaluator.learn(found)
        self._check_tasks()

        self._owns_archive = not isinstance(archive, Archive)
        self.archive = archive if isinstance(archive, Archive) else Archive(archive)
        self.action_space = SourceText(max_source_chars)
        self.observation_space = observation_space(
            max_source_chars,
            attempts=attempts,
            max_level=max(task.level for task in self.tasks),
            exemplars=exemplars,
        )
        self._task: Task | None = None
        self._attempt = 0
        self._last: Evaluation | None = None
        self.refused: dict[str, str] = {}  # tasks that cannot be judged, with the reason; not drawn again
        self._closed = False

    @property
    def task(self) -> Task:
        """The task of this episode.

        Raises:
            ResetNeeded: No episode has begun.
        """
        if self._task is None:
            raise ResetNeeded("no episode has begun; call reset() first")
        return self._task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with a task drawn uniformly, or the one that `options={"task": id}` names.

        Tasks tagged `random` are never drawn, because their references have no single correct answer.

        Raises:
            UnknownTaskError: No task of this environment has that id; the message offers the nearest.
            SettingsError: An option other than `task`, or options that are no mapping.
            ClosedEnvironmentError: After `close`.
            TaskError: No task is left that can be judged; or the named one cannot, which `seed_variants` finds out.
            MachineError: The machine broke while known variants were measured (`seed_variants`).
        """
        self._check_open()
        super().reset(seed=seed)
        given = check_options(options)
        if unknown := [name for name in given if name != "task"]:
            raise SettingsError(f"unknown reset options {unknown}; the only one is 'task'")
        name = given.get("task")
        if not isinstance(name, str | None):
            raise SettingsError(f"the reset option 'task' is {name!r}; give the id of a task, as text")
        self._task = self._seeded(self._named(name)) if name is not None else self._drawn()
        self._attempt = 0
        self._last = None
        return self._observation(), {"task": self.task.id, "level": self.task.level}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Judge an answer.

        Raises:
            ResetNeeded: The episode is over, or none has begun.
            MachineError: The machine broke; the attempt does not count.
        """
        job = self.job(action)
        (outcome,) = evaluate_or_refuse(
            self.evaluator,
            [job],
            precision=self.precision,
            max_source_chars=self.max_source_chars,
            archive=self.archive,
        )
        return self.settle(outcome)

    def job(self, action: str) -> tuple[Task, str]:
        """Return the task and program to judge for an action: the first half of `step`.

        Raises:
            ResetNeeded: The episode is over, or none has begun.
            ClosedEnvironmentError: After `close`.
        """
        self._check_open()
        if self._attempt >= self.attempts:
            raise ResetNeeded(f"the episode ended after {self.attempts} attempts; call reset() before another step()")
        return self.task, action

    def settle(self, evaluation: Evaluation | TaskError) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Apply the verdict on the current action, or the refusal of its task: the second half of `step`.

        A vector environment calls `job` on all its environments, judges all programs in one call, then calls `settle`
        on each.
        """
        if isinstance(evaluation, TaskError):
            self._attempt = self.attempts
            self.refused[self.task.id] = str(evaluation)
            return self._observation(), 0.0, False, True, {"level": self.task.level, "task_error": str(evaluation)}
        self._attempt += 1
        self._last = evaluation
        info = {"level": self.task.level, **info_of(evaluation)}
        reward = reward_of(evaluation, self._reward)
        return self._observation(), reward, self._attempt >= self.attempts, False, info

    def render(self) -> str | None:  # type: ignore[override]  # gymnasium's type wants a frame in every mode
        """Describe the state as text if `render_mode="ansi"`."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render mode shows nothing; make it with render_mode='ansi'")
            return None
        lines = [f"{self.task.id} (level {self.task.level}), attempt {self._attempt} of {self.attempts}"]
        if self._last is not None:
            lines.append(f"{self._last.status}: {self._last.message}")
            if self._last.candidate and self._last.reference:
                times = f"{self._last.candidate.median_ms:.3g} ms against {self._last.reference.median_ms:.3g} ms"
                lines.append(f"latency {times} of the reference")
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        """Write the judge's seeds into the archive, then close the judge and the archive that this environment made."""
        if not self._closed:
            self._closed = True
            close_owned(self._own, self.archive if self._owns_archive else None, disclose_to=self.archive)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedEnvironmentError("the environment is closed; make a new one")

    def _drawn(self) -> Task:
        """Draw a task that was not refused, and measure its known programs if that is wanted."""
        while playable := [one for one in self.tasks if "random" not in one.tags and one.id not in self.refused]:
            task = playable[int(self.np_random.integers(len(playable)))]
            try:
                return self._seeded(task)
            except TaskError as error:
                self.refused[task.id] = str(error)
        raise TaskError(
            f"no task of {self.suite.name!r} is left that can be judged: {'; '.join(self.refused.values())}"
        )

    def _seeded(self, task: Task) -> Task:
        """Return the task after its known programs were measured, if that is wanted."""

        def measure(jobs: list[tuple[Task, str]]) -> None:
            evaluate_answers(self.evaluator, jobs, precision=self.precision, archive=self.archive)

        if self._seeding is not None:
            seed_archive(
                [task], self.archive, measure, device=self.device, have=available_needs(), seeding=self._seeding
            )
        return task

    def _observation(self) -> Observation:
        variants = scored(self.archive.variants(self.task.id), task_source=self.task.source)
        shown = [variant for variant in variants if len(variant.source) <= self.max_source_chars]
        chosen = self._rule.choose(shown, self.exemplars, self.np_random) if self.exemplars else []
        last = self._last
        message = last.message if last else ""
        speedup = last.speedup.point if last and last.correct and last.speedup else 0.0
        return {
            "task": self.task.id,
            "reference": self.task.source,
            "level": self.task.level,
            "attempt": self._attempt,
            "exemplars": tuple(_shown(exemplar) for exemplar in chosen),
            "last": {
                "status": last.status.value if last else "",
                "message": message[:MAX_MESSAGE_CHARS],
                "speedup": _bounded(speedup),
            },
        }

    def _named(self, name: str) -> Task:
        try:
            return self.tasks[name]
        except UnknownTaskError as error:
            try:
                other = self.suite[name]
            except UnknownTaskError:
                raise error from None
            raise UnknownTaskError(
                f"the task {other.id} is in the split {other.split!r}, and this environment plays {self.split!r}; "
                f"make the environment with split={other.split!r}, or split=None for all tasks"
            ) from None

    def _check_tasks(self) -> None:
        if not any("random" not in task.tags for task in self.tasks):
            raise SettingsError(
                f"the suite {self.suite.name!r} has {len(self.suite)} tasks, and none to play in the split "
                f"{self.split!r}; split=None plays all of them"
            )
        for task in self.tasks:
            if task.id not in SourceText(MAX_ID_CHARS) or task.source not in SourceText(self.max_source_chars):
                raise SettingsError(
                    f"the task {task.id[:MAX_ID_CHARS]!r} has an id of {len(task.id)} characters and a reference of "
                    f"{len(task.source)}; ids may have {MAX_ID_CHARS}, references "
                    f"max_source_chars={self.max_source_chars}, all of them in UTF-8"
                )


Own = LocalEvaluator | RemoteEvaluator
"""An evaluator that an environment made and will close."""


def choose_evaluator(
    given: Evaluator | str | None, device: Literal["auto", "cpu", "cuda"]
) -> tuple[Evaluator, Own | None, Device]:
    """Return the evaluator, the same evaluator again if it was made here (else None), and its kind of device.

    Args:
        given: An evaluator, the URL of a service, or None for this machine's judge.
        device: Where programs are to run.

    Raises:
        SettingsError: The service judges on another kind of device.
        MachineError: The service cannot be reached.
    """
    if isinstance(given, str):
        remote = RemoteEvaluator(given)
        if device not in ("auto", remote.device):
            remote.close()
            raise SettingsError(f"{given} judges on {remote.device}, and device={device!r}; leave the device out")
        return remote, remote, remote.device
    if given is not None:
        return given, None, resolve_device(device)
    local = LocalEvaluator(resolve_device(device))
    return local, local, local.device


def close_owned(own: Own | None, archive: Archive | None, *, disclose_to: Archive) -> None:
    """Close what an environment made, after writing seeds that will never be used again into its archive."""
    try:
        if own is not None:
            for commitment, seed in own.retire().items():
                disclose_to.disclose(commitment, seed)
    finally:
        if own is not None:
            own.close()
        if archive is not None:
            archive.close()


def info_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return a record's scalars by name, with units, and the record itself; unknown values are left out."""
    info: dict[str, Any] = {
        "task": evaluation.task,
        "status": evaluation.status.value,
        "evaluation": evaluation,
        **evaluation.seconds.model_dump(),
    }
    if evaluation.correct and evaluation.speedup is not None:
        info["speedup"] = evaluation.speedup.point
        info["speedup_low"] = evaluation.speedup.low
        info["speedup_high"] = evaluation.speedup.high
    if evaluation.candidate is not None:
        info["latency_ms"] = evaluation.candidate.median_ms
    if evaluation.reference is not None:
        info["reference_latency_ms"] = evaluation.reference.median_ms
    if evaluation.roofline_fraction is not None:
        info["roofline_fraction"] = evaluation.roofline_fraction
    return info


def _shown(exemplar: Exemplar) -> Observation:
    return {"code": exemplar.source, "speedup": _bounded(exemplar.speedup)}


def _bounded(speedup: float) -> np.ndarray[tuple[()], np.dtype[np.float64]]:
    return np.array(min(speedup, MAX_SPEEDUP), dtype=np.float64)
