"""Statistics of a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import quantiles

from pydantic import BaseModel, ConfigDict

from cudal1_data.corpus.model import Pair
from cudal1_data.techniques import TECHNIQUES

BEATEN = 1.2
"""Smallest lower end of a speedup's interval with which a reference counts as beaten."""


class Best(BaseModel):
    """The fastest verified programs of a family."""

    model_config = ConfigDict(frozen=True)

    family: str
    """Its name."""
    tasks: int
    """Number of references with a verified program, each size counted."""
    eager: float | None
    """Largest speedup over the unchanged reference; None if there is none."""
    compile: float | None
    """Largest speedup over the reference under `torch.compile`; None if no record has one."""


class Stats(BaseModel):
    """Statistics of a corpus."""

    model_config = ConfigDict(frozen=True)

    pairs: int
    """Number of pairs."""
    tasks: int
    """Number of references, each size counted."""
    verified: int
    """Pairs that a judge on a GPU found correct."""
    judged: int
    """Pairs with an evaluation."""
    refuted: int
    """Pairs whose evaluations contradict their label."""
    labels: dict[str, int]
    """Pairs by label."""
    backends: dict[str, int]
    """Correct pairs by backend."""
    families: dict[str, int]
    """Pairs by family."""
    statuses: dict[str, int]
    """Evaluations by verdict."""
    machines: dict[str, int]
    """Evaluations by processor or GPU."""
    precisions: dict[str, int]
    """Evaluations by the judge's precision (required interval width)."""
    protocols: dict[str, int]
    """Evaluations by version of the judge's protocol."""
    techniques: dict[str, float]
    """Share of correct pairs that show each technique."""
    techniques_verified: dict[str, float]
    """Share of verified pairs that show each technique."""
    speedups: dict[str, float]
    """Quantiles of verified speedups over the unchanged reference; empty if fewer than two."""
    beaten: int
    """References with a verified program whose speedup has a lower end of at least `BEATEN`."""
    best: tuple[Best, ...]
    """Fastest verified programs by family."""

    def text(self) -> str:
        """Return the statistics as readable text."""
        lines = [
            f"{self.pairs} pairs of {self.tasks} references; {self.judged} judged, {self.verified} verified on a GPU, "
            f"{self.refuted} not what their label says",
            f"labels: {listed(self.labels)}",
            f"backends: {listed(self.backends)}",
            f"families: {listed(self.families)}",
        ]
        if self.statuses:
            lines.append(f"verdicts: {listed(self.statuses)}")
        if self.techniques:
            lines.append("techniques, share of correct pairs (of verified ones):")
        lines += [
            f"  {name:14} {100 * self.techniques[name]:5.1f} %  ({100 * self.techniques_verified.get(name, 0.0):.1f} %)"
            for name in self.techniques
        ]
        if self.speedups:
            lines.append("speedups: " + ", ".join(f"{name} {value:.2f}" for name, value in self.speedups.items()))
            lines.append(f"{self.beaten} references beaten by {BEATEN} x or more (lower end of the interval)")
        for one in self.best:
            compiled = "-" if one.compile is None else f"{one.compile:.2f} x"
            eager = "-" if one.eager is None else f"{one.eager:.2f} x"
            lines.append(f"  best of {one.family:24} {eager} against eager, {compiled} against compile")
        return "\n".join(lines)


def stats(pairs: Iterable[Pair]) -> Stats:
    """Count a corpus."""
    whole = list(pairs)
    evaluations = [one for pair in whole for one in pair.evaluations]
    correct = [pair for pair in whole if pair.label == "correct"]
    verified = [pair for pair in whole if pair.verified]
    found = [one.point for pair in verified if (one := pair.best()) is not None]
    beaten = {pair.reference_sha256 for pair in verified if (one := pair.best()) is not None and one.low >= BEATEN}
    return Stats(
        pairs=len(whole),
        tasks=len({pair.reference_sha256 for pair in whole}),
        verified=len(verified),
        judged=sum(bool(pair.evaluations) for pair in whole),
        refuted=sum(pair.refuted for pair in whole),
        labels=_counted(pair.label for pair in whole),
        backends=_counted(pair.backend for pair in correct),
        families=_counted(pair.family for pair in whole),
        statuses=_counted(one.status for one in evaluations),
        machines=_counted(one.machine for one in evaluations),
        precisions=_counted(one.precision for one in evaluations),
        protocols=_counted(one.protocol for one in evaluations),
        techniques=_shares(correct),
        techniques_verified=_shares(verified),
        speedups=_quantiles(found),
        beaten=len(beaten),
        best=tuple(_best(family, verified) for family in sorted({pair.family for pair in verified})),
    )


def _best(family: str, verified: Sequence[Pair]) -> Best:
    mine = [pair for pair in verified if pair.family == family]
    eager, compiled = (
        max((one.point for pair in mine if (one := pair.best(baseline)) is not None), default=None)
        for baseline in ("eager", "compile")
    )
    return Best(family=family, tasks=len({pair.reference_sha256 for pair in mine}), eager=eager, compile=compiled)


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _shares(pairs: Sequence[Pair]) -> dict[str, float]:
    return {name: sum(name in pair.techniques for pair in pairs) / len(pairs) for name in TECHNIQUES} if pairs else {}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    tenths = quantiles(values, n=10, method="inclusive")
    return {
        "least": min(values),
        "10 %": tenths[0],
        "median": tenths[4],
        "90 %": tenths[8],
        "most": max(values),
    }


def listed(counts: dict[str, int]) -> str:
    """Return counts as readable text, `none` if empty."""
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
