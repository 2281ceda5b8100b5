"""Vector environment: one call of the judge for the answers of all sub-environments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np
from cudal1_data import Suite
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from numpy.typing import NDArray

from cudal1_env.answers import evaluate_or_refuse
from cudal1_env.archive import Archive
from cudal1_env.env import CudaOptEnv, EnvOptions, Observation, check_options, choose_evaluator, close_owned
from cudal1_env.errors import SettingsError, check_choice
from cudal1_env.evaluator import Evaluator

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


class CudaOptVectorEnv(VectorEnv[Observation, Iterable[str], NDArray[Any]]):
    """`num_envs` environments over one suite, one archive and one judge: `CudaL1-v0`'s vector entry point.

    All actions of a step go through one `evaluate_many`: builds in parallel, measurements one at a time.
    Observations and infos are batched like those of gymnasium's vector environments; the record of
    sub-environment i is `infos["evaluation"][i]`.

    ## Autoreset
    `metadata["autoreset_mode"]` is one of these modes.

    | mode | after an episode's last step |
    | --- | --- |
    | `NextStep` (default) | the next `step` resets that sub-environment: its action is ignored, its reward is 0 |
    | `SameStep` | reset at once; the last observation and info are `infos["final_obs"]`, `infos["final_info"]` |
    | `Disabled` | `reset(options={"reset_mask": mask})` must follow, else the next `step` raises |

    With one attempt per episode, `NextStep` makes every second step a reset: prefer `SameStep`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        suite: str | Path | Suite = "starter",
        *,
        archive: str | Path | Archive | None = None,
        evaluator: Evaluator | str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **options: Unpack[EnvOptions],
    ) -> None:
        """Make the environments.

        Args:
            num_envs: Number of sub-environments.
            suite: As in `CudaOptEnv`.
            archive: As in `CudaOptEnv`; all sub-environments share it.
            evaluator: As in `CudaOptEnv`; all sub-environments share it.
            autoreset_mode: What happens after the end of an episode (see the class).
            **options: The other arguments of `CudaOptEnv`.

        Raises:
            SettingsError: As in `CudaOptEnv`; or `num_envs` is below 1, or the autoreset mode is unknown.
        """
        if num_envs < 1:
            raise SettingsError(f"num_envs is {num_envs}; give at least 1")
        self.num_envs = num_envs
        if not isinstance(autoreset_mode, AutoresetMode):
            check_choice("autoreset_mode", autoreset_mode, [mode.value for mode in AutoresetMode])
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**CudaOptEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = options.get("render_mode")
        self._evaluator, self._own, device = choose_evaluator(evaluator, options.get("device", "auto"))
        options["device"] = device
        self._owns_archive = not isinstance(archive, Archive)
        self.archive = archive if isinstance(archive, Archive) else Archive(archive)
        self.envs: list[CudaOptEnv] = []
        try:
            first = CudaOptEnv(suite, archive=self.archive, evaluator=self._evaluator, **options)
            others = (
                CudaOptEnv(first.suite, archive=self.archive, evaluator=self._evaluator, **options)
                for _ in range(num_envs - 1)
            )
            self.envs = [first, *others]
            for env in self.envs:
                env.refused = first.refused
        except BaseException:
            self.close_extras()
            raise
        self._space = first.observation_space
        self.single_observation_space = self._space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(self._space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._observations: list[Observation] = []
        self._over: Bools = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode in each sub-environment, or in those that `options={"reset_mask": mask}` selects.

        Args:
            seed: Seed of the first sub-environment, from which the others count up; or a sequence with one for each.
            options: Other options go to every sub-environment that is reset.

        Raises:
            ValueError: The number of seeds, or the length of the mask, is not `num_envs`.
            SettingsError: As in `CudaOptEnv.reset`.
        """
        super().reset(seed=seed if isinstance(seed, int) else None)
        rest = check_options(options)
        mask = self._mask(rest.pop("reset_mask", None))
        if seed is None:
            seeds = [None] * self.num_envs
        else:
            seeds = seed if isinstance(seed, Sequence) else [seed + i for i in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise ValueError(
                f"there are {len(seeds)} seeds for {self.num_envs} sub-environments; pass one for each, or one number"
            )
        infos: dict[str, Any] = {}
        fresh = list(self._observations) or [{} for _ in self.envs]
        for i, env in enumerate(self.envs):
            if mask[i]:
                fresh[i], info = env.reset(seed=seeds[i], options=rest)
                infos = self._add_info(infos, info, i)
        self._observations = fresh
        self._over = self._over & ~mask
        return self._batched(), infos

    def step(self, actions: Iterable[str]) -> tuple[Observation, Floats, Bools, Bools, dict[str, Any]]:
        """Judge one answer for each sub-environment.

        Raises:
            ClosedEnvironmentError: After `close`.
            ResetNeeded: An episode is over and autoreset is disabled, or no episode has begun.
            MachineError: The machine broke. While answers are judged, no attempt counts and no state changes. While the
                next episodes begin (`seed_variants`), reset all sub-environments.
        """
        if isinstance(actions, str):
            raise TypeError("expected one action for each sub-environment, got a single text; pass a tuple of texts")
        answers = list(actions)
        if len(answers) != self.num_envs:
            raise ValueError(
                f"there are {len(answers)} actions for {self.num_envs} sub-environments; pass one for each"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            over = np.flatnonzero(self._over).tolist()
            raise ResetNeeded(
                f"the episodes of the sub-environments {over} are over; call reset(options={{'reset_mask': ...}})"
            )
        live = [i for i in range(self.num_envs) if not self._over[i]]
        first = self.envs[0]
        outcomes = evaluate_or_refuse(
            self._evaluator,
            [self.envs[i].job(answers[i]) for i in live],
            precision=first.precision,
            max_source_chars=first.max_source_chars,
            archive=self.archive,
        )
        settled = {i: self.envs[i].settle(outcome) for i, outcome in zip(live, outcomes, strict=True)}

        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            if i in settled:
                self._observations[i], rewards[i], terminated[i], truncated[i], info = settled[i]
                if (terminated[i] or truncated[i]) and self.autoreset_mode is AutoresetMode.SAME_STEP:
                    infos = self._add_info(infos, {"final_obs": self._observations[i], "final_info": info}, i)
                    self._observations[i], info = env.reset()
            else:
                self._observations[i], info = env.reset()
            infos = self._add_info(infos, info, i)
        over = terminated | truncated
        # SAME_STEP has already begun the next episode.
        self._over = np.zeros_like(over) if self.autoreset_mode is AutoresetMode.SAME_STEP else over
        return self._batched(), rewards, terminated, truncated, infos

    def render(self) -> tuple[str | None, ...]:  # type: ignore[override]  # gymnasium's type wants a frame in every mode
        """Describe each sub-environment as text if `render_mode="ansi"`."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the sub-environments, and the judge and the archive if this environment made them."""
        for env in self.envs:
            env.close()
        close_owned(self._own, self.archive if self._owns_archive else None, disclose_to=self.archive)

    def _mask(self, given: Any) -> Bools:
        if given is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        mask: Bools = np.asarray(given)
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(f"expected reset_mask as a boolean array of shape ({self.num_envs},), got {given!r}")
        if not self._observations and not mask.all():
            raise ResetNeeded("no episode has begun; call reset() for all sub-environments before a reset of some")
        return mask

    def _batched(self) -> Observation:
        empty = create_empty_array(self._space, n=self.num_envs)
        # A copy, because observations of sub-environments that were not reset are returned again.
        return deepcopy(cast("Observation", concatenate(self._space, self._observations, cast("Any", empty))))
