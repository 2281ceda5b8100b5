"""Memory that this process keeps although nothing uses it."""

from __future__ import annotations

import gc
import sys


def release() -> None:
    """Free what nothing uses, and return unused GPU memory to the driver.

    A trainer refers to itself, so that its model lives until a collection: a model of 7 billion parameters was on the
    GPU twice when the stage's table began (docs/results/large_h200.jsonl). PyTorch keeps what a stage or a generation
    has used for its next tensors: 75 of 80 GB after stage 1 on an H200. Judges are other processes, and would find no
    room.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
