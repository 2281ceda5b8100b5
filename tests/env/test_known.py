"""Known programs: which there are, and how many are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from cudal1_data import Task, Variant, load_suite
from cudal1_env.answers import evaluate_answers
from cudal1_env.archive import Archive
from cudal1_env.exemplars import bucket_of, scored
from cudal1_env.known import Seeding, known_programs, seed_archive
from doubles.evaluator import RuleEvaluator, program, task

NOTHING: frozenset[str] = frozenset()


def seeded(one: Task, archive: Archive, seeding: Seeding, written: Callable[[str], str] = str) -> RuleEvaluator:
    judge = RuleEvaluator()
    seed_archive(
        [one],
        archive,
        lambda jobs: evaluate_answers(judge, jobs, archive=archive),
        device="cpu",
        have=NOTHING,
        seeding=seeding,
        written=written,
    )
    return judge


def with_variants(*speedups: float) -> Task:
    variants = tuple(
        Variant(name=f"v{number}", source=program(speedup, str(number))) for number, speedup in enumerate(speedups)
    )
    return task("add", variants=variants)


def test_own_variants_come_before_those_of_templates_and_each_program_once() -> None:
    for one in list(load_suite("starter", device="cpu").train)[:6]:
        own = [variant.source for variant in one.variants if "cpu" in variant.devices and not variant.needs]
        found = known_programs(one, "cpu", NOTHING, most=50)
        assert found[: len(own)] == own
        assert len(found) == len(set(found)) > len(own)
        assert not any("CUDAGraph" in source for source in found)


def test_measuring_goes_on_until_programs_and_buckets_are_enough() -> None:
    one = with_variants(1.0, 1.0, 1.0, 2.0, 3.0, 4.0)
    with Archive() as archive:
        judge = seeded(one, archive, Seeding(programs=2, buckets=3))
        shown = scored(archive.variants(one.id))
        assert len({bucket_of(exemplar.speedup, 0.25) for exemplar in shown}) == 3
        assert len(judge.jobs) == 5, "three that were wanted, then two for the buckets that were still empty"
        assert seeded(one, archive, Seeding(programs=2, buckets=3)).jobs == []


def test_a_task_with_too_few_programs_gets_all_of_them_once() -> None:
    one = with_variants(1.0, 1.0)
    with Archive() as archive:
        judge = seeded(one, archive, Seeding(programs=6, buckets=3))
        assert set(Counter(judge.jobs).values()) == {1}
        assert {source for _, source in judge.jobs} == set(known_programs(one, "cpu", NOTHING))


def test_no_programs_wanted_measures_nothing() -> None:
    with Archive() as archive:
        assert seeded(with_variants(1.0), archive, Seeding(programs=0)).jobs == []


@pytest.mark.parametrize("status", ["WRONG_OUTPUT", "UNSTABLE"])
def test_a_failure_is_not_measured_again(status: str) -> None:
    bad = Variant(name="bad", source=f"# status {status}\nclass ModelNew: ...\n")
    one = task("add", variants=(bad, Variant(name="good", source=program(2.0))))
    with Archive() as archive:
        seeded(one, archive, Seeding(programs=1, buckets=1))
        assert len(archive.variants(one.id)) == 1
        assert seeded(one, archive, Seeding(programs=1, buckets=1)).jobs == []


def test_programs_of_templates_have_the_names_that_a_reference_is_written_with() -> None:
    one = next(iter(load_suite("generated:elementwise?n=4&seed=0", device="cpu")))
    with Archive() as archive:
        judge = seeded(one, archive, Seeding(programs=2), lambda text: text.replace("ROWS", "LINES"))
    assert judge.jobs
    for judged, source in judge.jobs:
        assert judged == one.id
        assert "LINES" in source
        assert "ROWS" not in source
