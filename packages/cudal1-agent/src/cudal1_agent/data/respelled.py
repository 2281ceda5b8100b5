"""Generated references as other people would write them: layers for functions, one operation a line, other formulas.

A small model that learns from the references of one author learns that author's style, too. Programs are generated
from a respelled reference. What `canonical` unifies is left as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from cudal1_agent.data.spelling import (
    is_straight,
    one_a_line,
    reuse_names,
    with_formulas,
    with_methods,
    with_products,
)

_LOCALS = ("out", "output", "hidden", "result", "scores", "normed", "weighted", "features", "acc")
_LAYER_NAMES = {
    "Linear": ("linear", "fc", "gemm", "matmul"),
    "Conv": ("conv", "conv1d", "conv2d", "conv3d"),
    "ConvTranspose": ("conv_transpose", "conv1d_transpose", "conv_transpose2d", "conv_transpose3d"),
    "MaxPool": ("max_pool", "maxpool", "pool"),
    "AvgPool": ("avg_pool", "avgpool", "pool"),
    "AdaptiveAvgPool": ("global_avg_pool", "avg_pool", "pool"),
    "GroupNorm": ("group_norm", "norm", "gn"),
    "BatchNorm": ("batch_norm", "bn", "norm"),
    "InstanceNorm": ("instance_norm", "norm"),
    "LayerNorm": ("layer_norm", "norm", "ln"),
}
_SIDES = ("bias", "slope", "shift", "tilt", "offset", "factor")
_SIDE_NAMES = ("bias", "bias", "scale", "multiplier", "add_bias")
_LAYERS = {
    "relu": "ReLU",
    "gelu": "GELU",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "silu": "SiLU",
    "mish": "Mish",
    "softplus": "Softplus",
    "elu": "ELU",
    "selu": "SELU",
    "hardswish": "Hardswish",
    "leaky_relu": "LeakyReLU",
    "softmax": "Softmax",
    "hardtanh": "Hardtanh",
    **{f"{kind}_pool{rank}d": f"{kind.capitalize()}Pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{f"adaptive_avg_pool{rank}d": f"AdaptiveAvgPool{rank}d" for rank in (1, 2, 3)},
}
"""Functions with their layers in `torch.nn`."""


def respelled(source: str, rng: np.random.Generator) -> str:
    """Return a generated reference in another style, drawn from `rng`. It computes the same.

    Layers and variables may have other names; shapes, values and distributions stay. A reference that returns gradients
    changes its names only.
    """
    return _Writer(source, rng).write()


class _Writer:
    """A reference while it is respelled."""

    def __init__(self, source: str, rng: np.random.Generator) -> None:
        self.tree = ast.parse(source)
        self.rng = rng
        self.model = next(one for one in self.tree.body if isinstance(one, ast.ClassDef))
        self.half = "bfloat16" in source or ".half()" in source
        nodes = list(ast.walk(self.tree))
        self.taken = {one.id for one in nodes if isinstance(one, ast.Name)}
        self.taken |= {one.arg for one in nodes if isinstance(one, ast.arg)}
        self.members = {
            one.attr for one in nodes if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"
        }

    def write(self) -> str:
        """Return the text in another style."""
        methods = _functions(self.model.body)
        if "compute" not in methods:
            forward = methods["forward"]
            steps = (
                (0.5, lambda: self.use_layers(forward)),
                (0.5, lambda: one_a_line(forward, self.local)),
                (0.5, lambda: self.name_the_result(forward)),
                (0.6, lambda: reuse_names(forward)),
                (0.5, lambda: with_methods(forward)),
                (0.5, lambda: with_products(forward)),
                (0.4, lambda: with_formulas(forward, half=self.half)),
            )
            for share, step in steps:
                if self.rng.random() < share:
                    step()
        self.rename()
        return ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"

    def local(self) -> str:
        """Return a new name for a variable."""
        return _fresh(str(self.rng.choice(_LOCALS)), self.taken)

    def constructor(self) -> ast.FunctionDef:
        """Return the constructor; add one that does nothing if there is none."""
        if (found := _functions(self.model.body).get("__init__")) is None:
            found = cast(ast.FunctionDef, ast.parse("def __init__(self):\n    super().__init__()").body[0])
            self.model.body.insert(0, found)
        return found

    def name_the_result(self, forward: ast.FunctionDef) -> None:
        """Assign the result to a name before it is returned."""
        last = cast(ast.Return, forward.body[-1])
        if is_straight(forward) and last.value is not None and not isinstance(last.value, ast.Name):
            name = self.local()
            forward.body.insert(-1, ast.Assign([ast.Name(name, ast.Store())], last.value))
            last.value = ast.Name(name, ast.Load())

    def use_layers(self, forward: ast.FunctionDef) -> None:
        """Call activations as layers that the constructor makes."""
        for call in list(ast.walk(forward)):
            match call:
                case ast.Call(ast.Attribute(ast.Name("torch" | "F"), str(name)), [_, *rest]) if name in _LAYERS:
                    layer = ast.Call(ast.parse(f"nn.{_LAYERS[name]}", mode="eval").body, rest, call.keywords)
                    own = f"self.{_fresh('act' if self.rng.random() < 0.2 else name, self.members)}"
                    self.constructor().body.extend(ast.parse(f"{own} = {ast.unparse(layer)}").body)
                    call.func, call.args, call.keywords = ast.parse(own, mode="eval").body, call.args[:1], []
                case _:
                    pass

    def rename(self) -> None:
        """Rename variables and layers."""
        names, members = dict[str, str](), dict[str, str]()
        nodes = list(ast.walk(self.tree))
        own = {one.id for one in nodes if isinstance(one, ast.Name)}
        for name in sorted(own.intersection("huvsp") - {one.arg for one in nodes if isinstance(one, ast.arg)}):
            names[name] = self.local()
        for one in ast.walk(self.model):
            match one:
                case ast.Assign([ast.Attribute(ast.Name("self"), str(name))], ast.Call(ast.Attribute(_, str(layer)))):
                    words = _SIDE_NAMES if name in _SIDES else _LAYER_NAMES.get(layer.rstrip("123d"), (name,))
                    other = {"1d", "2d", "3d"}.difference((layer[-2:],))
                    chosen = str(self.rng.choice([word for word in words if not any(rank in word for rank in other)]))
                    if chosen != name:
                        members[name] = _fresh(chosen, self.members)
                case _:
                    pass
        _apply(self.tree, names, members)


def _fresh(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, with a number if needed, and take it."""
    found = next(one for one in (name, *(f"{name}{number}" for number in range(2, 100))) if one not in taken)
    taken.add(found)
    return found


def _apply(tree: ast.AST, names: Mapping[str, str], members: Mapping[str, str]) -> None:
    """Rename variables and arguments, and attributes of `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(str(name)):
                node.id = names.get(name, name)
            case ast.arg(str(name)):
                node.arg = names.get(name, name)
            case ast.Attribute(ast.Name("self"), str(name)):
                node.attr = members.get(name, name)
            case _:
                pass


def _functions(body: Sequence[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
