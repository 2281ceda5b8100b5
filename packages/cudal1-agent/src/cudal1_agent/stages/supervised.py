"""TRL's SFTTrainer, which also says how much of what it computes is padding."""

from __future__ import annotations

from typing import Any

import torch
from trl.trainer.sft_trainer import SFTTrainer


class SupervisedTrainer(SFTTrainer):
    """TRL's SFTTrainer with `padding_share` in its log: padding over all places of the batches since the last line."""

    def __init__(self, **kwargs: Any) -> None:
        """Make a trainer; the arguments are SFTTrainer's."""
        super().__init__(**kwargs)
        self._tokens: torch.Tensor | int = 0
        self._places = 0

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss as TRL does, and count."""
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        tokens = torch.as_tensor(ids.numel(), device=ids.device) if mask is None else mask.sum()
        # Left on the device: reading it here would make each step wait.
        self._tokens = tokens + self._tokens
        self._places += ids.numel()
        return super().compute_loss(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, with the share of padding in the lines of steps."""
        if self._places and "loss" in logs:
            logs = {**logs, "padding_share": 1 - int(self._tokens) / self._places}
            self._tokens, self._places = 0, 0
        super().log(logs, start_time)
