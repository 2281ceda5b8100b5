"""Generated references as other people would write them: other names, layers for functions, one operation a line.

A small model that learns from the references of one author learns that author's names, too. Programs are generated
from a respelled reference, so they have its names.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from cudal1_agent.data.spelling import (
    is_number,
    is_operation,
    is_straight,
    one_a_line,
    reuse_names,
    with_formulas,
    with_methods,
    with_products,
)

_CONSTANTS = {
    "BATCH": ("batch_size", "batch", "B", "N"),
    "ROWS": ("batch_size", "rows", "M", "seq_len", "num_rows"),
    "COLS": ("dim", "cols", "N", "features", "hidden_size", "num_features"),
    "INNER": ("in_features", "input_size", "K", "input_dim"),
    "OUTER": ("out_features", "hidden_size", "output_size", "N"),
    "CHANNELS": ("in_channels", "channels", "num_features", "num_channels"),
    "OUT": ("out_channels", "filters"),
    "SIZE": ("size", "N", "num_items", "dim"),
    "WIDTH": ("width", "hidden_size", "W"),
    "HEIGHT": ("height", "H"),
    "LENGTH": ("length", "seq_length", "L"),
    "STEPS": ("seq_len", "steps", "T"),
    "DEPTH": ("depth", "D"),
    "GROUPS": ("num_groups", "groups"),
}
_INPUTS = {
    "x": ("x", "x", "x", "A", "input", "inputs", "a", "predictions"),
    "y": ("y", "B", "b", "other", "targets", "residual", "add_input"),
    "z": ("z", "C", "c", "third", "scale_input"),
    "order": ("indices", "index", "idx", "positions"),
    "mask": ("mask", "attention_mask", "keep_mask"),
}
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
_NUMBERS: dict[type[ast.operator], tuple[str, ...]] = {
    ast.Mult: ("scaling_factor", "multiplier", "scale_factor", "factor", "scale"),
    ast.Div: ("divisor", "scale", "temperature"),
    ast.Add: ("add_value", "constant", "constant_value", "shift"),
    ast.Sub: ("subtract_value", "subtract1_value", "constant_value", "offset"),
}
"""Names of the number beside a tensor, by operator."""
_ARGUMENTS = {"min": "min_value", "max": "max_value", "min_val": "min_val", "max_val": "max_val"}
"""Names of numbers that functions receive by keyword."""
_EDGES = (("DEPTH", "HEIGHT", "WIDTH"), ("HEIGHT", "WIDTH"))
_KERNEL_SIZE = 2
"""Place of the kernel size among a convolution's arguments."""
_HYPERPARAMETERS = ("stride", "padding", "dilation", "groups")


def respelled(source: str, rng: np.random.Generator) -> str:
    """Return a generated reference in another style, drawn from `rng`. It computes the same.

    Layers and inputs may have other names; shapes, values and distributions stay. A reference that returns gradients
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
                (0.5, self.name_hyperparameters),
                (0.6, lambda: self.name_numbers(forward)),
                (0.4, self.name_shapes),
                (0.7, self.constructor),
                (0.5, lambda: one_a_line(forward, self.local)),
                (0.5, lambda: self.name_the_result(forward)),
                (0.6, lambda: reuse_names(forward)),
                (0.5, lambda: with_methods(forward)),
                (0.5, lambda: with_products(forward)),
                (0.4, lambda: with_formulas(forward, half=self.half)),
                (0.5, self.join_edges),
                (0.4, self.inline_inputs),
                (0.2, self.functions_in_full),
            )
            for share, step in steps:
                if self.rng.random() < share:
                    step()
        self.rename()
        return ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"

    def fresh(self, name: str) -> str:
        """Return a name that nothing has yet, with a number if needed."""
        return _fresh(name, self.taken)

    def local(self) -> str:
        """Return a new name for a variable."""
        return self.fresh(str(self.rng.choice(_LOCALS)))

    def constructor(self) -> ast.FunctionDef:
        """Return the constructor; add one that does nothing if there is none."""
        if (found := _functions(self.model.body).get("__init__")) is None:
            found = cast(ast.FunctionDef, ast.parse("def __init__(self):\n    super().__init__()").body[0])
            self.model.body.insert(0, found)
        return found

    def receive(self, name: str, value: ast.expr) -> ast.Name:
        """Make a number or shape a constant that the constructor receives; return its name there.

        Some get a default value in the constructor instead.
        """
        name = self.fresh(name)
        arguments = self.constructor().args
        if isinstance(value, ast.Constant) and self.rng.random() < 0.15:
            arguments.args.append(ast.arg(name))
            arguments.defaults.append(value)
            return ast.Name(name, ast.Load())
        self.tree.body.insert(self.tree.body.index(self.model), ast.Assign([ast.Name(name, ast.Store())], value))
        arguments.args.insert(len(arguments.args) - len(arguments.defaults), ast.arg(name))
        given = cast(ast.Return, _functions(self.tree.body)["get_init_inputs"].body[-1])
        cast(ast.List, given.value).elts.append(ast.Name(name, ast.Load()))
        return ast.Name(name, ast.Load())

    def name_hyperparameters(self) -> None:
        """Make the numbers of convolutions and pooling constants that the constructor receives."""
        for call in [one for one in ast.walk(self.constructor()) if isinstance(one, ast.Call)]:
            layer = ast.unparse(call.func)
            if "Conv" in layer:
                kernel = call.args[_KERNEL_SIZE]
                if isinstance(kernel, ast.Constant):
                    kernel = self.receive("kernel_size", kernel)
                call.args[_KERNEL_SIZE:] = []
                if self.rng.random() < 0.5:
                    call.args.append(kernel)
                else:
                    call.keywords.insert(0, ast.keyword("kernel_size", kernel))
                for one in call.keywords:
                    if one.arg in _HYPERPARAMETERS and isinstance(one.value, ast.Constant):
                        one.value = self.receive(str(one.arg), one.value)
            elif "Adaptive" in layer:
                call.args = [ast.Tuple(call.args * int(layer[-2]), ast.Load())]
            elif "Pool" in layer and isinstance(call.args[0], ast.Constant):
                call.args[0] = self.receive("pool_kernel_size", call.args[0])
            elif "LeakyReLU" in layer and call.args:
                call.args[0] = self.receive("negative_slope", call.args[0])
            elif "Hardtanh" in layer:
                for one in call.keywords:
                    one.value = self.receive(_ARGUMENTS[str(one.arg)], one.value)

    def name_numbers(self, forward: ast.FunctionDef) -> None:
        """Make dimensions, and numbers beside tensors, attributes of the model, from constants for its constructor."""
        if not is_straight(forward):
            return

        def named(value: ast.expr, name: str) -> ast.expr:
            if not is_number(value) or self.rng.random() < 0.2:
                return value
            received = self.receive(name, value)
            self.constructor().body.extend(ast.parse(f"self.{received.id} = {received.id}").body)
            self.members.add(received.id)
            return ast.Attribute(ast.Name("self", ast.Load()), received.id, ast.Load())

        for node in list(ast.walk(forward)):
            match node:
                case ast.BinOp(left, op, right) if type(op) in _NUMBERS and is_operation(node):
                    name = str(self.rng.choice(_NUMBERS[type(op)]))
                    node.left, node.right = named(left, name), named(right, name)
                case ast.Call(ast.Attribute(_, "leaky_relu"), [value, slope]):
                    node.args = [value, named(slope, "negative_slope")]
                case ast.Call(ast.Attribute(_, "clamp" | "hardtanh")):
                    for one in node.keywords:
                        one.value = named(one.value, _ARGUMENTS.get(str(one.arg), "value"))
                case ast.Call():
                    for one in node.keywords:
                        if one.arg == "dim":
                            one.value = named(one.value, "dim")
                case _:
                    pass

    def name_shapes(self) -> None:
        """Make the shapes of parameters constants that the constructor receives."""
        for call in [one for one in ast.walk(self.constructor()) if isinstance(one, ast.Call)]:
            match call:
                case ast.Call(ast.Attribute(ast.Name("torch"), "randn"), [*dims]) if _is_shape(dims):
                    shape = ast.Tuple([_constant(one) for one in dims], ast.Load())
                    call.args = [self.receive("bias_shape", shape)]
                case _:
                    pass

    def join_edges(self) -> None:
        """Write the edges of feature maps in one line."""
        lines = {ast.unparse(one.targets[0]): one for one in self.tree.body if isinstance(one, ast.Assign)}
        for names in _EDGES:
            if not all(name in lines for name in names):
                continue
            values = [lines[name].value for name in names]
            first, *rest = (lines[name] for name in names)
            targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
            if len({ast.unparse(one) for one in values}) == 1 and self.rng.random() < 0.4:
                first.targets = targets
            else:
                first.targets, first.value = [ast.Tuple(targets, ast.Store())], ast.Tuple(values, ast.Load())
            self.tree.body = [one for one in self.tree.body if one not in rest]
            return

    def inline_inputs(self) -> None:
        """Return inputs that take one line without a name."""
        function = _functions(self.tree.body)["get_inputs"]
        *lines, last = function.body
        assigned = [ast.unparse(one.targets[0]) for one in lines if isinstance(one, ast.Assign)]
        names = cast(ast.List, cast(ast.Return, last).value)
        if sorted(assigned) == sorted(map(ast.unparse, names.elts)) and len(assigned) == len(lines):
            made = {name: cast(ast.Assign, one).value for name, one in zip(assigned, lines, strict=True)}
            names.elts = [made.get(ast.unparse(one), one) for one in names.elts]
            function.body = [last]

    def name_the_result(self, forward: ast.FunctionDef) -> None:
        """Assign the result to a name before it is returned."""
        last = cast(ast.Return, forward.body[-1])
        if is_straight(forward) and last.value is not None and not isinstance(last.value, ast.Name):
            name = self.local()
            forward.body.insert(-1, ast.Assign([ast.Name(name, ast.Store())], last.value))
            last.value = ast.Name(name, ast.Load())

    def functions_in_full(self) -> None:
        """Write `torch.nn.functional` for `F`."""
        for node in ast.walk(self.model):
            match node:
                case ast.Attribute(ast.Name("F")):
                    node.value = ast.parse("torch.nn.functional", mode="eval").body
                case _:
                    pass

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
        """Rename constants, inputs, variables and layers."""
        names, members = dict[str, str](), dict[str, str]()
        mark = str.upper if self.rng.random() < 0.3 else str
        nodes = list(ast.walk(self.tree))
        own = {one.id for one in nodes if isinstance(one, ast.Name)}
        variables = own.intersection("huvsp") - {one.arg for one in nodes if isinstance(one, ast.arg)}
        choices = {**_CONSTANTS, **_INPUTS, **dict.fromkeys(variables, _LOCALS)}
        if "HEIGHT" in own:
            choices["WIDTH"] = ("width", "W")
        for name in sorted(own & choices.keys()):
            chosen = str(self.rng.choice(choices[name]))
            chosen = mark(chosen) if name in _CONSTANTS else chosen
            if chosen != name:
                names[name] = self.fresh(chosen)
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
        if (constructor := _functions(self.model.body).get("__init__")) is not None:
            _apply(constructor, {old.lower(): new.lower() for old, new in names.items() if old.isupper()}, {})


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


def _is_shape(dims: Sequence[ast.expr]) -> bool:
    """Return whether a shape has one dimension of a tensor, as a bias has."""
    return len(dims) > 0 and isinstance(dims[0], ast.Name) and all(isinstance(one, ast.Constant) for one in dims[1:])


def _constant(node: ast.expr) -> ast.expr:
    """Return the constant that a constructor receives under its name in lower case."""
    return ast.Name(node.id.upper(), ast.Load()) if isinstance(node, ast.Name) else node
