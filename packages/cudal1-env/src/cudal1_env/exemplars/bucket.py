"""CUDA-L1's rule: competitive and diverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.exemplars.base import Exemplar, distinct

BUCKET_WIDTH = 0.25
"""Default width of a score bucket, as a speedup."""


class BucketExemplars(BaseModel):
    r"""Draw distinct score buckets by a softmax of their means, then one program uniformly from each.

    Buckets are $B_k = [s_k, s_k + D)$; N *distinct* ones are drawn one after another with $P(B_i) \propto \exp((\bar
    s_i - \mu) / \tau)$ among those left, where $\bar s_i$ is the mean score in bucket i and $\mu$ the mean of the
    bucket means (CUDA-L1, arXiv 2507.14111, section on contrastive exemplar selection). Neither $\tau$, $D$ nor the
    position of the buckets is published.

    Buckets begin at $s_k = 1 - D/2 + kD$, so that 1.0 lies in the middle of one. Programs that merely repeat the
    reference differ only by noise, and must not be shown as a contrast.
    """

    model_config = ConfigDict(frozen=True)

    tau: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Temperature, as a speedup. At 1.0 a program with speedup 3 is drawn first 2.7 times as often as one with speedup
    2.
    """
    width: float = Field(default=BUCKET_WIDTH, ge=0.001, allow_inf_nan=False)
    """D, as a speedup. At 0.25 two buckets differ by several times the noise of a `training` evaluation."""

    def choose(self, variants: Sequence[Exemplar], n: int, rng: np.random.Generator) -> list[Exemplar]:
        """Draw at most `n` exemplars, fewer if there are fewer buckets; see `Exemplars`."""
        return choose_by_bucket(distinct(variants), n, rng, tau=self.tau, width=self.width)


def choose_by_bucket(
    variants: Sequence[Exemplar], n: int, rng: np.random.Generator, *, tau: float, width: float
) -> list[Exemplar]:
    """Apply the rule of `BucketExemplars` to programs that are already distinct."""
    buckets: dict[int, list[Exemplar]] = {}
    for variant in variants:
        buckets.setdefault(bucket_of(variant.speedup, width), []).append(variant)
    # Sorted by score, so that the draw depends on the programs and not on their order of arrival.
    groups = [buckets[key] for key in sorted(buckets)]
    means = np.array([np.mean([variant.speedup for variant in group]) for group in groups])
    return [groups[i][int(rng.integers(len(groups[i])))] for i in draw_distinct(means / tau, n, rng)]


def bucket_of(speedup: float, width: float) -> int:
    """Return k of the bucket that holds `speedup`; 0 is centred on 1.0.

    >>> [bucket_of(score, 0.25) for score in (0.9, 1.0, 1.1, 1.125, 1.37, 1.38)]
    [0, 0, 0, 1, 1, 2]
    """
    return math.floor((speedup - 1.0) / width + 0.5)


def draw_distinct(logits: NDArray[np.floating[Any]], n: int, rng: np.random.Generator) -> list[int]:
    """Draw at most `n` different indices, one after another, each with P proportional to exp(logit) among those left.

    The indices of the n largest of logit + Gumbel noise have exactly this distribution (Gumbel top-k: Kool et al.,
    arXiv 1903.06059, section 2), and nothing overflows or underflows for distant logits.
    """
    return [int(i) for i in np.argsort(-(logits + rng.gumbel(size=len(logits))), kind="stable")[:n]]
