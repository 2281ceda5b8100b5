"""Sizes with their expressions in a reference, so that programs can use the same expressions."""

from __future__ import annotations

import re

_LONGEST = 48
"""Maximum number of characters of a name derived from an expression."""
_OFFSET = re.compile(r"(.*) ([+-]) (\d+)")
"""A text that ends with an added or subtracted number."""
_OF_TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "BLOCK_D", "BLOCK_W", "PART_M", "PART_N", "GROUP", "THREADS")
_OF_HEADS = ("HEADS_PER_KEY", "HEADS_PER_VALUE")
RESERVED = frozenset({"BLOCK", "BLOCK_ROWS", *_OF_TILES, *_OF_HEADS, "CUDA", "NULL", "INFINITY", "NAN"})
"""Names that kernels use themselves."""


class Size(int):
    """An integer with two texts: an expression of the reference's constants for Python, and one for kernels.

    Arithmetic with other integers keeps both. `str` and f-strings give the kernels' text, in parentheses if it has
    operators; `repr` gives the number. A kernel's names are the constants' names in capitals.

    >>> names = {}
    >>> b, width = Size(4, "batch", "BATCH", names), Size(6, "width", "WIDTH", names)
    >>> area = b * width * 3
    >>> int(area), area.host, f"{area}", (area // width).host, (width - b + 1).host
    (72, 'batch * width * 3', '(BATCH * WIDTH * 3)', 'batch * 3', 'width - batch + 1')

    Added and subtracted numbers are folded, so that a convolution that keeps the edge keeps its text.

    >>> (width + 2 - (3 - 1)).host, ((width - 1) * 3 + 3).host, ((width - 2) // 2 + 1).host
    ('width', 'width * 3', 'width // 2')
    """

    host: str
    """The expression in Python, without parentheses around it."""
    kernel: str
    """The expression in a kernel, without parentheses around it."""
    names: dict[str, str]
    """Python expression by name in kernels; shared by all sizes of a reference."""

    def __new__(cls, value: int, host: str, kernel: str, names: dict[str, str]) -> Size:
        """Create a size.

        Args:
            value: The number.
            host: Its expression in Python.
            kernel: Its expression in kernels.
            names: The table of names; a new name is added.
        """
        self = super().__new__(cls, value)
        self.host, self.kernel, self.names = host, kernel, names
        if kernel.isidentifier():
            names.setdefault(kernel, host)
        return self

    def __str__(self) -> str:
        return self.kernel if re.fullmatch(r"\w+", self.kernel) else f"({self.kernel})"

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else format(int(self), spec)

    def __repr__(self) -> str:
        return int.__repr__(self)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    def __pow__(self, other: float, mod: None = None) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        value = int(self) ** other
        roots = {0.5: f"{self} ** 0.5", -0.5: f"1.0 / {self} ** 0.5"}
        return Ratio(value, roots[other]) if other in roots else value

    def __mul__(self, other: object) -> int:
        return _product(self, other) if isinstance(other, int) else NotImplemented

    def __rmul__(self, other: object) -> int:
        return _product(other, self) if isinstance(other, int) else NotImplemented

    def __add__(self, other: object) -> int:
        return _sum(self, other, "+") if isinstance(other, int) else NotImplemented

    def __radd__(self, other: object) -> int:
        return _sum(other, self, "+") if isinstance(other, int) else NotImplemented

    def __sub__(self, other: object) -> int:
        return _sum(self, other, "-") if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: object) -> int:
        return _sum(other, self, "-") if isinstance(other, int) else NotImplemented

    def __floordiv__(self, other: object) -> int:
        return _quotient(self, other) if isinstance(other, int) else NotImplemented


class Table(dict[str, str]):
    """The sizes of a reference: Python expression by name in kernels.

    The edges of maps behind a convolution or a pool have names of their own, so that no program repeats their formulas.
    """

    def __init__(self, reference: str) -> None:
        """Create a table for a reference's text, which has names that no edge gets."""
        super().__init__()
        self.edges: dict[tuple[str, str], Size] = {}
        """Edges by axis and formula, in order of creation."""
        self.words = set(re.findall(r"[^\W\d]\w*", reference))

    def edge(self, size: int, stem: str, axis: str) -> int:
        """Return an edge under its name; a constant of the reference, or its text, stays.

        >>> table = Table("width = 8")
        >>> width = named(8, "width", table)
        >>> edge = table.edge(width - 2, "conv", "width")
        >>> edge.host, table.edge(width, "conv", "width").host, table.formulas
        ('conv_width', 'width', {'conv_width': 'width - 2'})
        """
        formula = host_text(size)
        if int(size) == 1 or formula.isidentifier():
            return size
        if (axis, formula) not in self.edges:
            number, name = 1, f"{stem}_{axis}"
            while name in self.words or name.upper() in self:
                number += 1
                name = f"{stem}_{axis}_{number}"
            self.edges[axis, formula] = Size(int(size), name, name.upper(), self)
        return self.edges[axis, formula]

    @property
    def formulas(self) -> dict[str, str]:
        """Formula of each edge by its name, in order of creation."""
        return {edge.host: formula for (_, formula), edge in self.edges.items()}


_AXES = ("depth", "height", "width")


def with_edges(dims: tuple[int, ...], stem: str) -> tuple[int, ...]:
    """Return the shape of a batch of maps with names for its edges.

    Args:
        dims: Samples, channels, and the maps' axes.
        stem: What the maps come from; the names begin with it.
    """
    table = next((one.names for one in dims if isinstance(one, Size)), None)
    if not isinstance(table, Table):
        return dims  # sizes are written as numbers
    axes = _AXES[-len(dims[2:]) :] if len(dims) > len("NCL") else ("length",)
    stem = re.sub(r"\W+", "_", stem).strip("_")
    return (*dims[:2], *(table.edge(size, stem, axis) for size, axis in zip(dims[2:], axes, strict=True)))


class Ratio(float):
    """A number derived from a size: 1.0 / COLS, WIDTH ** 0.5."""

    kernel: str
    """The expression in a kernel."""

    def __new__(cls, value: float, kernel: str) -> Ratio:
        """Create a ratio from its value and its expression in kernels."""
        self = super().__new__(cls, value)
        self.kernel = kernel
        return self


def inverse(size: int) -> float:
    """Return 1 over a size, with that expression in kernels."""
    return Ratio(1.0 / size, f"1.0 / {size}")


def host_text(value: int) -> str:
    """Return a size's text in Python.

    >>> host_text(7)
    '7'
    """
    return value.host if isinstance(value, Size) else str(value)


def tuple_text(sizes: tuple[int, ...]) -> str:
    """Return a shape's text in Python.

    >>> tuple_text((7, 3)), tuple_text((7,))
    ('(7, 3)', '(7,)')
    """
    inner = ", ".join(map(host_text, sizes))
    return f"({inner},)" if len(sizes) == 1 else f"({inner})"


def named(value: int, name: str, names: dict[str, str]) -> Size:
    """Return a constant of a reference as a size; its name in kernels is in capitals."""
    kernel = name.upper()
    while kernel in RESERVED or names.get(kernel, name) != name:
        kernel += "_"
    return Size(value, name, kernel, names)


def used(text: str, names: dict[str, str]) -> dict[str, str]:
    """Return the sizes named in a kernel's text, with their Python expressions."""
    words = set(re.findall(r"\b[A-Z]\w*\b", text))
    return {name: host for name, host in names.items() if name in words}


def in_python(text: str, names: dict[str, str]) -> str:
    """Return a text with kernels' names of sizes replaced by Python expressions."""
    return re.sub(r"\b[A-Z]\w*\b", lambda word: _bracketed(names.get(word[0], word[0])), text)


def _table(*values: int) -> dict[str, str]:
    return next(one.names for one in values if isinstance(one, Size))


def _texts(value: int) -> tuple[str, str]:
    return (value.host, value.kernel) if isinstance(value, Size) else (str(value), str(value))


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _split(size: int) -> tuple[int, int]:
    """Split a size into a size and an added number; the size is 0 if there is only a number.

    >>> base, offset = _split(Size(6, "width - 2", "WIDTH - 2", {}))
    >>> int(base), base.host, offset
    (8, 'width', -2)
    """
    if not isinstance(size, Size) or size.host.isdigit():
        return 0, int(size)
    host, kernel = (_OFFSET.fullmatch(text) for text in (size.host, size.kernel))
    if host is None or kernel is None:
        return size, 0
    offset = int(host[2] + host[3])
    return Size(int(size) - offset, host[1], kernel[1], size.names), offset


def _plus(size: Size, offset: int) -> int:
    """Return the sum of a size and a number."""
    value = int(size) + offset
    if offset == 0 or value <= 0:
        return size if offset == 0 else value
    more = f" {'+' if offset > 0 else '-'} {abs(offset)}"
    return Size(value, size.host + more, size.kernel + more, size.names)


def _product(left: int, right: int) -> int:
    value = int(left) * int(right)
    (base, offset), (other, factor) = _split(left), _split(right)
    if isinstance(other, Size) and not isinstance(base, Size):
        base, offset, other, factor = other, factor, base, offset
    if isinstance(base, Size) and offset and not isinstance(other, Size) and factor > 1:
        return _sum(_product(base, factor), factor * offset, "+")
    if int(left) == 1 or int(right) == 1:
        return right if int(left) == 1 else left
    if value == 0:
        return 0
    host, kernel = (" * ".join(map(_factor, pair)) for pair in zip(_texts(left), _texts(right), strict=True))
    return Size(value, host, kernel, _table(left, right))


def _factor(text: str) -> str:
    return text if re.fullmatch(r"[\w*. ]+", text) else f"({text})"


def _sum(left: int, right: int, sign: str) -> int:
    value = int(left) + int(right) if sign == "+" else int(left) - int(right)
    if int(right) == 0 or (int(left) == 0 and sign == "+"):
        return left if int(right) == 0 else right
    if value <= 0:
        return value
    (base, offset), (other, more) = _split(left), _split(right)
    offset = offset + more if sign == "+" else offset - more
    if not isinstance(other, Size):
        return _plus(base, offset) if isinstance(base, Size) else value
    if not isinstance(base, Size) and sign == "+":
        return _plus(other, offset)
    pairs = zip(_texts(left), _texts(right), strict=True)
    host, kernel = (f"{one} {sign} {other if sign == '+' else _factor(other)}" for one, other in pairs)
    return Size(value, host, kernel, _table(left, right))


def _without_factors(text: str, divisor: str) -> str:
    """Return a product without the factors of another; empty if it lacks one of them.

    >>> _without_factors("A * B * 3 * B", "B * 3"), _without_factors("A * B", "C"), _without_factors("A", "A")
    ('A * B', '', '1')
    >>> _without_factors("A + B * 2", "2")
    ''
    """
    if not re.fullmatch(r"[\w*. ]+", text):
        return ""
    parts = text.split(" * ")
    for factor in divisor.split(" * "):
        if factor not in parts:
            return ""
        parts.remove(factor)
    return " * ".join(parts) or "1"


def _quotient(left: Size, right: int) -> int:
    if int(right) == 1:
        return left
    value, table = int(left) // int(right), _table(left, right)
    base, offset = _split(left)
    if isinstance(base, Size) and offset and not isinstance(right, Size) and offset % right == 0:
        return _quotient(base, right) + offset // right
    texts = [_without_factors(*pair) for pair in zip(_texts(left), _texts(right), strict=True)]
    if all(texts):
        host, kernel = texts
        return Size(value, host, kernel, table)
    host = f"{_bracketed(left.host)} // {_bracketed(_texts(right)[0])}"
    name = re.sub(r"\W+", "_", host.replace("//", "over")).strip("_").upper()
    if len(name) > _LONGEST or not name[0].isalpha() or table.get(name, host) != host:
        return value
    return Size(value, host, name, table)
