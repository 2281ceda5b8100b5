"""A record is repeated under the seed that it is committed to, and under no other."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from cudal1_env.campaigns.replay import replay
from cudal1_env.errors import RecordError
from cudal1_env.records import Evaluation
from doubles.evaluator import RuleEvaluator, evaluation


class RepeatingJudge(RuleEvaluator):
    """Judges by the text alone."""

    def evaluate(self, task: Any, source: str, *, seed: bytes = b"", first_set: int = 2, **more: Any) -> Evaluation:
        return super().evaluate(task, source, **more)


@pytest.mark.parametrize("seed", ["", "zz", "00", "11" * 16, "00" * 17])
def test_a_record_with_another_seed_is_not_repeated(seed: str) -> None:
    record = evaluation(seed_commitment=hashlib.sha256(bytes(16)).hexdigest())
    judge: Any = RepeatingJudge()
    assert replay(judge, record.model_copy(update={"seed": "00" * 16})).same_status
    with pytest.raises(RecordError, match="not the one of its commitment"):
        replay(judge, record.model_copy(update={"seed": seed}))
