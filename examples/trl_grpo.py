"""TRL's GRPOTrainer with measured speed as the reward, from a service or this machine's judge.

cudal1-env serve &
python examples/trl_grpo.py MODEL --url http://127.0.0.1:8011
"""

import argparse

from cudal1_data import load_suite
from cudal1_env.adapters import prompt_of
from cudal1_env.adapters.trl import speed_reward
from cudal1_env.hardware import resolve_device
from cudal1_env.local import LocalEvaluator
from cudal1_env.remote import RemoteEvaluator


def main() -> None:
    """Train for a few steps."""
    parser = argparse.ArgumentParser(description="Train a model with TRL on measured speed.")
    parser.add_argument("model", help="folder or hub name of a causal language model")
    parser.add_argument("--url", default="", help="service that judges; by default this machine does")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps (default 10)")
    parser.add_argument("--out", default="runs/trl", help="folder of the checkpoints (default runs/trl)")
    options = parser.parse_args()

    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

    evaluator = RemoteEvaluator(options.url) if options.url else LocalEvaluator(resolve_device("auto"))
    suite = load_suite("starter", device=evaluator.device).train
    rows = [{"prompt": [{"role": "user", "content": prompt_of(task)}], "task": task.id} for task in suite]
    try:
        GRPOTrainer(
            model=options.model,
            reward_funcs=speed_reward(evaluator, suite),
            args=GRPOConfig(output_dir=options.out, max_steps=options.steps, max_completion_length=2048),
            train_dataset=Dataset.from_list(rows),
        ).train()
    finally:
        evaluator.close()


if __name__ == "__main__":
    main()
