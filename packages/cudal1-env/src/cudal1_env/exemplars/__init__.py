"""Rules that choose the exemplars of a prompt: one file for each rule, each a pure function.

| name | rule |
| --- | --- |
| `bucket` | CUDA-L1's rule: distinct score buckets by softmax (default) |
| `island` | one of several separate populations, then buckets |
| `random` | uniformly |
| `none` | no exemplars |

They belong to the environment and not to the agent, because observations hold exemplars.
"""

from __future__ import annotations

from typing import Literal

from cudal1_env.errors import check_choice
from cudal1_env.exemplars.base import Exemplar, Exemplars, distinct, scored
from cudal1_env.exemplars.bucket import BUCKET_WIDTH, BucketExemplars, bucket_of
from cudal1_env.exemplars.island import IslandExemplars
from cudal1_env.exemplars.none import NoExemplars
from cudal1_env.exemplars.random import RandomExemplars

ExemplarRule = Literal["bucket", "island", "random", "none"]

_RULES: dict[str, type[BucketExemplars | IslandExemplars | RandomExemplars | NoExemplars]] = {
    "bucket": BucketExemplars,
    "island": IslandExemplars,
    "random": RandomExemplars,
    "none": NoExemplars,
}


def exemplars_by_name(name: ExemplarRule, *, tau: float = 1.0, width: float = BUCKET_WIDTH) -> Exemplars:
    """Return the rule with this name.

    Args:
        name: The rule.
        tau: Temperature of the draw by score, for the rules that have one; see `BucketExemplars`.
        width: Width of a score bucket, for the rules that have them; see `BucketExemplars`.

    Raises:
        SettingsError: There is no such rule.

    >>> exemplars_by_name("bucket", tau=0.5)
    BucketExemplars(tau=0.5, width=0.25)
    """
    check_choice("exemplar rule", name, _RULES)
    rule = _RULES[name]
    values = {"tau": tau, "width": width}
    return rule.model_validate({setting: value for setting, value in values.items() if setting in rule.model_fields})


__all__ = [
    "BUCKET_WIDTH",
    "BucketExemplars",
    "Exemplar",
    "ExemplarRule",
    "Exemplars",
    "IslandExemplars",
    "NoExemplars",
    "RandomExemplars",
    "bucket_of",
    "distinct",
    "exemplars_by_name",
    "scored",
]
