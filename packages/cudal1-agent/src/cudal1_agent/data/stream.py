"""A stream of training pairs: generated tasks and the programs that templates write for them, rendered while training.

Task k of a stream is the same everywhere, and so are its pairs: a place in the stream says where to go on.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Callable, Generator, Sequence, Set
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import numpy as np
import torch
from cudal1_data import Device, Task
from cudal1_data.copies import is_copy
from cudal1_data.corpus.build import render
from cudal1_data.generator.request import Request, parse_request
from cudal1_data.techniques import Backend
from cudal1_env.exemplars import Exemplar
from cudal1_env.known import BACKENDS
from pydantic import BaseModel, ConfigDict, Field

from cudal1_agent.data.decontamination import Decontamination
from cudal1_agent.data.examples import Pair, Program, example, slower
from cudal1_agent.data.prompts import Style, build_prompt
from cudal1_agent.errors import ConfigError, CorpusError

EMPTY = 512
"""A stream is empty when so many tasks in a row give no pair."""

Choices = tuple[Pair, ...]
"""One training example with as many exemplars as were drawn, then with one less each; the first that fits is learnt."""


Made = TypeVar("Made")
"""What is made of a training example where it is rendered."""


class Place(BaseModel):
    """A place in a stream: before which pair of which task."""

    model_config = ConfigDict(frozen=True)

    task: int = Field(default=0, ge=0)
    """Number of the task."""
    pair: int = Field(default=0, ge=0)
    """Number of the pair among those of the task."""


@dataclass(frozen=True)
class Stream:
    """What decides the pairs of a stream."""

    request: Request
    """Families, which alternate, seed, and split: tasks of `validation` and `test` are never learnt."""
    device: Device
    """Where the programs are to run."""
    style: Style
    """How many words prompts use."""
    contexts: tuple[int, ...]
    """Numbers of exemplars to draw from."""
    per_task: int
    """Programs of a task at most."""
    backends: tuple[Backend, ...]
    """Backends of the programs."""
    held_out: tuple[Task, ...] = field(default=(), repr=False)
    """Tasks that are never learnt, and none that are the same program."""
    sizes: tuple[Task, ...] = field(default=(), repr=False)
    """Training tasks at sizes that are never learnt."""

    @property
    def seed(self) -> int:
        """Seed of tasks and draws."""
        return self.request.seed

    @cached_property
    def test(self) -> Decontamination:
        """What must not be learnt."""
        return Decontamination(self.held_out, self.sizes)

    def programs(self, number: int) -> list[Program]:
        """Return the programs of a task, none where the task is no training data."""
        families = self.request.drawn_families
        task = self.request.task(families[number % len(families)], number // len(families))
        if task.split != "train" or task.overlaps is not None:
            return []
        task = task.on(self.device)
        rendered = (
            pair
            for pair in render(task, self.seed, backends=self.backends, tagged=True)
            if self.device == "cuda" or not pair.needs_gpu
        )
        first = next(rendered, None)
        if first is None or self.test.evaluated(first) or self.test.kernelbench(first):
            return []
        pairs = [first, *islice(rendered, self.per_task - 1)]
        return [Program(task, pair.source, pair.techniques, backend=pair.backend) for pair in pairs]

    def pairs(self, number: int) -> list[Choices]:
        """Return the training examples of a task: each answer once, in an order drawn from seed and number."""
        programs = self.programs(number)
        learnt = answers(programs)
        rng = np.random.default_rng([self.seed, 8, number])

        def prompt_of(task: Task, shown: Sequence[Exemplar]) -> str:
            return build_prompt(task.source, shown, style=self.style, device=self.device)

        made: list[Choices] = []
        for index in rng.permutation(len(learnt)):
            program = learnt[int(index)]
            shown = slower(program, programs, int(rng.choice(np.asarray(self.contexts))), rng)
            choices = [example(program, shown, prompt_of, programs)]
            while shown:
                shown.remove(min(shown, key=lambda exemplar: exemplar.speedup))
                choices.append(example(program, shown, prompt_of, programs))
            _ = choices[0].skeleton  # which takes milliseconds, here and not where the model trains
            made.append(tuple(choices))
        return made


def answers(programs: Sequence[Program]) -> list[Program]:
    """Return the programs of a task that are learnt as answers; all of them may be shown as exemplars.

    Those are kernels, where there are any: by the bundled corpus, PyTorch programs of templates are no faster than the
    reference in the median (plain 1.00, captured 0.99, operators 0.95, channels-last 0.76), and they are alike, so that
    they are likelier than any one kernel: a model that learns them writes little else when it takes the likeliest word
    (docs/log.md). Where there are none, all but copies of the reference.
    """
    kernels = [one for one in programs if one.backend not in ("", "pytorch")]
    return kernels or [one for one in programs if not is_copy(one.source, one.task.source)]


def make_stream(
    text: str,
    *,
    device: Device,
    style: Style,
    contexts: Sequence[int],
    per_task: int,
    have: Set[str],
    held_out: Sequence[Task] = (),
    sizes: Sequence[Task] = (),
) -> Stream:
    """Return the stream of a text such as `generated:softmax+scan?seed=7`.

    Args:
        text: `generated`, optionally families, and options; `n` has no meaning here.
        device: Where the programs are to run.
        style: How many words prompts use.
        contexts: Numbers of exemplars to draw from.
        per_task: Programs of a task at most.
        have: What the machine has, see `cudal1_data.usable_variants`.
        held_out: Tasks that are never learnt.
        sizes: Training tasks at sizes that are never learnt.

    Raises:
        ConfigError: It is no such text.
        UnknownSuiteError: A family or an option is none.
    """
    head, mark, options = text.partition("?")
    name, _, families = head.partition(":")
    if name != "generated":
        raise ConfigError(f"sft.stream is {text!r}, which names no generated tasks; write 'generated?seed=0', say")
    request = parse_request(families + mark + options)
    return Stream(
        request=request,
        device=device,
        style=style,
        contexts=tuple(contexts),
        per_task=per_task,
        backends=tuple(one for one in BACKENDS[device] if one != "triton" or "triton" in have),
        held_out=tuple(held_out),
        sizes=tuple(sizes),
    )


def streamed(
    stream: Stream, start: Place, made: Callable[[Choices], Made], *, workers: int
) -> Generator[tuple[Place, Made]]:
    """Yield the pairs of a stream from a place on, each with its place, in an order that no worker changes.

    Args:
        stream: The stream.
        start: Where to begin.
        made: Makes of each pair what is yielded, in the process that rendered it.
        workers: Processes that render ahead; 0 renders in this one.

    Raises:
        CorpusError: The stream yields nothing.
    """
    empty = 0
    with closing(_rendered(stream, made, start.task, workers)) as rendered:
        for number, pairs in rendered:
            empty = 0 if pairs else empty + 1
            if empty == EMPTY:
                families = ", ".join(stream.request.drawn_families)
                raise CorpusError(
                    f"the stream yields nothing: {EMPTY} tasks in a row (families {families}, seed {stream.seed}) "
                    f"have no program for {stream.device} to be learnt; take other families, or hold out fewer tasks"
                )
            for index, one in enumerate(pairs):
                if number > start.task or index >= start.pair:
                    yield Place(task=number, pair=index), one


def _rendered(
    stream: Stream, made: Callable[[Choices], Any], first: int, workers: int
) -> Generator[tuple[int, list[Any]]]:
    if not workers:
        for number in count(first):
            yield number, [made(choices) for choices in stream.pairs(number)]
    # Forks of a fresh process that has only imported: a fork of one that uses a GPU or threads is not safe.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, type(made).__module__, "transformers"])
    # In a file: as an argument, each start would wait until the process before had imported what reading it needs.
    with NamedTemporaryFile() as file, ProcessPoolExecutor(workers, context, _keep, (file.name,)) as pool:
        pickle.dump((stream, made), file)
        file.flush()
        ahead: deque[tuple[int, Future[list[Any]]]] = deque()
        number = first
        try:
            while True:
                while len(ahead) < 8 * workers:
                    ahead.append((number, pool.submit(_pairs_of, number)))
                    number += 1
                place, future = ahead.popleft()
                yield place, future.result()
        finally:
            for _, future in ahead:
                future.cancel()


def free_cores() -> int:
    """Return how many cores may render while another one trains."""
    return max(len(os.sched_getaffinity(0)) - 1, 1)


_kept: list[tuple[Stream, Callable[[Choices], Any]]] = []
"""In a worker: the stream that it renders, and what it makes of it."""


def _keep(name: str) -> None:
    torch.set_num_threads(1)  # the others have the other cores
    _kept[:] = [pickle.loads(Path(name).read_bytes())]  # its parent wrote it


def _pairs_of(number: int) -> list[Any]:
    stream, made = _kept[0]
    return [made(choices) for choices in stream.pairs(number)]
