"""The rules for exemplars: the paper's probabilities, and what holds for every rule."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from cudal1_env.exemplars import (
    BucketExemplars,
    Exemplar,
    Exemplars,
    IslandExemplars,
    NoExemplars,
    RandomExemplars,
    distinct,
    exemplars_by_name,
    scored,
)
from cudal1_env.exemplars.bucket import bucket_of
from cudal1_env.exemplars.island import island_of
from cudal1_env.records import Status
from doubles.evaluator import evaluation
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

RULES = (BucketExemplars(), IslandExemplars(), IslandExemplars(programs_each=1), RandomExemplars(), NoExemplars())
DRAWS = 8_000

variants_strategy = st.lists(
    st.builds(
        Exemplar,
        source=st.text("abc", min_size=1, max_size=2),
        speedup=st.floats(1e-3, 1e4, allow_nan=False),
    ),
    max_size=30,
)


def fits(counts: Sequence[int], probabilities: Sequence[float]) -> bool:
    """Whether counts agree with probabilities: a chi-square test at 0.001."""
    assert math.isclose(sum(probabilities), 1.0)
    expected = np.array(probabilities) * sum(counts)
    return bool(chisquare(counts, expected).pvalue > 0.001)


def softmax(means: Sequence[float], tau: float) -> list[float]:
    """The paper's formula, mean of the means and all."""
    mu = sum(means) / len(means)
    weights = [math.exp((mean - mu) / tau) for mean in means]
    return [weight / sum(weights) for weight in weights]


def test_buckets_are_drawn_with_the_papers_probabilities() -> None:
    # Buckets of width 0.5 around 1.0, 1.5 and 3.0, with one, three and two programs.
    pool = [
        Exemplar("a", 1.0),
        *(Exemplar(f"b{i}", score) for i, score in enumerate((1.3, 1.5, 1.7))),
        *(Exemplar(f"c{i}", score) for i, score in enumerate((2.8, 3.0))),
    ]
    rule = BucketExemplars(tau=0.8, width=0.5)
    rng = np.random.default_rng(1)
    draws = [tuple(one.source for one in rule.choose(pool, 2, rng)) for _ in range(DRAWS)]

    p = dict(zip("abc", softmax([1.0, 1.5, 2.9], tau=0.8), strict=True))
    pairs = list(itertools.permutations("abc", 2))
    # The second is drawn among those left, with its probability there.
    wanted = [p[one] * p[two] / (1 - p[one]) for one, two in pairs]
    seen = Counter((one[0], two[0]) for one, two in draws)
    assert fits([seen[pair] for pair in pairs], wanted)

    within = Counter(source for draw in draws for source in draw)
    assert fits([within[f"b{i}"] for i in range(3)], [1 / 3] * 3)
    assert fits([within[f"c{i}"] for i in range(2)], [1 / 2] * 2)


def test_the_test_of_probabilities_can_fail() -> None:
    pool = [Exemplar("a", 1.0), Exemplar("b", 2.0)]
    rng = np.random.default_rng(2)
    rule = BucketExemplars(tau=1.1)
    seen = Counter(rule.choose(pool, 1, rng)[0].source for _ in range(DRAWS))
    counts = [seen["a"], seen["b"]]
    assert fits(counts, softmax([1.0, 2.0], tau=1.1))
    assert not fits(counts, softmax([1.0, 2.0], tau=1.0))


def test_an_outlier_neither_overflows_nor_starves_the_second_draw() -> None:
    pool = [Exemplar("slow", 1.0), Exemplar("middle", 2.0), Exemplar("fast", 5000.0)]
    rng = np.random.default_rng(3)
    draws = [[one.source for one in BucketExemplars().choose(pool, 2, rng)] for _ in range(DRAWS)]
    assert all(first == "fast" for first, _ in draws)
    seen = Counter(second for _, second in draws)
    assert fits([seen["slow"], seen["middle"]], softmax([1.0, 2.0], tau=1.0))


def test_noise_around_the_reference_is_no_contrast() -> None:
    pool = [Exemplar("a", 0.95), Exemplar("b", 1.0), Exemplar("c", 1.08)]
    rng = np.random.default_rng(4)
    assert all(len(BucketExemplars().choose(pool, 2, rng)) == 1 for _ in range(50))


@given(speedup=st.floats(1e-3, 1e4), width=st.floats(0.01, 10))
def test_a_bucket_holds_its_scores(speedup: float, width: float) -> None:
    start = 1 - width / 2 + bucket_of(speedup, width) * width
    slack = 1e-9 * (1 + speedup)
    assert start - slack <= speedup < start + width + slack


@given(variants=variants_strategy, n=st.integers(0, 5), seed=st.integers(0, 2**32), rule=st.sampled_from(RULES))
def test_every_rule_draws_distinct_programs_of_the_pool(
    variants: list[Exemplar], n: int, seed: int, rule: Exemplars
) -> None:
    before = list(variants)
    chosen = rule.choose(variants, n, np.random.default_rng(seed))
    assert len(chosen) <= n
    assert len({one.source for one in chosen}) == len(chosen)
    assert set(chosen) <= set(variants)
    assert variants == before
    assert rule.choose(variants, n, np.random.default_rng(seed)) == chosen


@given(variants=variants_strategy, n=st.integers(0, 5), seed=st.integers(0, 2**32))
def test_bucket_exemplars_come_from_distinct_buckets_and_as_many_as_there_are(
    variants: list[Exemplar], n: int, seed: int
) -> None:
    rule = BucketExemplars()
    chosen = rule.choose(variants, n, np.random.default_rng(seed))
    buckets = {bucket_of(one.speedup, rule.width) for one in distinct(variants)}
    assert len({bucket_of(one.speedup, rule.width) for one in chosen}) == len(chosen) == min(n, len(buckets))


@given(variants=variants_strategy, seed=st.integers(0, 2**32))
def test_random_fills_up(variants: list[Exemplar], seed: int) -> None:
    chosen = RandomExemplars().choose(variants, 3, np.random.default_rng(seed))
    assert len(chosen) == min(3, len({one.source for one in variants}))


def test_random_is_uniform_for_any_scores() -> None:
    pool = [Exemplar("a", 1.0), Exemplar("b", 50.0), Exemplar("c", 1.0)]
    rng = np.random.default_rng(5)
    seen = Counter(one.source for _ in range(DRAWS) for one in RandomExemplars().choose(pool, 1, rng))
    assert fits([seen[name] for name in "abc"], [1 / 3] * 3)


@given(variants=variants_strategy, seed=st.integers(0, 2**32))
def test_island_exemplars_share_an_island(variants: list[Exemplar], seed: int) -> None:
    rule = IslandExemplars(islands=3, programs_each=2)
    pool = distinct(variants)
    count = max(1, min(3, len(pool) // 2))
    chosen = rule.choose(variants, 3, np.random.default_rng(seed))
    assert len({island_of(one.source, count) for one in chosen}) == (1 if pool else 0)


@pytest.mark.slow
def test_every_island_is_drawn_from() -> None:
    rule = IslandExemplars(islands=4, programs_each=4)
    pool = [Exemplar(f"program {i}", 1.0 + i / 10) for i in range(40)]
    rng = np.random.default_rng(6)
    seen = Counter(island_of(rule.choose(pool, 1, rng)[0].source, 4) for _ in range(DRAWS))
    assert fits([seen[i] for i in range(4)], [1 / 4] * 4)


def test_a_program_measured_often_counts_once_at_its_median() -> None:
    pool = [Exemplar("a", 1.0), Exemplar("a", 9.0), Exemplar("a", 1.1), Exemplar("a", 1.2), Exemplar("b", 2.0)]
    assert distinct(pool) == [Exemplar("a", 1.1), Exemplar("b", 2.0)]


def test_only_correct_and_comparable_variants_are_shown() -> None:
    kept = evaluation(speedup=2.0)
    old = evaluation().model_copy(update={"protocol": "0"})
    impossible = kept.model_copy(update={"status": Status.IMPOSSIBLE})
    other_size = evaluation(task_source="another size")
    records = [evaluation(status=Status.CRASH), old, impossible, other_size, kept]
    assert scored(records, task_source=kept.task_source) == [Exemplar(kept.source, 2.0)]
    assert len(scored(records)) == 2


def test_a_program_that_earns_nothing_above_one_is_not_recommended_as_faster() -> None:
    fast = evaluation(speedup=8.0)
    records = [fast.model_copy(update={"rewarded_low": low}) for low in (1.0, 7.5)]
    assert [one.speedup for one in scored(records)] == [1.0, 8.0]
    doubted = [one.doubted(["a reason"]) for one in records]
    assert [one.speedup for one in scored(doubted)] == [1.0, 1.0]


def test_rules_by_name() -> None:
    assert exemplars_by_name("bucket") == BucketExemplars()
    with pytest.raises(ValueError, match=r"'islands'; did you mean 'island'"):
        exemplars_by_name("islands")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="greater than 0"):
        BucketExemplars(tau=0)
