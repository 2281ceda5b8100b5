"""The share of padding in stage 1's batches of a stream: sorted by length, as in training, and unsorted.

    python benchmarks/padding.py docs/results/padding_cpu.json

Settings are those of `configs/gpu.toml`: the compact prompt, a batch of 16, at most 4,096 tokens. The tokenizer has 600
tokens and is trained on the stream's first texts; a larger vocabulary makes all sequences shorter.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

from cudal1_agent.data.stream import Place, make_stream, streamed
from cudal1_agent.policies.embedded import make_tokenizer
from cudal1_agent.settings import SftSettings
from cudal1_agent.stages.streaming import BATCHES, Batches, Encoder

STREAM, BATCH, LONGEST, EXAMPLES = "generated?seed=1", 16, 4096, 1024


def padding(lengths: list[int], batch: int) -> float:
    """Return the share of padding among the positions of all batches.

    >>> padding([4, 2, 3, 3], 2)
    0.14285714285714285
    """
    batches = [lengths[start : start + batch] for start in range(0, len(lengths), batch)]
    return 1 - sum(map(sum, batches)) / sum(len(one) * max(one) for one in batches)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    stream = make_stream(
        STREAM, device="cpu", style="compact", contexts=SftSettings().contexts, per_task=8, have=frozenset()
    )
    texts = [
        text
        for _, pairs in islice(streamed(stream, Place(), tuple, workers=0), 20)
        for text in (pairs[0].prompt, pairs[0].answer)
    ]
    words: Any = make_tokenizer(texts, vocabulary=600, context=LONGEST)
    batches = Batches(stream, Encoder(words, chat={}, max_prompt=3072, max_length=LONGEST), BATCH, 0)
    lengths = [len(row["input_ids"]) for row in islice(batches(), EXAMPLES)]
    # Taking every BATCHES-th length undoes the sorting without another draw.
    mixed = [length for start in range(BATCHES) for length in lengths[start::BATCHES]]
    line = {
        "stream": STREAM,
        "batch": BATCH,
        "examples": len(lengths),
        "tokens": sum(lengths),
        "padding_share": round(padding(lengths, BATCH), 4),
        "padding_share_unsorted": round(padding(mixed, BATCH), 4),
    }
    out.write_text(json.dumps(line) + "\n", encoding="utf-8")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
