"""Islands, after FunSearch: the paper's other scheme, which did about as well as buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cudal1_data.hashes import digest
from pydantic import BaseModel, ConfigDict, Field

from cudal1_env.exemplars.base import Exemplar, distinct
from cudal1_env.exemplars.bucket import BUCKET_WIDTH, choose_by_bucket


class IslandExemplars(BaseModel):
    """Draw an island uniformly, then exemplars from that island alone by the bucket rule.

    Separate populations keep one early success from dominating every prompt. The hash of a program's text determines
    its island, so `choose` stays a pure function of the variants. The number of islands grows with the number of
    programs, up to `islands`. FunSearch's resets of weak islands are left out, because they need a clock
    (Romera-Paredes et al., Nature 625, 2024, methods).
    """

    model_config = ConfigDict(frozen=True)

    islands: int = Field(default=4, ge=1)
    """Maximum number of islands."""
    programs_each: int = Field(default=4, ge=1)
    """Minimum number of programs for each island; fewer would rarely show a contrast."""
    tau: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Temperature of the draw within an island, as a speedup; see `BucketExemplars`."""
    width: float = Field(default=BUCKET_WIDTH, ge=0.001, allow_inf_nan=False)
    """Width of a score bucket within an island, as a speedup; see `BucketExemplars`."""

    def choose(self, variants: Sequence[Exemplar], n: int, rng: np.random.Generator) -> list[Exemplar]:
        """Draw at most `n` exemplars of one island; see `Exemplars`."""
        pool = distinct(variants)
        count = max(1, min(self.islands, len(pool) // self.programs_each))
        islands: dict[int, list[Exemplar]] = {}
        for variant in pool:
            islands.setdefault(island_of(variant.source, count), []).append(variant)
        if not islands:
            return []
        island = islands[sorted(islands)[int(rng.integers(len(islands)))]]
        return choose_by_bucket(island, n, rng, tau=self.tau, width=self.width)


def island_of(source: str, count: int) -> int:
    """Return the island of a program: stable across processes, unlike Python's own hash."""
    return int(digest(source)[:16], 16) % count
