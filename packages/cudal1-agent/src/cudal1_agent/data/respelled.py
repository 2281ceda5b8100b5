"""Generated references as other people would write them: other names, layers for functions, one operation a line.

A small model that learns from the references of one author learns that author's names, too. Programs are generated
from a respelled reference, so they have its names.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

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
}
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
}
"""Activations with their layers in `torch.nn`."""
_METHODS = frozenset(("abs", "amax", "cumsum", "exp", "mean", "relu", "sigmoid", "sqrt", "square", "sum", "tanh"))
"""Functions of torch that a tensor has as methods."""
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
                (0.5, self.name_hyperparameters),
                (0.5, lambda: self.use_layers(forward)),
                (0.7, self.constructor),
                (0.5, lambda: self.one_a_line(forward)),
                (0.6, lambda: _reuse_names(forward)),
                (0.5, lambda: _Methods().visit(forward)),
                (0.5, lambda: _Products().visit(forward)),
            )
            for share, step in steps:
                if self.rng.random() < share:
                    step()
        self.rename()
        return ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"

    def fresh(self, name: str) -> str:
        """Return a name that nothing has yet, with a number if needed."""
        return _fresh(name, self.taken)

    def constructor(self) -> ast.FunctionDef:
        """Return the constructor; add one that does nothing if there is none."""
        if (found := _functions(self.model.body).get("__init__")) is None:
            found = cast(ast.FunctionDef, ast.parse("def __init__(self):\n    super().__init__()").body[0])
            self.model.body.insert(0, found)
        return found

    def name_hyperparameters(self) -> None:
        """Make the numbers of convolutions constants that the constructor receives."""
        constructor = self.constructor()
        given = cast(ast.Return, _functions(self.tree.body)["get_init_inputs"].body[-1])
        for call in [one for one in ast.walk(constructor) if isinstance(one, ast.Call)]:
            if "Conv" not in ast.unparse(call.func):
                continue
            keywords = [one for one in call.keywords if one.arg in _HYPERPARAMETERS]
            kernel = ast.keyword("kernel_size", call.args[_KERNEL_SIZE])
            call.args[_KERNEL_SIZE:] = []
            call.keywords.insert(0, kernel)
            for one in (kernel, *keywords):
                if isinstance(one.value, ast.Constant):
                    name = self.fresh(str(one.arg))
                    constant = ast.Assign([ast.Name(name, ast.Store())], one.value)
                    self.tree.body.insert(self.tree.body.index(self.model), constant)
                    constructor.args.args.append(ast.arg(name))
                    cast(ast.List, given.value).elts.append(ast.Name(name, ast.Load()))
                    one.value = ast.Name(name, ast.Load())

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

    def one_a_line(self, forward: ast.FunctionDef) -> None:
        """Assign each nested operation to a name of its own."""
        if not _is_straight(forward):
            return
        body: list[ast.stmt] = []
        for line in cast("list[ast.Assign | ast.Return]", forward.body):
            line.value = _Operands(self, body).visit(cast(ast.expr, line.value))
            body.append(line)
        forward.body = body

    def rename(self) -> None:
        """Rename constants, inputs, variables and layers."""
        names, members = dict[str, str](), dict[str, str]()
        mark = str.upper if self.rng.random() < 0.3 else str
        nodes = list(ast.walk(self.tree))
        own = {one.id for one in nodes if isinstance(one, ast.Name)}
        variables = own.intersection("huvsp") - {one.arg for one in nodes if isinstance(one, ast.arg)}
        choices = {**_CONSTANTS, **_INPUTS, **dict.fromkeys(variables, _LOCALS)}
        for name in sorted(own & choices.keys()):
            chosen = str(self.rng.choice(choices[name]))
            chosen = mark(chosen) if name in _CONSTANTS else chosen
            if chosen != name:
                names[name] = self.fresh(chosen)
        for one in ast.walk(self.model):
            match one:
                case ast.Assign([ast.Attribute(ast.Name("self"), str(name))], ast.Call(ast.Attribute(_, str(layer)))):
                    if (words := _LAYER_NAMES.get(layer.rstrip("123d"))) is not None:
                        members[name] = _fresh(str(self.rng.choice(words)), self.members)
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


class _Operands(ast.NodeTransformer):
    """Assigns the operations among the operands of an expression to names, in lines that it adds to `body`."""

    def __init__(self, writer: _Writer, body: list[ast.stmt]) -> None:
        self.writer = writer
        self.body = body

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.named(one) for one in node.args]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        node.left, node.right = self.named(node.left), self.named(node.right)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return node  # operations inside anything else stay where they are

    def named(self, node: ast.expr) -> ast.expr:
        node = self.visit(node)
        if not _is_operation(node):
            return node
        name = self.writer.fresh(str(self.writer.rng.choice(_LOCALS)))
        self.body.append(ast.Assign([ast.Name(name, ast.Store())], node))
        return ast.Name(name, ast.Load())


class _Methods(ast.NodeTransformer):
    """Writes `torch.sum(x, dim=1)` as `x.sum(dim=1)`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Attribute(ast.Name("torch"), str(name)), [value, *rest]) if name in _METHODS:
                return ast.Call(ast.Attribute(value, name, ast.Load()), rest, node.keywords)
            case _:
                return node


class _Products(ast.NodeTransformer):
    """Writes `a @ b` as `torch.matmul(a, b)`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        function = ast.Attribute(ast.Name("torch", ast.Load()), "matmul", ast.Load())
        return ast.Call(function, [node.left, node.right], [])


def _functions(body: Sequence[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {one.name: one for one in body if isinstance(one, ast.FunctionDef)}


def _is_straight(forward: ast.FunctionDef) -> bool:
    """Return whether a function assigns names and then returns a value, and nothing else."""
    *lines, last = forward.body
    names = [one.targets[0] for one in lines if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]
    return isinstance(last, ast.Return) and len(names) == len(lines) == len({one.id for one in names})


def _is_operation(node: ast.expr) -> bool:
    """Return whether an expression makes a tensor that may have a name of its own."""
    if isinstance(node, ast.BinOp):
        return any(isinstance(one, ast.Name) and one.id.islower() for one in ast.walk(node))
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("torch.", "F.", "self."))


def _reuse_names(forward: ast.FunctionDef) -> None:
    """Give a variable the name of an input or variable that is not used any more."""
    if not _is_straight(forward):
        return
    used = [[one for one in ast.walk(line) if isinstance(one, ast.Name)] for line in forward.body]
    last = {one.id: place for place, names in enumerate(used) for one in names if isinstance(one.ctx, ast.Load)}
    now: dict[str, str] = {one.arg: one.arg for one in forward.args.args[1:]}
    for place, names in enumerate(used):
        read = [one for one in names if isinstance(one.ctx, ast.Load) and one.id in now]
        ended = [now[one.id] for one in read if last[one.id] == place]
        for one in read:
            one.id = now[one.id]
        for one in names:
            if isinstance(one.ctx, ast.Store):
                now[one.id] = one.id = ended[0] if ended else one.id
