"""Baselines: other ways to run a reference, and their results on this machine."""

from cudal1_env.baselines.programs import ALL, BASELINES, ON_REQUEST, BaselineName, measured, missing, program, resolve
from cudal1_env.baselines.store import BaselineEntry, BaselineKey, BaselineStore

__all__ = [
    "ALL",
    "BASELINES",
    "ON_REQUEST",
    "BaselineEntry",
    "BaselineKey",
    "BaselineName",
    "BaselineStore",
    "measured",
    "missing",
    "program",
    "resolve",
]
