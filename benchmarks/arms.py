"""Compare arms of stage 3 that fork from one run: `python benchmarks/arms.py OUT.json RUN...`.

A run's figure is the mean log reward of all its answers in stage 3, with failures as 0.1 x: the mean of `raw_reward`
over its steps. By arm: the figure of each run, their mean, and the statuses of the answers. For `bucket` against each
other arm: the difference of means with an interval of 95 % (two-sample t, equal variances, Bonferroni over the
contrasts), and whether it excludes 0. Also the share of prompts that show as many exemplars as wanted in the first
step, and the overlap of what runs of two arms with one seed show there: shared programs of a task over programs shown.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detectable import LEVEL
from scipy.stats import t as student

FIRST = "bucket"


def main() -> None:
    """Read the runs, write the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    runs = [read(run) for run in options.runs]
    if few := [name for name, count in Counter(run["arm"] for run in runs).items() if count < 2]:
        parser.error(f"a spread needs two runs of each arm; there is one of {', '.join(few)}")
    found = compared(runs)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in ("arms", "contrasts", "overlap")}, indent=1))


def read(run: Path) -> dict[str, Any]:
    """Return what a comparison needs of a run."""
    settings = json.loads((run / "config.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ours = [one for one in records if one.get("stage") == "contrast"]
    batches = [one for one in ours if one["event"] == "batch"]
    return {
        "arm": settings["contrast"]["arm"],
        "seed": settings["seed"],
        "raw_rewards": [one["raw_reward"] for one in ours if one["event"] == "step"],
        "statuses": sum((Counter(one["statuses"]) for one in batches), Counter[str]()),
        "clip_shares": [one["clip_share"] for one in batches],
        "shown_at_first": batches[0]["shown"],
        "full_at_first": statistics.fmean(
            one == wanted for one, wanted in zip(batches[0]["exemplars"], batches[0]["exemplars_wanted"], strict=True)
        ),
    }


def compared(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the runs, the arms and the contrasts between them."""
    arms: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in sorted(runs, key=lambda one: (one["arm"], one["seed"])):
        arms[run["arm"]].append(run)
    figures = {name: [statistics.fmean(run["raw_rewards"]) for run in own] for name, own in arms.items()}
    others = [name for name in figures if name != FIRST]
    return {
        "kind": "arms",
        "runs": [run for own in arms.values() for run in own],
        "arms": {
            name: {
                "mean_log_rewards": figures[name],
                "mean": statistics.fmean(figures[name]),
                "statuses": sum((run["statuses"] for run in own), Counter[str]()),
                "full_at_first": statistics.fmean(run["full_at_first"] for run in own),
            }
            for name, own in arms.items()
        },
        "contrasts": {name: contrast(figures[FIRST], figures[name], len(others)) for name in others},
        "overlap": {
            name: overlaps
            for name in others
            if any(shown for run in arms[name] for shown in run["shown_at_first"].values())
            and (overlaps := [overlap(*pair) for pair in zip(arms[FIRST], arms[name], strict=False)])
        },
    }


def contrast(ours: Sequence[float], theirs: Sequence[float], contrasts: int) -> dict[str, Any]:
    """Return the difference of two arms' means with its interval.

    >>> found = contrast([1.0, 1.2, 1.4], [0.0, 0.2, 0.4], 1)
    >>> round(found["difference"], 3), [round(one, 3) for one in found["interval"]], found["told_apart"]
    (1.0, [0.547, 1.453], True)
    """
    degrees = len(ours) + len(theirs) - 2
    squares = sum((len(own) - 1) * statistics.variance(own) for own in (ours, theirs))
    error = math.sqrt(squares / degrees * (1 / len(ours) + 1 / len(theirs)))
    half = float(student.ppf(1 - LEVEL / (2 * contrasts), degrees)) * error
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    interval = [difference - half, difference + half]
    return {"difference": difference, "interval": interval, "told_apart": interval[0] > 0 or interval[1] < 0}


def overlap(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Return the share of the programs that a run shows at first which another run shows for the same task."""
    ours, theirs = first["shown_at_first"], second["shown_at_first"]
    tasks = [task for task in ours if task in theirs]
    shown = sum(len(set(ours[task])) for task in tasks)
    return sum(len(set(ours[task]) & set(theirs[task])) for task in tasks) / shown if shown else 0.0


if __name__ == "__main__":
    main()
