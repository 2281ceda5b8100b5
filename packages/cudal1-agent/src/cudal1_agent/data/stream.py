"""A stream of training pairs: generated tasks and the programs that templates write for them, rendered while training.

Task k of a stream and its pairs are the same everywhere, so a place in the stream is enough to resume.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence, Set
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import numpy as np
import torch
from cudal1_data import Device, Task, corpus
from cudal1_data.copies import is_copy
from cudal1_data.corpus.build import render
from cudal1_data.generator.request import Request, parse_request
from cudal1_data.techniques import Backend
from cudal1_env.exemplars import Exemplar
from cudal1_env.known import BACKENDS
from pydantic import BaseModel, ConfigDict, Field

from cudal1_agent.data.canonical import canonical
from cudal1_agent.data.decontamination import Decontamination
from cudal1_agent.data.examples import Pair, Program, example, slower
from cudal1_agent.data.prompts import Style, build_prompt
from cudal1_agent.data.respelled import respelled
from cudal1_agent.errors import ConfigError, CorpusError

WINDOWS = "triton-window"
"""Template whose kernels read tensors through windows."""
EMPTY = 512
"""A stream counts as empty after this many tasks in a row without a pair."""

Choices = tuple[Pair, ...]
"""One training example with all exemplars that were drawn, then with one fewer each; the first that fits is learnt."""


Made = TypeVar("Made")
"""Result of converting a training example in the process that renders it."""


class Place(BaseModel):
    """A place in a stream: the pair that comes next."""

    model_config = ConfigDict(frozen=True)

    task: int = Field(default=0, ge=0)
    """Number of the task."""
    pair: int = Field(default=0, ge=0)
    """Number of the pair among those of the task."""


@dataclass(frozen=True)
class Stream:
    """Definition of a stream's pairs."""

    requests: tuple[Request, ...]
    """Families, seed and split of tasks, which alternate, as their families do; tasks of `validation` and `test` are
    never learnt."""
    device: Device
    """Where the programs run."""
    style: Style
    """Style of the prompts."""
    contexts: tuple[int, ...]
    """Numbers of exemplars to draw from."""
    per_task: int
    """Maximum number of programs per task."""
    backends: tuple[Backend, ...]
    """Backends of the programs."""
    held_out: tuple[Task, ...] = field(default=(), repr=False)
    """Tasks that are never learnt, nor others that are the same program."""
    sizes: tuple[Task, ...] = field(default=(), repr=False)
    """Training tasks at sizes that are never learnt."""
    taught: tuple[Backend, ...] = ()
    """Backends of the kernels that are learnt as answers; all by default. The others may be exemplars."""
    respelled: float = 0.0
    """Share of tasks whose references, and so their programs, are written in another style (`respelled`)."""

    @property
    def seed(self) -> int:
        """Seed of draws."""
        return self.requests[0].seed

    @cached_property
    def test(self) -> Decontamination:
        """Filter for pairs that must not be learnt."""
        return Decontamination(self.held_out, self.sizes)

    def programs(self, number: int) -> list[Program]:
        """Return the programs of a task, none if the task is not training data."""
        round_, place = divmod(number, len(self.requests))
        request = self.requests[place]
        families = request.drawn_families
        task = request.task(families[round_ % len(families)], round_ // len(families))
        if task.split != "train" or task.overlaps is not None:
            return []
        task = task.on(self.device)
        rendered = self._learnable(task)
        rng = np.random.default_rng([self.seed, 9, number])
        if rendered and rng.random() < self.respelled:
            task = task.model_copy(update={"source": respelled(task.source, rng)})
            rendered = self._learnable(task)
        if rendered and self.style == "canonical":
            task = task.model_copy(update={"source": canonical(task.source)})
            rendered = self._learnable(task)
        pairs = list(islice(rendered, self.per_task))
        # A window in a kernel, or PyTorch's with a kernel behind it: two kinds of answer to one kind of task.
        if any(pair.template == WINDOWS for pair in pairs):
            pairs = [pair for pair in pairs if pair.backend != "triton" or pair.template == WINDOWS]
        return [Program(task, pair.source, pair.techniques, backend=pair.backend) for pair in pairs]

    def _learnable(self, task: Task) -> Iterable[corpus.Pair]:
        """Return the task's programs that run on the stream's device, rendered on demand; () if it is test data."""
        rendered = (
            pair
            for pair in render(task, self.seed, backends=self.backends, tagged=True)
            if self.device == "cuda" or not pair.needs_gpu
        )
        first = next(rendered, None)
        if first is None or self.test.evaluated(first) or self.test.kernelbench(first):
            return ()
        return chain([first], rendered)

    def pairs(self, number: int) -> list[Choices]:
        """Return the training examples of a task: each answer once, in an order drawn from seed and number."""
        programs = self.programs(number)
        learnt = answers(programs, self.taught)
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
            _ = choices[0].skeleton  # takes milliseconds; cached here, so that the trainer need not compute it
            made.append(tuple(choices))
        return made


def answers(programs: Sequence[Program], taught: tuple[Backend, ...] = ()) -> list[Program]:
    """Return the programs of a task that are learnt as answers; all of them may be shown as exemplars.

    Args:
        programs: The task's programs.
        taught: Backends of the kernels among the answers; all by default. A task that has only others has no answers.

    These are the kernels, or, if there are none, all programs but copies of the reference. In the bundled corpus,
    PyTorch programs of templates are no faster than the reference in the median (plain 1.00, captured 0.99, operators
    0.95, channels-last 0.76). They are alike and so likelier than any one kernel: a model that learns them writes
    little else under greedy decoding (docs/log.md).
    """
    kernels = [one for one in programs if one.backend not in ("", "pytorch")]
    if kernels and taught:
        return [one for one in kernels if one.backend in taught]
    return kernels or [one for one in programs if not is_copy(one.source, one.task.source)]


def make_stream(
    texts: str | Sequence[str],
    *,
    device: Device,
    style: Style,
    contexts: Sequence[int],
    per_task: int,
    have: Set[str],
    held_out: Sequence[Task] = (),
    sizes: Sequence[Task] = (),
    taught: Sequence[Backend] = (),
    respelled: float = 0.0,
) -> Stream:
    """Return the stream of a text such as `generated:softmax+scan?seed=7`, or of several, whose tasks alternate.

    Args:
        texts: `generated`, optionally families, and options; `n` has no meaning here.
        device: Where the programs run.
        style: Style of the prompts.
        contexts: Numbers of exemplars to draw from.
        per_task: Maximum number of programs per task.
        have: What the machine has, see `cudal1_data.usable_variants`.
        held_out: Tasks that are never learnt.
        sizes: Training tasks at sizes that are never learnt.
        taught: Backends of the kernels that are learnt as answers; all by default.
        respelled: Share of tasks that are written in another style.

    Raises:
        ConfigError: A text does not name a stream.
        UnknownSuiteError: A family or an option is unknown.
    """
    return Stream(
        requests=tuple(map(_request, [texts] if isinstance(texts, str) else texts)),
        device=device,
        style=style,
        contexts=tuple(contexts),
        per_task=per_task,
        backends=tuple(one for one in BACKENDS[device] if one != "triton" or "triton" in have),
        held_out=tuple(held_out),
        sizes=tuple(sizes),
        taught=tuple(taught),
        respelled=respelled,
    )


def _request(text: str) -> Request:
    head, mark, options = text.partition("?")
    name, _, families = head.partition(":")
    if name != "generated":
        raise ConfigError(f"invalid sft.stream {text!r}: name generated tasks, for example 'generated?seed=0'")
    return parse_request(families + mark + options)


def streamed(
    stream: Stream, start: Place, made: Callable[[Choices], Made], *, workers: int, ahead: int = 0
) -> Generator[tuple[Place, Made]]:
    """Yield the pairs of a stream from a place on, each with its place; the order does not depend on the workers.

    Args:
        stream: The stream.
        start: Where to begin.
        made: Converts each pair, in the process that renders it.
        workers: Processes that render ahead; 0 renders in this one.
        ahead: Pairs that they render ahead, if tasks go on having as many; but at least eight tasks a process.

    Raises:
        CorpusError: The stream yields nothing.
    """
    empty = 0
    with closing(_rendered(stream, made, start.task, workers, ahead)) as rendered:
        for number, pairs in rendered:
            empty = 0 if pairs else empty + 1
            if empty == EMPTY:
                families = ", ".join(dict.fromkeys(one for part in stream.requests for one in part.drawn_families))
                raise CorpusError(
                    f"the stream yields nothing: {EMPTY} tasks in a row (families {families}, seed {stream.seed}) "
                    f"have no program for {stream.device} to be learnt; take other families, or hold out fewer tasks"
                )
            for index, one in enumerate(pairs):
                if number > start.task or index >= start.pair:
                    yield Place(task=number, pair=index), one


def _rendered(
    stream: Stream, made: Callable[[Choices], Any], first: int, workers: int, pairs_ahead: int
) -> Generator[tuple[int, list[Any]]]:
    if not workers:
        for number in count(first):
            yield number, [made(choices) for choices in stream.pairs(number)]
    # Workers are forks of a server that has only imported: forking a process that uses a GPU or threads is not safe.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, type(made).__module__, "transformers"])
    # In a file: with an argument, each start would wait until the previous process had imported what reading it needs.
    with NamedTemporaryFile() as file, ProcessPoolExecutor(workers, context, _keep, (file.name,)) as pool:
        pickle.dump((stream, made), file)
        file.flush()
        ahead: deque[tuple[int, Future[list[Any]]]] = deque()
        number, tasks, pairs = first, 16, 8 * stream.per_task  # a guess, until more tasks are known
        try:
            while True:
                most = max(8 * workers, min(pairs_ahead, pairs_ahead * tasks // pairs))
                while len(ahead) < most:
                    ahead.append((number, pool.submit(_pairs_of, number)))
                    number += 1
                place, future = ahead.popleft()
                found = future.result()
                pairs, tasks = pairs + len(found), tasks + 1
                yield place, found
        finally:
            for _, future in ahead:
                future.cancel()


def free_cores() -> int:
    """Return how many cores may render while one core trains."""
    return max(len(os.sched_getaffinity(0)) - 1, 1)


_kept: list[tuple[Stream, Callable[[Choices], Any]]] = []
"""In a worker: the stream that it renders, and the function that converts its pairs."""


def _keep(name: str) -> None:
    torch.set_num_threads(1)  # other workers use the other cores
    _kept[:] = [pickle.loads(Path(name).read_bytes())]  # the parent process wrote it


def _pairs_of(number: int) -> list[Any]:
    stream, made = _kept[0]
    return [made(choices) for choices in stream.pairs(number)]
