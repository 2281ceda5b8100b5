"""Tokens per second of a policy's answers, by batching method. Needs a GPU.

    python benchmarks/generation.py MODEL OUT.jsonl [--answers 64] [--tokens 1000]

`compiled-copied` is `compiled` with transformers' own attention, which copies keys and values that heads share.
Prompts are of generated tasks. Each method writes the same number of answers greedily in three rounds; the first warms
up and compiles. `same` is the share of answers that are identical to the first method's (`static`): sums in another
order may differ in the last digit, and so may words. One JSON line for the machine, then one per method.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, cast

from cudal1_agent.data.prompts import build_prompt
from cudal1_agent.policies import transformers
from cudal1_agent.policies.transformers import Batching, TransformersPolicy, attention_of
from cudal1_data import load_suite
from parts import machine_line

WAYS = ("static", "compiled", "compiled-copied", "continuous")
ROUNDS = 3


def main() -> None:
    """Time each method; write its line at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    transformers.COMPILED_FROM = 0  # a policy compiles only what is worth it; here three rounds share one compilation
    tasks = list(load_suite("generated?n=512&seed=5", device=options.device))[: options.answers]
    prompts = [build_prompt(task.source, [], style="compact", device=options.device) for task in tasks]
    lines: list[dict[str, Any]] = [machine_line()]
    first: list[str] | None = None
    for way in options.ways:
        try:
            found, answers = timed(options, way, prompts)
        except Exception as error:  # noqa: BLE001  # a method that this machine lacks gets a line, too
            found, answers = {"error": f"{type(error).__name__}: {error}"[:300]}, []
        first = first or answers
        same = sum(map(str.__eq__, answers, first)) / max(len(answers), 1)
        lines.append({"kind": "generation", "way": way, **found, "same": same})
        print(json.dumps(lines[-1]), flush=True)
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def timed(options: argparse.Namespace, way: str, prompts: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return tokens and seconds of each round, and the answers."""
    written = 0

    def count(tokens: int) -> None:
        nonlocal written
        written += tokens

    batching = cast("Batching", way.removesuffix("-copied"))
    policy = TransformersPolicy(
        options.model, use_cpu=options.device == "cpu", batch=options.answers, batching=batching, written=count
    )
    if batching != way:
        policy._model.set_attn_implementation(attention_of(use_cpu=options.device == "cpu"))
    rounds: list[dict[str, float]] = []
    answers: list[str] = []
    for number in range(ROUNDS):
        written, began = 0, time.perf_counter()
        given = policy.sample(prompts, 1, temperature=0.0, max_new_tokens=options.tokens, seed=number)
        answers = [one for (one,) in given]
        took = time.perf_counter() - began
        rounds.append({"tokens": written, "seconds": took, "tokens_a_second": written / took})
    policy.close()
    return {"answers": len(prompts), "rounds": rounds}, answers


if __name__ == "__main__":
    main()
