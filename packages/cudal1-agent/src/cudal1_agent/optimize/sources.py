"""Sources of candidates: baselines, templates, programs of near-duplicates, and a policy's answers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from cudal1_data import Device, Task, load_suite, usable_variants
from cudal1_data.corpus.build import build
from cudal1_data.dedup.overlaps import find_overlaps
from cudal1_data.techniques import Backend
from cudal1_data.tracing import Tracer
from cudal1_env import Archive
from cudal1_env.answers import program_of
from cudal1_env.baselines import measured, program, resolve
from cudal1_env.exemplars import BucketExemplars, Exemplar, scored
from cudal1_env.hardware import available_needs
from cudal1_env.known import BACKENDS

from cudal1_agent.data.prompts import build_prompt, fitting
from cudal1_agent.errors import PolicyError
from cudal1_agent.policies.base import Policy

EXEMPLARS = 3
"""Earlier programs that a prompt shows."""
PROMPT_CHARS = 60_000
"""Longest prompt, in characters."""
ANSWER_TOKENS = 8192
"""Longest answer of an endpoint, in tokens."""
_EVERYWHERE = frozenset({"__init__", "super", "rand", "randn", "randint", "Parameter", "ones", "zeros"})
"""Calls that do not show what a program computes."""
ROUND = 4
"""Answers per round; they are judged before the next round, whose prompts may show them."""


@dataclass(frozen=True)
class Candidate:
    """A program to be judged."""

    source: str
    """Its text."""
    origin: str
    """Where it came from: `baseline compile`, `template operators`, `starter/rms_norm: fused`, `answer 3`."""
    own: bool = True
    """Whether this project wrote it. A policy's program may use the judge's overhead, so less of its speed counts."""


class PromptMaker(Protocol):
    """Maker of prompts."""

    def __call__(self, task: Task, exemplars: Sequence[Exemplar] = ()) -> str:
        """Return the prompt for a task with the exemplars that fit."""
        ...


def baselines(task: Task, device: Device) -> list[Candidate]:
    """Return other ways to run the module, as programs: torch.compile, CUDA graphs, ... if the device has them."""
    names = measured(resolve(["all"], device))
    return [Candidate(program(name, task.source), f"baseline {name}") for name in names]


def templates(task: Task, device: Device) -> Iterator[Candidate]:
    """Yield the programs of templates for a module, in the corpus's order."""
    have = available_needs()
    backends: list[Backend] = [name for name in BACKENDS[device] if name != "triton" or "triton" in have]
    for pair in build([task], backends=backends):
        if (device == "cuda" or not pair.needs_gpu) and pair.template != "plain":
            yield Candidate(pair.source, f"template {pair.template}")


def near_duplicates(task: Task, device: Device, *, timeout_s: float) -> list[Candidate]:
    """Return known programs of starter tasks with the module's operator graph or behaviour.

    Args:
        task: The module.
        device: Where programs run.
        timeout_s: Longest time for tracing one task.
    """
    called = _called(task.source)
    suite = [one for one in load_suite("starter", device=device) if _alike(called, _called(one.source))]
    if not suite:
        return []
    with Tracer(timeout_s=timeout_s) as tracer:
        mine = tracer.trace(task)
        if mine.error is not None:
            return []
        others = [tracer.trace(one) for one in suite]
    same = {name for one in find_overlaps(("module", [mine]), ("starter", others)).overlaps for name in one.same}
    have = available_needs()
    return [
        Candidate(variant.source, f"{one.id}: {variant.name}")
        for one in suite
        if one.id in same
        for variant in usable_variants(one, device, have)
    ]


def _called(source: str) -> frozenset[str]:
    """Return the names of the functions and layers that a program calls."""
    return frozenset(re.findall(r"\.(\w+)\(", source)) - _EVERYWHERE


def _alike(one: frozenset[str], other: frozenset[str]) -> bool:
    """Return whether two programs have enough calls in common to be worth tracing, which takes seconds."""
    return bool(one | other) and len(one & other) >= 0.5 * len(one | other)


def full_prompt(device: Device) -> PromptMaker:
    """Return the prompt maker for a pretrained model at an endpoint."""

    def prompt(task: Task, exemplars: Sequence[Exemplar] = ()) -> str:
        shown = fitting(task.source, exemplars, style="full", device=device, count=len, limit=PROMPT_CHARS)
        return build_prompt(task.source, shown, style="full", device=device)

    return prompt


class Answers:
    """A policy's answers, generated in rounds with contrastive prompts."""

    def __init__(self, policy: Policy, prompt: PromptMaker, *, max_new_tokens: int, seed: int = 0) -> None:
        """Prepare to ask.

        Args:
            policy: Generates the answers.
            prompt: Makes its prompts.
            max_new_tokens: Longest answer in tokens.
            seed: Seed of exemplars and answers.
        """
        self._policy, self._prompt, self._tokens, self._seed = policy, prompt, max_new_tokens, seed
        self._rng = np.random.default_rng(seed)
        self.asked = 0
        """Answers that were asked for."""
        self.without_program = 0
        """Answers that held no program."""

    def round(self, task: Task, archive: Archive, most: int, *, timeout_s: float) -> list[Candidate]:
        """Return the programs of one round.

        Args:
            task: The module.
            archive: Judged programs; some are shown with their scores.
            most: Maximum number of answers.
            timeout_s: Longest wait for all of them.

        Raises:
            PolicyError: The policy failed, or was not finished in time.
        """
        count = min(ROUND, most)
        known = scored(archive.variants(task.id), task_source=task.source)
        prompts = [self._prompt(task, BucketExemplars().choose(known, EXEMPLARS, self._rng)) for _ in range(count)]
        self._seed += 1
        seed = self._seed * 1000

        def ask() -> list[list[str]]:
            return self._policy.sample(prompts, 1, temperature=1.0, max_new_tokens=self._tokens, seed=seed)

        answers = [one for group in _waited(ask, self._policy, timeout_s) for one in group]
        found: list[Candidate] = []
        for answer in answers:
            self.asked += 1
            source = program_of(answer)
            if source is None:
                self.without_program += 1
            else:
                found.append(Candidate(source, f"answer {self.asked}", own=False))
        return found

    def close(self) -> None:
        """Release the policy's resources."""
        self._policy.close()


def _waited(ask: Callable[[], list[list[str]]], policy: Policy, timeout_s: float) -> list[list[str]]:
    """Ask in a thread, so that a server that does not answer in time can be abandoned."""
    future: Future[list[list[str]]] = Future()

    def work() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised again below
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return future.result(timeout=max(timeout_s, 0.1))
    except LateError:
        policy.close()
        raise PolicyError(f"the policy had not answered after {timeout_s:.0f} s") from None
