"""Statistics of speed: speedups with intervals from samples, stop rules, and summaries over tasks.

All are pure functions of measurements. Not covered: a bias that all trials of a program share (from its memory layout
by the linker, for example) counts as part of its speed, and a cost in fewer than a fifth of the samples is trimmed
away.
"""

from cudal1_env.stats.interval import (
    ALPHA,
    DEFAULT_SPREAD,
    Spread,
    alpha_at,
    calibrate_spread,
    estimate,
    half_width,
)
from cudal1_env.stats.ratio import against
from cudal1_env.stats.stopping import REPORT, RULES, TRAINING, Step, StopRule, conclude, decide
from cudal1_env.stats.summary import PairedChange, SpeedupSummary, paired_change, summarize_latency, summarize_speedups
from cudal1_env.stats.table import COLUMNS, aligned, cells
from cudal1_env.stats.trial_samples import Centre, TrialSamples, centre

__all__ = [
    "ALPHA",
    "COLUMNS",
    "DEFAULT_SPREAD",
    "REPORT",
    "RULES",
    "TRAINING",
    "Centre",
    "PairedChange",
    "SpeedupSummary",
    "Spread",
    "Step",
    "StopRule",
    "TrialSamples",
    "against",
    "aligned",
    "alpha_at",
    "calibrate_spread",
    "cells",
    "centre",
    "conclude",
    "decide",
    "estimate",
    "half_width",
    "paired_change",
    "summarize_latency",
    "summarize_speedups",
]
