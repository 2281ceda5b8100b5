"""Statistics of speed: from samples to a speedup with an interval, when to stop, and summaries over tasks.

Pure functions of what was measured: nothing here reads a clock or a file. What is not covered: a bias that
every trial of a program shares (the order in which its memory was laid out by the linker, say) is part of its
speed as far as this module can tell, and a cost that falls on fewer than a fifth of the samples is trimmed away.
"""

from cudal1_env.stats.interval import (
    ALPHA,
    DEFAULT_SPREAD,
    Spread,
    agree,
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
    "agree",
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
