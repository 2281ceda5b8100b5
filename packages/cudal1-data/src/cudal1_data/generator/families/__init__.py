"""The families: one function each, which adds a task to a program."""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.generator.draw import Draw
from cudal1_data.generator.families.attention import attention
from cudal1_data.generator.families.convolution import convolution
from cudal1_data.generator.families.elementwise import elementwise
from cudal1_data.generator.families.gather import gather
from cudal1_data.generator.families.layers import layers
from cudal1_data.generator.families.llm import llm
from cudal1_data.generator.families.loss import loss
from cudal1_data.generator.families.matmul_epilogue import matmul_epilogue
from cudal1_data.generator.families.matmul_shapes import matmul_shapes
from cudal1_data.generator.families.network import network
from cudal1_data.generator.families.norm import norm
from cudal1_data.generator.families.pooling import pooling
from cudal1_data.generator.families.recurrent import recurrent
from cudal1_data.generator.families.reduction import reduction
from cudal1_data.generator.families.scan import scan
from cudal1_data.generator.families.short import short
from cudal1_data.generator.families.softmax import softmax
from cudal1_data.generator.families.structured import structured
from cudal1_data.generator.families.transposed_convolution import transposed_convolution
from cudal1_data.generator.program import Program

Family = Callable[[Program, Draw], None]

FAMILIES: dict[str, Family] = {
    "elementwise": elementwise,
    "reduction": reduction,
    "norm": norm,
    "matmul_epilogue": matmul_epilogue,
    "matmul_shapes": matmul_shapes,
    "structured": structured,
    "convolution": convolution,
    "transposed_convolution": transposed_convolution,
    "pooling": pooling,
    "scan": scan,
    "softmax": softmax,
    "attention": attention,
    "gather": gather,
    "loss": loss,
    "recurrent": recurrent,
    "network": network,
    "llm": llm,
    "layers": layers,
    "short": short,
}
"""Families by name, in the order of `generated`."""

NAMED_ONLY = frozenset({"layers", "short"})
"""Families that a suite has only if it names them."""

FORWARD_ONLY = frozenset({"llm", "layers", "short"})
"""Families without gradient tasks."""
