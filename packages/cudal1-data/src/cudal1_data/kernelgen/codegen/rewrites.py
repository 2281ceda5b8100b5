"""Programs that keep the reference, or nearly so, and let PyTorch run it another way."""

from __future__ import annotations

import ast
import re

from cudal1_data.kernelgen.errors import UnsuitableError

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
"""Modes of `torch.compile`."""

CAPTURED = '''

class ModelNew(Model):
    """The reference, captured once; a call copies its inputs into the captured ones and replays."""

    captured = None

    def forward(self, *inputs):
        if self.captured is None:
            self.capture(inputs)
        for mine, given in zip(self.captured_inputs, inputs):
            if isinstance(given, torch.Tensor):
                mine.copy_(given)
        self.captured.replay()
        return self.captured_outputs

    def capture(self, inputs):
        self.captured_inputs = [one.clone() if isinstance(one, torch.Tensor) else one for one in inputs]
        state = [one.clone() for one in self.buffers()]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                super().forward(*self.captured_inputs)
            for one, before in zip(self.buffers(), state):
                one.copy_(before)
        torch.cuda.current_stream().wait_stream(aside)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            self.captured_outputs = super().forward(*self.captured_inputs)
        self.captured = captured
'''
"""Text after a reference that is captured as a CUDA graph. The baseline `cuda-graph` is the same."""

_WAITS = re.compile(
    r"\.(?:item|tolist|cpu|numpy|nonzero|masked_select|unique|argwhere)\b|\b(?:int|float|bool)\(torch\."
)
"""Calls that wait for the GPU, because the host or the size of a tensor depends on values."""

_NAMED = re.compile(r"def get_init_inputs\(\):\n    return \{")
"""`get_init_inputs` that gives the constructor's arguments by name."""

_ALONG = re.compile(r"(?:torch|F)\.(?:cumsum|cumprod|softmax|softmin|log_softmax)")
"""Calls along one dimension of a tensor."""


def plain_program(source: str) -> str:
    """Return the reference itself as a candidate: a speedup of 1."""
    return f"{source.rstrip()}\n\n\nclass ModelNew(Model):\n    pass\n"


def compiled_program(source: str, mode: str, *, dynamic: bool = False) -> str:
    """Return the reference under `torch.compile`.

    Args:
        source: The reference.
        mode: One of `COMPILE_MODES`.
        dynamic: Whether sizes are dynamic.
    """
    arguments = f"mode={mode!r}, dynamic={dynamic}"
    given = "*arguments, **named" if _NAMED.search(source) else "*arguments"
    return (
        f"{source.rstrip()}\n\n\nclass ModelNew(Model):\n"
        f"    def __init__(self, {given}):\n        super().__init__({given})\n"
        f"        self.compiled = torch.compile(super().forward, {arguments})\n\n"
        "    def forward(self, *inputs):\n        return self.compiled(*inputs)\n"
    )


def channels_last_program(source: str) -> str:
    """Return the reference with images and weights in channels-last layout: convolutions need no transposition."""
    return (
        f"{source.rstrip()}\n\n\nclass ModelNew(Model):\n    laid_out = False\n\n"
        "    def forward(self, *inputs):\n        if not self.laid_out:\n"
        "            self.to(memory_format=torch.channels_last)\n            self.laid_out = True\n"
        "        moved = [\n"
        "            x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x\n"
        "            for x in inputs\n        ]\n"
        "        result = super().forward(*moved)\n"
        "        return result.contiguous() if isinstance(result, torch.Tensor) else result\n"
    )


def captured_program(source: str) -> str:
    """Return the reference captured as a CUDA graph: one launch replays all its kernels.

    Raises:
        UnsuitableError: It waits for values from the GPU, which a graph cannot.
    """
    if found := _WAITS.search(source):
        raise UnsuitableError(f"a graph cannot wait for {found[0]}")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name not in ("__init__", "get_inputs", "get_init_inputs"):
            tests = [one.test for one in ast.walk(node) if isinstance(one, ast.If | ast.While | ast.IfExp)]
            if asked := next((one for one in tests if not _known_without_values(one)), None):
                raise UnsuitableError(f"a graph cannot wait for {ast.unparse(asked)}")
    return f"{source.rstrip()}\n{CAPTURED}"


def _known_without_values(node: ast.expr) -> bool:
    """Return whether a condition depends only on settings and shapes; an argument of `forward` may be a tensor."""
    match node:
        case ast.Constant() | ast.Attribute(value=ast.Name(id="self")) | ast.Attribute(attr="shape" | "ndim" | "dtype"):
            return True
        case ast.Call(func=ast.Attribute(attr="dim" | "size" | "numel")) | ast.Call(func=ast.Name(id="len")):
            return True
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return True
        case ast.Name(id=name):
            return name.isupper()
        case ast.BoolOp() | ast.UnaryOp() | ast.BinOp() | ast.Compare() | ast.Subscript():
            return all(_known_without_values(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
        case _:
            return False


def transposed_program(source: str) -> str:
    """Return the transposed reference as a candidate, see `transposed`."""
    return plain_program(transposed(source))


def transposed(source: str) -> str:
    """Return the reference with scans and softmax over columns replaced by ones over rows of a transposed copy.

    PyTorch's kernels over a dimension that is not the last use one thread per column.

    Raises:
        UnsuitableError: The reference has none.
    """
    text = source
    while (call := _over_columns(text)) is not None:
        operand = ast.get_source_segment(text, call.args[0])
        name = ast.get_source_segment(text, call.func)
        whole = ast.get_source_segment(text, call)
        assert operand is not None
        assert whole is not None
        atom = operand if re.fullmatch(r"[\w.]+(?:\([^()]*\))?", operand) else f"({operand})"
        rows = f"{name}({atom}.transpose(-2, -1).contiguous(), dim=-1)"
        text = text.replace(whole, f"{rows}.transpose(-2, -1).contiguous()", 1)
    if text == source:
        raise UnsuitableError("no scan or softmax is over columns")
    return text


def _over_columns(source: str) -> ast.Call | None:
    """Return the next call that `transposed` replaces, or None."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and _ALONG.fullmatch(ast.unparse(node.func))
            and len(node.args) == 1
            and not isinstance(node.args[0], ast.Starred)
            and [(one.arg, ast.unparse(one.value)) for one in node.keywords] == [("dim", "-2")]
        ):
            return node
    return None
