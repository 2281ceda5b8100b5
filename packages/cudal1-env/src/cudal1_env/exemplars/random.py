"""Uniform choice: the paper's ablation, in which exemplars lower the result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from cudal1_env.exemplars.base import Exemplar, distinct


class RandomExemplars(BaseModel):
    """Draw distinct programs uniformly, regardless of score."""

    model_config = ConfigDict(frozen=True)

    def choose(self, variants: Sequence[Exemplar], n: int, rng: np.random.Generator) -> list[Exemplar]:
        """Draw at most `n` exemplars; see `Exemplars`."""
        pool = distinct(variants)
        return [pool[int(i)] for i in rng.permutation(len(pool))[:n]]
