"""The table of pointwise operators: their PyTorch names and formulas.

An expression uses Python's syntax over `a`, `b`, `c`, the functions of `FUNCTIONS` and the rows of the table.
`device_text` translates it to CUDA C++, Triton or PyTorch, for kernels; `numeric` to a function of numbers, for the
sample values of generated tasks. Formulas are those of PyTorch's documentation.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from typing import Literal, cast, get_args

Language = Literal["cuda", "triton", "torch", "python"]

FUNCTIONS: dict[str, tuple[str, str, str, str]] = {
    "exp": ("expf({0})", "tl.exp({0})", "torch.exp({0})", "math.exp({0})"),
    "log": ("logf({0})", "tl.log({0})", "torch.log({0})", "math.log({0})"),
    "log1p": ("log1pf({0})", "libdevice.log1p({0})", "torch.log1p({0})", "math.log1p({0})"),
    "expm1": ("expm1f({0})", "libdevice.expm1({0})", "torch.expm1({0})", "math.expm1({0})"),
    "sqrt": ("sqrtf({0})", "tl.sqrt_rn({0})", "torch.sqrt({0})", "math.sqrt({0})"),
    "rsqrt": ("rsqrtf({0})", "tl.rsqrt({0})", "torch.rsqrt({0})", "(1.0 / math.sqrt({0}))"),
    "sin": ("sinf({0})", "tl.sin({0})", "torch.sin({0})", "math.sin({0})"),
    "cos": ("cosf({0})", "tl.cos({0})", "torch.cos({0})", "math.cos({0})"),
    "tanh": ("tanhf({0})", "libdevice.tanh({0})", "torch.tanh({0})", "math.tanh({0})"),
    "atan": ("atanf({0})", "libdevice.atan({0})", "torch.atan({0})", "math.atan({0})"),
    "erf": ("erff({0})", "tl.erf({0})", "torch.erf({0})", "math.erf({0})"),
    "abs": ("fabsf({0})", "tl.abs({0})", "torch.abs({0})", "abs({0})"),
    "max": ("fmaxf({0}, {1})", "tl.maximum({0}, {1})", "torch.maximum({0}, {1})", "max({0}, {1})"),
    "min": ("fminf({0}, {1})", "tl.minimum({0}, {1})", "torch.minimum({0}, {1})", "min({0}, {1})"),
    "where": (
        "(({0}) != 0.0f ? {1} : {2})",
        "tl.where({0} != 0.0, {1}, {2})",
        "torch.where({0} != 0, {1}, {2})",
        "({1} if {0} else {2})",
    ),
    "less": (
        "(({0}) < ({1}) ? 1.0f : 0.0f)",
        "tl.where({0} < {1}, 1.0, 0.0)",
        "(({0}) < ({1})).float()",
        "({0} < {1})",
    ),
    "less_equal": (
        "(({0}) <= ({1}) ? 1.0f : 0.0f)",
        "tl.where({0} <= {1}, 1.0, 0.0)",
        "(({0}) <= ({1})).float()",
        "({0} <= {1})",
    ),
    "equal": (
        "(({0}) == ({1}) ? 1.0f : 0.0f)",
        "tl.where({0} == {1}, 1.0, 0.0)",
        "(({0}) == ({1})).float()",
        "({0} == {1})",
    ),
    "sigmoid": (
        "(1.0f / (1.0f + expf(-({0}))))",
        "(1.0 / (1.0 + tl.exp(-({0}))))",
        "torch.sigmoid({0})",
        "(1.0 / (1.0 + math.exp(-({0}))))",
    ),
    "softplus": (
        "(fmaxf({0}, 0.0f) + log1pf(expf(-fabsf({0}))))",
        "(tl.maximum({0}, 0.0) + libdevice.log1p(tl.exp(-tl.abs({0}))))",
        "F.softplus({0})",
        "(max({0}, 0.0) + math.log1p(math.exp(-abs({0}))))",
    ),
}
"""Text of each function in each `Language`; `{0}`, `{1}` are its arguments."""

UNARY: dict[str, str] = {
    "tanh": "tanh(a)",
    "sigmoid": "sigmoid(a)",
    "silu": "a * sigmoid(a)",
    "softplus": "where(less(20.0, a), a, softplus(a))",
    "mish": "a * tanh(softplus(a))",
    "logsigmoid": "min(a, 0.0) - log1p(exp(-abs(a)))",
    "relu": "max(a, 0.0)",
    "elu": "where(less(0.0, a), a, expm1(a))",
    "selu": "1.0507009873554805 * where(less(0.0, a), a, 1.6732632423543772 * expm1(a))",
    "hardswish": "a * min(max(a + 3.0, 0.0), 6.0) * (1.0 / 6.0)",
    "hardsigmoid": "min(max(a + 3.0, 0.0), 6.0) * (1.0 / 6.0)",
    "hardtanh": "min(max(a, -1.0), 1.0)",
    "abs": "abs(a)",
    "square": "a * a",
    "neg": "-a",
    "reciprocal": "1.0 / a",
    "sin": "sin(a)",
    "cos": "cos(a)",
    "erf": "erf(a)",
    "atan": "atan(a)",
    "exp": "exp(a)",
    "expm1": "expm1(a)",
    "log": "log(a)",
    "log1p": "log1p(a)",
    "sqrt": "sqrt(a)",
    "rsqrt": "rsqrt(a)",
    "softsign": "a / (1.0 + abs(a))",
    "clone": "a",
    "contiguous": "a",
}
"""Functions of one tensor, by the last part of their PyTorch name."""

BINARY: dict[str, str] = {
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "div": "a / b",
    "maximum": "max(a, b)",
    "minimum": "min(a, b)",
    "logaddexp": "max(a, b) + log1p(exp(-abs(a - b)))",
}
"""Functions of two tensors."""

SPECIAL: dict[str, str] = {
    "gelu": "0.5 * a * (1.0 + erf(a * 0.7071067811865476))",
    "gelu_tanh": "0.5 * a * (1.0 + tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)))",
    "leaky_relu": "max(a, 0.0) + b * min(a, 0.0)",
    # a - clamp(a, b, c).
    "softshrink": "a - min(max(a, b), c)",
    "lerp": "a + c * (b - a)",
    "where": "where(a, b, c)",
    # a is the distance, b the edge: the value is a * a / 2 for a < b, else b * (a - b / 2).
    "huber": "min(a, b) * (a - 0.5 * min(a, b))",
    "smooth_l1": "min(a, b) * (a - 0.5 * min(a, b)) / b",
    "binary_cross_entropy_with_logits": "max(a, 0.0) - a * b + log1p(exp(-abs(a)))",
}
"""Functions that take settings or more than two tensors in PyTorch."""

EXPRESSIONS: dict[str, str] = UNARY | BINARY | SPECIAL
"""The whole table."""


@functools.cache
def device_text(expression: str, language: Language, arguments: tuple[str, ...]) -> str:
    """Return an expression's text in a language.

    Args:
        expression: Expression over `a`, `b`, `c`.
        language: The language.
        arguments: Values of `a`, `b`, `c`: names of variables, or numbers.

    >>> device_text("a * sigmoid(b)", "cuda", ("v0", "v1"))
    '(v0 * (1.0f / (1.0f + expf(-(v1)))))'
    >>> device_text("max(a, 0.0)", "triton", ("v0",))
    'tl.maximum(v0, 0.0)'
    """
    return _written(ast.parse(expression, mode="eval").body, language, arguments)


@functools.cache
def numeric(expression: str) -> Callable[..., float]:
    """Return an expression as a function of the numbers `a`, `b`, `c`, up to the last that it names.

    >>> numeric("a * sigmoid(b)")(3.0, 0.0), numeric("huber(abs(a - b), 0.5)")(2.0, 1.0)
    (1.5, 0.375)

    The function raises `OverflowError`, `ValueError` or `ZeroDivisionError` if the expression has no value.
    """
    named = {node.id for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)}
    arguments = "abc"[: max(place + 1 for place, name in enumerate("abc") if name in named)]
    text = device_text(expression, "python", tuple(arguments))
    return cast("Callable[..., float]", eval(f"lambda {', '.join(arguments)}: {text}", {"math": math}))


_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _written(node: ast.expr, language: Language, arguments: tuple[str, ...]) -> str:
    match node:
        case ast.Name(id="inf"):
            return number_text(float("inf"), language)
        case ast.Name(id=name) if name in ("a", "b", "c"):
            return arguments["abc".index(name)]
        case ast.Name(id=name):
            return name  # a size of a kernel
        case ast.Constant(value=int(value)):
            return str(value)
        case ast.Constant(value=float(value)):
            return number_text(value, language)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return f"(-{_written(inner, language, arguments)})"
        case ast.BinOp(left=size, op=ast.Pow(), right=ast.Constant(value=0.5)):
            inner = _written(size, language, arguments)
            return f"sqrtf({inner})" if language == "cuda" else f"({inner} ** 0.5)"
        case ast.BinOp(left=left, op=op, right=right):
            sides = (_written(side, language, arguments) for side in (left, right))
            return "(" + f" {_SIGNS[type(op)]} ".join(sides) + ")"
        case ast.Call(func=ast.Name(id=name), args=inner):
            given = [_written(one, language, arguments) for one in inner]
            if name == "where" and isinstance(inner[0], ast.Call) and given[0].endswith("1.0f : 0.0f)"):
                given[0] = given[0].removesuffix(" ? 1.0f : 0.0f)") + ")"
                return f"({given[0]} ? {given[1]} : {given[2]})"
            if language == "torch" and name in ("max", "min") and (_is_constant(inner[1]) or _is_number(given[1])):
                return f"({given[0]}).{'clamp_min' if name == 'max' else 'clamp_max'}({given[1]})"
            if name not in FUNCTIONS:
                return device_text(EXPRESSIONS[name], language, tuple(given))
            return FUNCTIONS[name][get_args(Language).index(language)].format(*given)
        case _:
            raise AssertionError(f"expected an expression over a, b, c, got {ast.unparse(node)}")


def _is_constant(node: ast.expr) -> bool:
    """Return whether an expression needs no operand."""
    return not any(isinstance(one, ast.Name) and one.id in ("a", "b", "c") for one in ast.walk(node))


def _is_number(text: str) -> bool:
    return text.strip("()-").replace(".", "", 1).replace("e-", "").isdigit()


def number_text(value: float, language: Language) -> str:
    """Return the text of a number, which may be infinite.

    >>> number_text(1e-05, "cuda"), number_text(float("-inf"), "triton")
    ('1e-05f', '-float("inf")')
    """
    if value in (float("inf"), float("-inf")):
        sign = "-" if value < 0 else ""
        return f"(1.0f / {sign}0.0f)" if language == "cuda" else f'{sign}float("inf")'
    text = repr(float(value))
    if value < 0:
        text = f"({text}f)" if language == "cuda" else f"({text})"
        return text
    return f"{text}f" if language == "cuda" else text
