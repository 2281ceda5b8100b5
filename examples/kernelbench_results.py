"""Write result files for KernelBench's own analysis from the verdicts of a sweep.

cudal1-env sweep PROGRAMS.jsonl --out verdicts.jsonl
python examples/kernelbench_results.py verdicts.jsonl ../KernelBench --level 1 --run mine --hardware H100
cd ../KernelBench && python scripts/benchmark_eval_analysis.py run_name=mine level=1 hardware=H100 baseline=mine
"""

import argparse
from pathlib import Path

from cudal1_env.adapters.kernelbench import write_results
from cudal1_env.campaigns.sweep import SweepLine


def main() -> None:
    """Write both files into the checkout."""
    parser = argparse.ArgumentParser(description="Write KernelBench's result files from a sweep's verdicts.")
    parser.add_argument("verdicts", type=Path, help="what cudal1-env sweep wrote")
    parser.add_argument("checkout", type=Path, help="your checkout of KernelBench")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--run", default="cudal1", help="name of the run and of its baseline")
    parser.add_argument("--hardware", default="cudal1", help="folder of the baseline")
    options = parser.parse_args()

    lines = [SweepLine.model_validate_json(line) for line in options.verdicts.read_bytes().splitlines()]
    records = [line.evaluation for line in lines if line.evaluation is not None]
    baseline = options.checkout / "results" / "timing" / options.hardware / f"{options.run}.json"
    level = options.checkout / "KernelBench" / f"level{options.level}"
    write_results(records, level, options.checkout / "runs" / options.run, baseline)
    print(f"wrote runs/{options.run}/eval_results.json and {baseline.relative_to(options.checkout)}")


if __name__ == "__main__":
    main()
