"""When the reference counts as slowed beside the candidate, and when launches confirm each other."""

from __future__ import annotations

import random

from cudal1_env.judge.launches import confirmed
from cudal1_env.judge.rounds import slowed
from cudal1_env.stats import Launch


def test_a_clear_slowdown_counts_and_a_small_one_does_not() -> None:
    alone = [1.0, 1.01, 0.99, 1.0]
    assert slowed([1.2, 1.21, 1.19, 1.2, 1.2, 1.2, 1.22, 1.18], alone, alone)
    assert not slowed([1.04, 1.05, 1.04, 1.03, 1.04, 1.04, 1.05, 1.04], alone, alone)


def test_the_smaller_time_alone_counts() -> None:
    assert slowed([1.2] * 8, [1.2] * 4, [1.0] * 4)
    assert slowed([1.2] * 8, [1.0] * 4, [1.2] * 4)


def test_noise_is_rarely_called_a_slowdown() -> None:
    noise = random.Random(0)
    alarms = 0
    for _ in range(2000):
        times = [noise.lognormvariate(0.0, 0.1) for _ in range(28)]
        alarms += slowed(times[8:], times[:4], times[4:8])
    # Three launches in a row must alarm, and the reference beside itself must not: the rate of one counts cubed.
    assert alarms / 2000 < 0.1


def test_launches_confirm_each_other_within_ten_percent_and_their_noise() -> None:
    steady = Launch((4.0,) * 8, (1.0,) * 8)
    assert confirmed([steady, Launch((4.2,) * 8, (1.0,) * 8)])
    assert not confirmed([steady, Launch((8.0,) * 8, (1.0,) * 8)])
    assert not confirmed([steady])
    assert confirmed([steady, Launch((8.0,) * 8, (1.0,) * 8), Launch((8.1,) * 8, (1.0,) * 8)])
    noise = random.Random(1)
    blurred = Launch((4.0,) * 8, tuple(noise.lognormvariate(0.2, 0.5) for _ in range(8)))
    assert confirmed([steady, blurred])
