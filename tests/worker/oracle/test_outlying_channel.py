"""A channel that outweighs its neighbours is held to its own rounding, also where its sums cancel."""

from __future__ import annotations

import socket
from pathlib import Path

import torch
from cudal1_env.judge.oracle.numerics import limits_of
from cudal1_worker.oracle.distributions import nature_of
from cudal1_worker.oracle.oracle import Oracle
from cudal1_worker.oracle.tolerance import Seen
from cudal1_worker.program.module import execute

TASK = Path(__file__).parents[2] / "exploits" / "tasks" / "outlier_channel.py"
CHANNEL = 64
SETS = 6
LARGEST = 6.0
"""Of a few thousand normal errors none is this many standard deviations off."""


def oracle(text: str) -> Oracle:
    one = Oracle(socket.socket())
    one.channel.close()
    one.module = execute(text, "Model")
    one.natures = [nature_of(value) for value in one.fresh_inputs(1, "own")]
    return one


def test_each_element_may_err_as_much_as_the_reference_may_in_its_channel() -> None:
    """The honest program errs like the reference, and was WRONG_OUTPUT in one of 75 verdicts."""
    one = oracle(TASK.read_text())
    one.state({"seed": 2, "values_seed": 3}, [])
    size = 8 * one.exact(one.models.wide, one.fresh_inputs(1, "own"))[0].numel()
    limits = [limits_of("float32", 32.0, 8.0)]
    one.probe({"limits": limits, "seeds": range(100, 116), "answer_bytes": size}, [])
    (profile,) = one.profiles
    assert profile is not None
    for seed in range(SETS):
        values = one.fresh_inputs(seed, "own")
        answers = one.exact(one.models.wide, values)
        ((nearby,), _) = one.nearby(values, answers, seed, [None])
        _, (error,) = one.errors(one.models, values, answers)
        out = torch.empty_like(error)
        profile.of_all(out, Seen(answers[0].reshape(-1), error, nearby), one.limits[0])
        allowed, errors = (part.view_as(answers[0])[:, CHANNEL] for part in (out, error))
        assert (allowed >= LARGEST * errors.square().mean().sqrt()).all()


def test_moves_of_inputs_are_not_those_of_their_own_stream() -> None:
    """Moves from the stream that drew the inputs go along with them, and add up instead of cancelling."""
    one = oracle("import torch\nclass Model:\n    pass\ndef get_inputs():\n    return [torch.randn(2**16)]\n")
    (x,) = one.fresh_inputs(5, "own")
    noise = (one.moved([x], 5, 0.5)[0] - x) / x
    assert abs(float((noise * x).sum() / noise.norm() / x.double().norm())) < 0.02
