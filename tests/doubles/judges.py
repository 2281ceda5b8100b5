"""What tests do to pay less for judges: settings for few samples, and zygotes that judges share.

A zygote imports torch for 2 to 5 s and runs no program itself, so one is as good as another. A judge that closes still
closes its workers and removes its files.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from cudal1_env.judge import JudgeSettings
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.workers.zygote import Zygote
from cudal1_env.sandbox import clean_environment

QUICK = JudgeSettings(device="cpu", budget_training_s=0.1)
"""For tests that look at the status of a verdict: as few timed pairs as a verdict may have."""


@contextmanager
def shared_zygotes() -> Generator[None]:
    """Let judges share zygotes until the end; those that differ in modules or environment are different ones."""
    kept: dict[object, Zygote] = {}

    def shared(environment: Mapping[str, str] | None = None, *, preload: Sequence[str] = ()) -> Zygote:
        everything = tuple(sorted(clean_environment(**(environment or {})).items()))
        return kept.setdefault((everything, tuple(preload), tuple(sys.path)), Zygote(environment, preload=preload))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cudal1_env.judge.measure.builder.Zygote", shared)
        patch.setattr(Builder, "close", lambda self: self.folders.close())
        try:
            yield
        finally:
            for zygote in kept.values():
                zygote.close()


@contextmanager
def own_zygotes() -> Generator[None]:
    """Let judges have zygotes of their own again, as everywhere else, which end with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cudal1_env.judge.measure.builder.Zygote", Zygote)
        patch.setattr(Builder, "close", _close)
        yield


_close = Builder.close
