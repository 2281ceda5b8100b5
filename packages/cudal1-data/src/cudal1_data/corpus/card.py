"""The dataset card of an exported corpus."""

from __future__ import annotations

from cudal1_data.corpus.stats import Stats, listed, stats
from cudal1_data.corpus.store import SPLITS, Corpus

_CARD = """---
license: apache-2.0
language: [code]
tags: [cuda, triton, pytorch, code-optimization]
configs:
- config_name: default
  data_files:
{files}
---
# GPU program variants with verdicts

Pairs of a PyTorch reference and a program that is meant to compute the same, with what a judge found out about them.

{stats}

## Measured on

{measured}

## Columns

| column | what |
| --- | --- |
| `task`, `family`, `level`, `split`, `overlaps` | the task; `overlaps`: KernelBench's task with the same operators |
| `reference`, `reference_sha256` | the reference program at one size |
| `source`, `source_sha256` | the program; it defines `ModelNew` |
| `backend` | pytorch, triton, cuda-load-inline, cuda-nvrtc, torch-compile, other |
| `techniques` | tags read off the text |
| `template`, `parameters` | what made it (parameters as JSON) |
| `label` | what is expected: `correct`, or the kind of failure that a mutant has |
| `evaluations` | one for each verdict: status, speedups with 95 % intervals, precision, machine, date, record |
| `verified`, `speedup` | whether a verdict on a GPU says CORRECT; its latest speedup against the reference |

## What it is not

- `label` says what a template meant to write; only `verified` says that a judge agreed, and
  `evaluations` may say otherwise.
- Programs carry their task's sizes as constants: they are variants of the reference at that size alone.
- Programs are generated from templates; many differ in parameters only. The files are split by `task`, never by row.
- Failures include programs that never return. Nothing here should be run outside a sandbox.
- Pairs in `test.parquet`, and those with `overlaps` where KernelBench is the test, are not for training. No pair is for
  one of KernelBench's own references.
"""


def card(corpus: Corpus) -> str:
    """Return the card of a folder with a Parquet file for each split of a corpus."""
    splits = {pair.split for pair in corpus}
    files = "\n".join(f"  - split: {one}\n    path: {one}.parquet" for one in SPLITS if one in splits)
    counted = stats(corpus)
    return _CARD.format(files=files, stats=f"```\n{counted.text()}\n```", measured=_measured(counted))


def _measured(stats: Stats) -> str:
    if not stats.machines:
        return "Nothing: no judge has seen these programs."
    return (
        f"- machine, evaluations: {listed(stats.machines)}\n"
        f"- precision of the judge (`report` asks for narrower intervals than `training`): {listed(stats.precisions)}\n"
        f"- version of the judge's protocol (figures of two versions do not compare): {listed(stats.protocols)}"
    )
