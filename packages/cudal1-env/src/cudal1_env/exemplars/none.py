"""No exemplars: the paper's ablation without contrast, plain reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from cudal1_env.exemplars.base import Exemplar


class NoExemplars(BaseModel):
    """Show nothing."""

    model_config = ConfigDict(frozen=True)

    def choose(self, variants: Sequence[Exemplar], n: int, rng: np.random.Generator) -> list[Exemplar]:
        """Return nothing; see `Exemplars`."""
        return []
