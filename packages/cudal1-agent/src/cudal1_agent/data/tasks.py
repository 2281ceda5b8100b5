"""The tasks of a run: which are trained on, which are evaluated, and which are held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cudal1_data import Device, Suite, Task, load_suite
from cudal1_data.dedup.duplicates import near_duplicates

from cudal1_agent.errors import CorpusError
from cudal1_agent.settings import EvaluationSettings, Settings

TRAIN = "train"
"""Group of the training tasks, in records."""
HELD_OUT_SIZES = "held_out_sizes"
"""Group of training tasks at sizes that are never trained on, in records."""
HELD_OUT_TASKS = "held_out_tasks"
"""Group of tasks that are never trained on, in records."""


GROUPS = {
    TRAIN: "training tasks",
    HELD_OUT_SIZES: "held-out sizes (a)",
    HELD_OUT_TASKS: "held-out tasks (b)",
}
"""Groups of tasks of the stage table, and their titles."""


@dataclass(frozen=True)
class TaskSets:
    """The tasks of a run."""

    train: tuple[Task, ...]
    """Tasks that are trained on."""
    groups: dict[str, tuple[Task, ...]]
    """Tasks that are evaluated, by group."""
    available: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of tasks from which those were taken, by group."""
    held_out: tuple[Task, ...] = ()
    """Tasks never trained on, evaluated or not: those marked for validation and test, and the test suite."""
    held_out_sizes: tuple[Task, ...] = ()
    """Training tasks at the sizes that are never trained on, evaluated or not."""
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks that are not trained on because they overlap the test, with the test's task."""
    overlaps: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of tasks that overlap the test, trained on or not, by kind of evidence (`sources.kernelbench.Why`)."""
    broken: tuple[str, ...] = ()
    """Faults of tasks that could not be used."""
    trained_on_test: bool = False
    """Whether tasks of the test, or near-duplicates of them, are trained on."""


def choose_tasks(
    suite: Suite,
    device: Device,
    evaluation: EvaluationSettings,
    *,
    test: Suite | None = None,
    train_on_test: bool = False,
    training: bool = True,
    notify: Callable[[str], None] = lambda _: None,
) -> TaskSets:
    """Sort the tasks of a suite into training and evaluation.

    Tasks tagged `random` are left out, because no answer to them is correct. A suite without training tasks is test
    data, such as KernelBench; so are tasks that overlap the suite `test`. To find overlaps, both suites are traced
    unless all training tasks are starter or generated ones (`cudal1_data.dedup.duplicates`).

    Args:
        suite: Source of training tasks, and of held-out tasks if `test` is None.
        device: Where programs run.
        evaluation: How many tasks of each group are evaluated.
        test: Suite whose tasks are held out instead.
        train_on_test: Allow training on test data.
        training: Whether training tasks are needed.
        notify: Receives a line for each slow step, and for each task that cannot be compared with the test.

    Raises:
        CorpusError: No task is left, or what is left is test data.
        DataError: Tasks must be traced, but torch does not work.
    """
    usable = suite.where(_has_an_answer)
    train = tuple(usable.train)
    held_out = tuple(usable.test if test is None else test.where(_has_an_answer))
    never = (*usable.validation, *usable.test, *(() if test is None else held_out))
    marked = False
    if not train and (train_on_test or not training):
        # As in the paper: the whole suite is trained on, and another suite or none is held out.
        train, held_out, marked = tuple(usable), () if test is None else held_out, training
        never = held_out
    if not train:
        raise CorpusError(_nothing_to_train_on(suite, usable))
    # Including the test's random tasks: nothing is reported on them, but a copy under another name lacks the tag.
    overlaps = {} if test is None else near_duplicates(train, test, notify=notify)
    if overlaps and not train_on_test:
        train = tuple(task for task in train if task.id not in overlaps)
    if not train:
        raise CorpusError(
            f"all training tasks of {suite.name!r} are in the test suite {test.name if test else ''!r}; "
            "name another suite, or train on test data with --train-on-test"
        )
    sizes = _other_sizes(train, device)
    chosen = {
        TRAIN: evaluation.train_tasks,
        HELD_OUT_SIZES: evaluation.held_out_sizes,
        HELD_OUT_TASKS: evaluation.held_out_tasks,
    }
    every: dict[str, tuple[Task, ...]] = {TRAIN: train, HELD_OUT_SIZES: sizes, HELD_OUT_TASKS: held_out}
    if not training and not usable.train:
        every = {TRAIN: (), HELD_OUT_SIZES: (), HELD_OUT_TASKS: train}
    return TaskSets(
        train=train,
        groups={name: spread(tasks, chosen[name]) for name, tasks in every.items()},
        available={name: len(tasks) for name, tasks in every.items()},
        held_out=never,
        held_out_sizes=sizes,
        left_out={} if train_on_test else {name: same.test for name, same in overlaps.items()},
        overlaps=Counter(same.why.value for same in overlaps.values()),
        broken=tuple(str(one.error) for one in (*suite.broken, *(test.broken if test is not None else ()))),
        trained_on_test=train_on_test and (marked or bool(overlaps)),
    )


def _has_an_answer(task: Task) -> bool:
    return "random" not in task.tags


def _nothing_to_train_on(suite: Suite, usable: Suite) -> str:
    if not usable:
        return (
            f"no task of the suite {suite.name!r} has a checkable answer (all {len(suite)} are tagged random); "
            "name another with --suite"
        )
    return (
        f"cannot train on the suite {suite.name!r}: all its {len(usable)} tasks are test data; train on another "
        "suite and report on this one (--suite starter --test-suite ...), or use --train-on-test, which marks all "
        "that the run writes"
    )


def _other_sizes(train: tuple[Task, ...], device: Device) -> tuple[Task, ...]:
    """Return the held-out sizes of training tasks, task by task."""
    return tuple(found for task in train for found in task.held_out(device))


def spread(tasks: Sequence[Task], count: int | None) -> tuple[Task, ...]:
    """Return `count` tasks at equal distances, all if there are no more or `count` is None.

    The tasks of a suite are in order of family, so the first ones would be of few families. The choice of n is part of
    the choice of 2 n.
    """
    if count is None or count >= len(tasks):
        return tuple(tasks)
    return tuple(tasks[place * len(tasks) // count] for place in range(count))


def tasks_of(
    settings: Settings,
    device: Device,
    *,
    suite: Suite | None = None,
    training: bool = True,
    notify: Callable[[str], None] = lambda _: None,
) -> TaskSets:
    """Load the suites that settings name, and sort their tasks.

    Args:
        settings: The settings.
        device: Where programs run.
        suite: The tasks, if they are not those of the suite that the settings name.
        training: Whether training tasks are needed.
        notify: Receives a line for each slow step, and for each task that cannot be compared with the test.

    Raises:
        CorpusError: No task is left, or what is left is test data.
        DataError: A suite cannot be loaded.
    """
    test = None if settings.test_suite is None else load_suite(settings.test_suite, device=device)
    return choose_tasks(
        suite or load_suite(settings.suite, device=device),
        device,
        settings.evaluation,
        test=test,
        train_on_test=settings.train_on_test,
        training=training,
        notify=notify,
    )
