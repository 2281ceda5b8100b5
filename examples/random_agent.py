"""A random agent: the minimum that reinforcement learning code needs for this environment.

It imports gymnasium but no cudal1 package; the name before the colon registers the environment. In each attempt it
submits the reference as `ModelNew`, an exemplar from the observation, or a broken program. Correct programs that are no
faster earn about 1, broken ones 0.

    python examples/random_agent.py --episodes 4 --seed 0
"""

import argparse
import random
import re

import gymnasium as gym

BROKEN = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, *inputs):
        return inputs[7]
"""


def choose(observation: dict, rng: random.Random) -> tuple[str, str]:
    """Return a word for the choice, and the program to submit."""
    choices = [
        ("reference", re.sub(r"\bModel\b", "ModelNew", observation["reference"])),
        ("broken", BROKEN),
        *(("exemplar", exemplar["code"]) for exemplar in observation["exemplars"]),
    ]
    return rng.choice(choices)


def main() -> None:
    """Play a few episodes and print the result of each attempt."""
    parser = argparse.ArgumentParser(description="Play CudaL1-v0 at random.")
    parser.add_argument("--episodes", type=int, default=4, help="episodes to play (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="decides tasks and guesses (default 0)")
    arguments = parser.parse_args()

    rng = random.Random(arguments.seed)
    row = "{:34} {:>7} {:10} {:14} {:>8} {:>7}".format
    print(row("task", "attempt", "submitted", "status", "speedup", "reward"))
    total = 0.0
    env = gym.make("cudal1_env:CudaL1-v0", attempts=2)
    try:
        for episode in range(arguments.episodes):
            # The first seed determines all later ones.
            observation, info = env.reset(seed=arguments.seed if episode == 0 else None)
            over = False
            while not over:
                word, program = choose(observation, rng)
                observation, reward, terminated, truncated, info = env.step(program)
                over = terminated or truncated
                speedup = f"{info['speedup']:.2f}" if "speedup" in info else "-"
                attempt = str(observation["attempt"])
                print(row(info["task"], attempt, word, info["status"], speedup, f"{reward:.2f}"), flush=True)
                total += float(reward)
    finally:
        env.close()
    print(f"{arguments.episodes} episodes, mean return {total / max(arguments.episodes, 1):.2f}")


if __name__ == "__main__":
    main()
