"""Attention for one new token, where several heads share keys and values.

With a mask, transformers copies keys and values for each head before PyTorch's attention reads them. For a new token
that copy is most of the memory traffic: SmolLM2-135M has nine heads and three sets of keys and values. Here the heads
of a set take the place of tokens, so that each set is read once. Several tokens (a prompt) take transformers' own path.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "cudal1_grouped"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Return what transformers' attention returns: a tensor of shape (batch, tokens, heads, width), and no weights.

    Args:
        module: The layer.
        query: Shape (batch, heads, tokens, width).
        key: Shape (batch, sets, places, width).
        value: As `key`.
        attention_mask: Shape (batch, 1, tokens, places), true where a place counts; None if all count.
        arguments: Further arguments of transformers' attention, such as `scaling`.
    """
    batch, heads, tokens, width = query.shape
    if tokens > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)
    rows = query.reshape(batch, key.shape[1], -1, width)
    found = functional.scaled_dot_product_attention(
        rows, key, value, attn_mask=attention_mask, scale=arguments.get("scaling")
    )
    return found.reshape(batch, heads, 1, width).transpose(1, 2).contiguous(), None


def use_grouped_attention(model: Any) -> None:
    """Let a model write answers with it, if its heads share keys and values and it uses PyTorch's attention."""
    config = model.config
    shared = getattr(config, "num_key_value_heads", None) or 0
    if 0 < shared < config.num_attention_heads and config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, grouped_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
