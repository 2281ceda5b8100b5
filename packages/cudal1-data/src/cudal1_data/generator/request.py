"""Requests for generated tasks: `elementwise+softmax?n=200&seed=7`.

| option | meaning |
| --- | --- |
| `n` | number of tasks over all families, shared evenly (100) |
| `seed` | which tasks (0); task k of a family and seed depends only on `backward` |
| `backward` | 1: gradients of the inputs instead of the output (0); families without gradients are left out |
| `order` | `family` (the default) or `curriculum`: from easy to hard |
| `split_by` | `structure` (the default), or `operators`: no set of heavy operators is in two splits |
| `held_out` | families whose tasks are all `test`, joined by `+`; no task of the others is |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, get_args
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cudal1_data.errors import UnknownSuiteError, UnknownTaskError
from cudal1_data.generator import structure
from cudal1_data.generator.families import FAMILIES, FORWARD_ONLY, NAMED_ONLY
from cudal1_data.generator.make import make_task
from cudal1_data.progress import paced
from cudal1_data.suggest import nearest
from cudal1_data.task import Task

Order = Literal["family", "curriculum"]
SplitBy = Literal["structure", "operators"]

_NAME = re.compile(r"(?P<family>[a-z_]+)-(?P<seed>\d{1,18})-(?P<number>\d{1,9})(?P<backward>-backward)?")


class Request(BaseModel):
    """A request for generated tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    families: tuple[str, ...] = ()
    """Families in order; by default all that have such tasks."""
    n: int = Field(default=100, ge=1, le=1_000_000)
    """Number of tasks over all families."""
    seed: int = Field(default=0, ge=0, lt=10**18)
    """Seed of the tasks."""
    backward: bool = False
    """Compute gradients of the inputs instead of the output."""
    order: Order = "family"
    """`family`: family by family; `curriculum`: from easy to hard."""
    split_by: SplitBy = "structure"
    """What no two splits share. `structure`: all operators and their connections; `operators`: the set of those that
    need a separate pass over memory (products, reductions, scans, ...)."""
    held_out: tuple[str, ...] = ()
    """Families whose tasks are all `test`. Tasks of other families that would be `test` become `validation`: they are
    not trained on, and the test has only these families."""

    @model_validator(mode="after")
    def _check_gradients(self) -> Request:
        without = FORWARD_ONLY.intersection(self.families)
        if self.backward and without:
            raise ValueError(f"the family {min(without)} has no tasks with gradients; leave it or backward=1 out")
        return self

    @property
    def drawn_families(self) -> tuple[str, ...]:
        """The requested families, or all that have such tasks and need not be named."""
        without = NAMED_ONLY | FORWARD_ONLY if self.backward else NAMED_ONLY
        return self.families or tuple(one for one in FAMILIES if one not in without)

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks."""
        families = self.drawn_families
        each, more = divmod(self.n, len(families))
        made = (
            self.task(family, number)
            for place, family in enumerate(families)
            for number in range(each + (place < more))
        )
        told = paced(made, self.n, "tasks generated")
        yield from curriculum(told) if self.order == "curriculum" else told

    def task(self, family: str, number: int) -> Task:
        """Return one task of a family, in its split by this request."""
        task = make_task(family, self.seed, number, backward=self.backward)
        split = task.split
        if self.split_by == "operators":
            split = structure.split_by(f"operators/{tag_of(task, 'heavy')}")
        if family in self.held_out:
            split = "test"
        elif self.held_out and split == "test":
            split = "validation"
        return task if split == task.split else task.model_copy(update={"split": split})


def parse_request(text: str) -> Request:
    """Parse the text after `generated:`.

    Raises:
        UnknownSuiteError: A family or option is unknown, or a value is out of range.

    >>> parse_request("softmax+scan?n=20").families
    ('softmax', 'scan')
    """
    names, _, options = text.partition("?")
    values: dict[str, object] = {}
    if names:
        values["families"] = tuple(dict.fromkeys(map(_family, names.split("+"))))
    for name, value in parse_qsl(options, keep_blank_values=True):
        if name == "families" or name not in Request.model_fields:
            raise UnknownSuiteError(f"generated: unknown option {name!r}; the options are {_options()}")
        if name in values:
            raise UnknownSuiteError(f"generated: {name} is given twice, as {values[name]} and {value}; leave one out")
        values[name] = tuple(dict.fromkeys(map(_family, re.split("[+ ]", value)))) if name == "held_out" else value
    try:
        return Request.model_validate(values)
    except ValidationError as error:
        details = "; ".join(
            f"{item['loc'][0]}: {item['msg']}, got {item['input']!r}"
            if item["loc"]
            else item["msg"].removeprefix("Value error, ")
            for item in error.errors()
        )
        raise UnknownSuiteError(f"generated: {details}; the options are {_options()}") from error


def parse_name(name: str) -> Task:
    """Generate the task of a name such as `softmax-7-12`.

    Raises:
        UnknownTaskError: The name has another form, or its family has no gradients.
        UnknownSuiteError: The family is unknown.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise UnknownTaskError(
            f"generated: {name!r} names no task; write FAMILY-SEED-NUMBER (softmax-7-12), with -backward for gradients"
        )
    family = _family(match["family"])
    if match["backward"] and family in FORWARD_ONLY:
        raise UnknownTaskError(f"generated: the family {family} has no tasks with gradients; leave -backward out")
    return make_task(family, int(match["seed"]), int(match["number"]), backward=bool(match["backward"]))


def curriculum(tasks: Iterable[Task]) -> list[Task]:
    """Sort generated tasks from easy to hard: by level, difficulty and id."""
    return sorted(tasks, key=lambda task: (task.level, int(tag_of(task, "difficulty")), task.id))


def tag_of(task: Task, name: str) -> str:
    """Return the value of a generated task's tag.

    The names are `family`, `structure`, `heavy`, `dtype`, `layout`, `operators` and `difficulty`.

    Raises:
        KeyError: The task has no such tag.
    """
    for tag in task.tags:
        key, colon, value = tag.partition(":")
        if colon and key == name:
            return value
    raise KeyError(f"expected a tag {name}:... on {task.id}, it has {', '.join(task.tags) or 'none'}")


def _family(name: str) -> str:
    name = name.strip()
    if name not in FAMILIES:
        near = nearest(name, FAMILIES)
        raise UnknownSuiteError(
            f"generated: unknown family {name!r}; "
            + (f"did you mean {', '.join(near)}? The" if near else "the")
            + f" families are {', '.join(FAMILIES)}; + joins several"
        )
    return name


def _options() -> str:
    return (
        f"n=1..1000000, seed=0.., backward=0|1, order={'|'.join(get_args(Order))}, "
        f"split_by={'|'.join(get_args(SplitBy))}, held_out=FAMILY+FAMILY"
    )
