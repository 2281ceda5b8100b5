"""TRL's SFTTrainer without a mask over padding, and with the share of padding in its log."""

from __future__ import annotations

from typing import Any

import torch
from trl.trainer.sft_trainer import SFTTrainer


class SupervisedTrainer(SFTTrainer):
    """TRL's SFTTrainer with `padding_share` in its log: padding over all tokens of the batches since the last line.

    The model gets no attention mask. Padding comes after the text, where a causal model does not attend, and has no
    loss. With a mask, attention in PyTorch cannot use its fastest kernel.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Make a trainer; the arguments are SFTTrainer's."""
        super().__init__(**kwargs)
        trained: Any = self.model
        trained.register_forward_pre_hook(_without_mask, with_kwargs=True)
        self._tokens: torch.Tensor | int = 0
        self._places = 0

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss as TRL does, and count tokens."""
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        tokens = torch.as_tensor(ids.numel(), device=ids.device) if mask is None else mask.sum()
        # Kept on the device: reading it here would make each step wait.
        self._tokens = tokens + self._tokens
        self._places += ids.numel()
        return super().compute_loss(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, with the share of padding in the lines of steps."""
        if self._places and "loss" in logs:
            logs = {**logs, "padding_share": 1 - int(self._tokens) / self._places}
            self._tokens, self._places = 0, 0
        super().log(logs, start_time)


def _without_mask(_: torch.nn.Module, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return values, {name: value for name, value in named.items() if name != "attention_mask"}
