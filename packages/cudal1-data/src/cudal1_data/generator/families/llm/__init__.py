"""Blocks of language models, forward: norms, rotary embeddings, gated MLPs, attention, losses, sampling, routers.

They follow published architectures. Other families combine random operators; the choices here are those in which
models differ.
"""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.generator.draw import Draw
from cudal1_data.generator.families.llm.attention import decode_attention, prefill_attention
from cudal1_data.generator.families.llm.block import Block
from cudal1_data.generator.families.llm.mlp import gated_mlp
from cudal1_data.generator.families.llm.norms import modulated_norm, residual_norm
from cudal1_data.generator.families.llm.rotary import normed_heads, rotary
from cudal1_data.generator.families.llm.router import router
from cudal1_data.generator.families.llm.sampling import sampling
from cudal1_data.generator.families.llm.vocabulary import capped_logits, cross_entropy
from cudal1_data.generator.program import Program

BLOCKS: dict[str, Callable[[Block], None]] = {
    "residual norm": residual_norm,
    "rotary embedding": rotary,
    "gated MLP": gated_mlp,
    "prefill attention": prefill_attention,
    "decode attention": decode_attention,
    "cross-entropy": cross_entropy,
    "sampling": sampling,
    "modulated norm": modulated_norm,
    "normed heads": normed_heads,
    "router": router,
    "capped logits": capped_logits,
}
"""The blocks by name."""


def llm(program: Program, draw: Draw) -> None:
    """Write one block; inputs, weights and products have the task's dtype, each for a third of the tasks."""
    program.dtype = draw.child("stored").one(("float32", "bfloat16", "float16"))
    program.title = draw.one(list(BLOCKS))
    BLOCKS[program.title](Block(program, draw))
