"""Power analysis: the smallest difference between two arms of stage 3 that a comparison over seeds detects.

    python benchmarks/detectable.py docs/results/quickstart_seed*.jsonl.gz --seeds 3 --contrasts 2

Two arms with n seeds each and a two-sided test at level a, with power 1 - b, detect a difference of mean log rewards of

    (t(1 - a / 2m, 2n - 2) + t(1 - b, 2n - 2)) s sqrt(2 / n)

(two-sample t test, t quantiles instead of noncentral ones, Bonferroni over m contrasts), a = 0.05 and b = 0.2. s is the
standard deviation between seeds of an arm's effect: the mean log speedup of the training tasks after stage 3 minus
that after stage 2, with failures as 0.1 x. The arms fork from one stage 2, so earlier differences cancel. Assumptions:
equal variances, a normal mean over tasks, and the same spread in the compared runs as in the given ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import t as student

FAILURE = 0.1
LEVEL, POWER = 0.05, 0.8


def main() -> None:
    """Print the spread between seeds and the smallest detectable difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--contrasts", type=int, default=2)
    options = parser.parse_args()
    changes = [change(path) for path in options.metrics]
    spread = statistics.stdev(changes)
    found = detectable(spread, seeds=options.seeds, contrasts=options.contrasts)
    print(f"changes of the mean log speedup: {', '.join(f'{one:+.3f}' for one in changes)}; s = {spread:.3f}")
    print(f"detectable with {options.seeds} seeds an arm: {found:.3f} in log, a factor of {math.exp(found):.2f}")


def detectable(spread: float, *, seeds: int, contrasts: int) -> float:
    """Return the smallest detectable difference of mean log rewards."""
    degrees = 2 * seeds - 2
    quantiles = student.ppf(1 - LEVEL / (2 * contrasts), degrees) + student.ppf(POWER, degrees)
    return float(quantiles * spread * math.sqrt(2 / seeds))


def change(path: Path) -> float:
    """Return the change in stage 3 of a run's mean log speedup of training tasks."""
    read = gzip.open if path.suffix == ".gz" else open
    with read(path, "rt") as file:
        records = [json.loads(line) for line in file]
    return mean_log(records, "contrast") - mean_log(records, "self_train")


def mean_log(records: Sequence[dict[str, object]], stage: str) -> float:
    """Return the mean log speedup of the training tasks after a stage, failures included."""
    values: list[float] = []
    for record in records:
        if (record.get("event"), record.get("stage"), record.get("group")) == ("answer", stage, "train"):
            speedup = record["speedup"]
            values.append(math.log(max(speedup["point"] if isinstance(speedup, dict) else FAILURE, FAILURE)))
    return statistics.fmean(values)


if __name__ == "__main__":
    main()
