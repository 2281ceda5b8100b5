"""Convolutions and pools in Triton with fused epilogues.

A convolution is a matrix product whose left factor is read through a window, or a sum over the window where groups have
few channels; a pool is such a sum or maximum without weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cudal1_data.kernelgen.codegen.matmuls import Product, pairs_of, products
from cudal1_data.kernelgen.codegen.naming import Constants, Names, quotient_text
from cudal1_data.kernelgen.codegen.products import ProductWriter, Tiles, arithmetic, pointers, program_of
from cudal1_data.kernelgen.codegen.triton import IDENTITY, TritonKernel, whole_kernel
from cudal1_data.kernelgen.fusion import Step
from cudal1_data.kernelgen.ir import FLOATS, Dims, Node, Reference, Window
from cudal1_data.kernelgen.sizes import host_text

_AXES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
"""Names of the axes of maps by their number: the place of a window's first element along each."""
_PLACES = {"depth": "z", "height": "y", "width": "x", "length": "x"}
"""Names of the place of another element of the window."""
_NAMES = ("depth", "height", "width", "length", "x", "y", "z", "image", "place", "out_channel", "column", "inside")
"""Names of a kernel's own values."""
_SMALLEST_TILE = 16
"""Minimum of a product's columns and terms; with fewer, `tl.dot` would mostly multiply zeros."""
_PER_THREAD = 4
"""Elements of a thread in a kernel without `tl.dot`."""
_MOST = 2
"""Maximum number of layers in a program; more make it too long to learn."""


def has_window(reference: Reference, steps: Sequence[Step]) -> bool:
    """Return whether a reference is one or two pools or convolutions, with operators behind them.

    PyTorch's convolutions are fast: they stay where a program has other kernels, or several operators behind one.
    """
    changed, found = pairs_of(reference, steps, _is_layer)
    mine = [one for pair in found for one in pair]
    short = all(node.how or len(kernel.members) <= 1 for kernel, node in found)
    return 1 <= len(found) <= _MOST and short and all(any(step is one for one in mine) for step in changed)


def window_program(reference: Reference, steps: Sequence[Step], tiles: Tiles) -> str:
    """Return the program with a kernel for each pool or convolution and its epilogue.

    Raises:
        UnsuitableError: There is no layer with a window, or a tensor is too large.
    """
    return program_of(products(reference, steps, _is_layer), _kernel, tiles)


def _is_layer(node: Node) -> bool:
    return node.window is not None and all(one.dtype in FLOATS for one in node.operands)


def _kernel(layer: Product, name: str, tiles: Tiles) -> TritonKernel:
    layer.check_places()
    made = _Writer(layer, tiles)
    if layer.node.how:
        return made.pool(name)
    return made.product(name) if min(made.outs, made.terms) >= _SMALLEST_TILE else made.sums(name)


class _Writer:
    """Writer of the kernel of a pool or convolution."""

    def __init__(self, layer: Product, tiles: Tiles) -> None:
        assert layer.node.window is not None
        self.layer, self.tiles, window = layer, tiles, layer.node.window
        self.window = Window(
            edges=_plain(window.edges),
            stride=_plain(window.stride),
            padding=_plain(window.padding),
            dilation=_plain(window.dilation),
            groups=window.groups,
            transposed=window.transposed,
        )
        """The window with plain numbers, which are shorter than names."""
        self.known, self.constants = Names(_NAMES), Constants(layer.kernel)
        self.writer = ProductWriter(layer.kernel, layer.node, self.known, self.constants)
        given, result = layer.left.dims, layer.node.dims
        self.ins, self.outs = given[1] // self.window.groups, result[1] // self.window.groups
        """Channels of a group, before and after."""
        self.elements = math.prod(window.edges)
        """Elements of a window in one channel."""
        self.terms = self.ins * self.elements
        """Terms of each sum."""
        self.rows = result[0] * math.prod(result[2:])
        """Elements of one channel of the result."""
        self.axes = _AXES[len(given) - 2]
        self.before = [self._named(axis, size) for axis, size in zip(self.axes, given[2:], strict=True)]
        after = zip(self.axes, result[2:], strict=True)
        self.after = [self._renamed(f"out_{axis}", size) for axis, size in after]
        self.space = self._renamed("space", math.prod(result[2:]))
        self.images, self.channels, self.out = (
            self._named(name, size) for name, size in (("images", given[0]), ("channels", given[1]), ("out", result[1]))
        )
        self.n = self.out if self.window.groups == 1 else self._renamed("n", self.outs)
        self.k = self._named("k", self.terms)
        self.per_group = self._renamed("per_group", self.ins)

    def _named(self, name: str, size: int) -> str:
        """Return a size's text in the kernel: a number, the reference's name, or for an expression `name`."""
        return str(size) if str(size).isidentifier() else self._renamed(name, size)

    def _renamed(self, name: str, size: int) -> str:
        """Return a size's text in the kernel: a number, or `name`."""
        return str(size) if str(size).isdigit() else self.constants.renamed(name.upper(), size)

    def product(self, name: str) -> TritonKernel:
        """Return the kernel as a matrix product, a group of channels in each program."""
        tiles, groups, m = self.tiles, self.window.groups, f"{self.images} * {self.space}"
        precise, widen = arithmetic(self.layer, tiles)
        column, program = ("n", "tl.program_id(0)") if groups == 1 else ("column", f"tl.program_id(0) // {groups}")
        left = self._left(self._channel("terms[None, :]"))
        right = self._right("terms[:, None]", f"{column}[None, :]", "n[None, :]")
        lines = [
            f"over = tl.cdiv({self.n}, BLOCK_N)",
            f"m = {program} // over * BLOCK_M + tl.arange(0, BLOCK_M)",
            f"n = {program} % over * BLOCK_N + tl.arange(0, BLOCK_N)",
            *([f"group = tl.program_id(0) % {groups}", f"column = group * {self.n} + n"] if groups > 1 else []),
            f"image = m[:, None] // {self.space}",
            f"place = m[:, None] % {self.space}",
            *self._starts(),
            "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            f"for start in range(0, {self.k}, BLOCK_K):",
            "    terms = start + tl.arange(0, BLOCK_K)",
            f"    inside = (m[:, None] < {m}) & (terms[None, :] < {self.k})",
            *(f"    {line}" for line in self._inside("terms[None, :]")),
            f"    left = tl.load(left_ptr + {left}, mask=inside, other=0.0){widen}",
            f"    right = tl.load(right_ptr + {right}, "
            f"mask=(n[None, :] < {self.n}) & (terms[:, None] < {self.k}), other=0.0){widen}",
            f"    acc = tl.dot(left, right, acc{precise})",
            *self._bias(f"{column}, mask=n < {self.n}, other=0.0)[None, :]"),
            f"offsets = (image * {self.out} + {column}[None, :]) * {self.space} + place",
            f"mask = (m[:, None] < {m}) & (n[None, :] < {self.n})",
        ]
        return self._whole(
            name,
            lines,
            {"BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k},
            programs=" * ".join(
                [quotient_text(self.rows, tiles.block_m), quotient_text(self.outs, tiles.block_n)]
                + ([host_text(groups)] if groups > 1 else [])
            ),
            comment="A convolution as a product: rows are positions, columns are channels, terms a window's elements.",
        )

    def sums(self, name: str) -> TritonKernel:
        """Return a convolution's kernel as a sum for each element of the result."""
        group = f"out_channel // {self.n}" if self.outs > 1 else "out_channel"
        column = f"out_channel % {self.n}" if self.window.groups > 1 else "out_channel"
        lines = [
            f"out_channel = offsets // {self.space} % {self.out}",
            f"image = offsets // {self.space} // {self.out}",
            *self._over_window(self._channel("term", group), "0.0"),
            f"    right = tl.load(right_ptr + {self._right('term', 'out_channel', column, group)}, "
            f"mask=mask, other=0.0){self._widen}",
            "    acc += left * right",
            *self._bias("out_channel, mask=mask, other=0.0)"),
        ]
        comment = "A convolution with few channels in a group: each element of the result sums over its window."
        return self._by_element(name, lines, comment)

    def pool(self, name: str) -> TritonKernel:
        """Return a pool's kernel; each map is an image of its own."""
        average = self.layer.node.how == "sum"
        lines = [
            f"image = offsets // {self.space}",
            *self._over_window("", IDENTITY[self.layer.node.how]),
            *(["    acc += left", f"acc *= 1.0 / {self.k}"] if average else ["    acc = tl.maximum(acc, left)"]),
        ]
        kind = "mean" if average else "maximum"
        return self._by_element(name, lines, f"A pool: each element of the result is the {kind} of its window.")

    def _over_window(self, channel: str, first: str) -> list[str]:
        """Return the lines of a loop over the window, until an element is loaded.

        Args:
            channel: Channel of a term.
            first: First value of the accumulator, which elements outside of the maps have, too.
        """
        return [
            f"place = offsets % {self.space}",
            *self._starts(),
            f"acc = tl.full((BLOCK,), {first}, tl.float32)",
            f"for term in range({self.k}):",
            "    inside = mask",
            *(f"    {line}" for line in self._inside("term")),
            f"    left = tl.load(left_ptr + {self._left(channel)}, mask=inside, other={first}){self._widen}",
        ]

    def _by_element(self, name: str, lines: list[str], comment: str) -> TritonKernel:
        block = _PER_THREAD * 32 * self.tiles.warps
        lines = [*self.writer.begin(), *lines]
        programs = quotient_text(self.layer.kernel.size, block)
        return self._whole(name, lines, {"BLOCK": block}, programs=programs, comment=comment)

    @property
    def _widen(self) -> str:
        return "" if {one.dtype for one in self.layer.node.operands[:2]} == {"float32"} else ".to(tl.float32)"

    def _whole(
        self, name: str, lines: list[str], blocks: dict[str, int], *, programs: str, comment: str
    ) -> TritonKernel:
        lines = [*lines, *self.writer.body()]
        return whole_kernel(
            name,
            [*pointers(self.layer, self.known), *self.known.outputs(len(self.layer.kernel.outputs))],
            lines,
            self.constants.within("\n".join(lines)) | {one: str(size) for one, size in blocks.items()},
            programs=programs,
            tuned={"num_warps": self.tiles.warps, "num_stages": self.tiles.stages},
            comment=comment,
        )

    def _starts(self) -> list[str]:
        """Return the lines that compute the place of a window's first element."""
        window, lines = self.window, list[str]()
        for number, axis in enumerate(self.axes):
            text = _digit("place", self.after, number)
            stride, padding = window.stride[number], window.padding[number]
            if window.transposed:
                text += f" + {padding}" if padding else ""
            else:
                text += (f" * {stride}" if stride != 1 else "") + (f" - {padding}" if padding else "")
            lines.append(f"{axis} = {text}")
        return lines

    def _inside(self, term: str) -> list[str]:
        """Return the lines that compute the place of a term in the maps, and whether it is inside of them."""
        window, lines = self.window, list[str]()
        edges = list(map(str, window.edges))
        for number, axis in enumerate(self.axes):
            place = self._place(number)
            if window.edges[number] != 1:
                digit = _digit(term, edges, number, whole=self.ins == 1)
                digit += f" * {window.dilation[number]}" if window.dilation[number] != 1 else ""
                lines.append(f"{place} = {axis} {'-' if window.transposed else '+'} {digit}")
            stride, side = window.stride[number], self.before[number]
            if window.transposed and stride != 1:
                lines.append(f"inside &= ({place} % {stride} == 0) & ({place} >= 0) & ({place} < {side} * {stride})")
            elif window.transposed or window.padding[number]:
                lines.append(f"inside &= ({place} >= 0) & ({place} < {side})")
        return lines

    def _place(self, number: int) -> str:
        axis = self.axes[number]
        return _PLACES[axis] if self.window.edges[number] != 1 else axis

    def _channel(self, term: str, group: str = "group") -> str:
        """Return the channel of a term."""
        mine = "" if self.ins == 1 else term if self.elements == 1 else f"{term} // {self._elements}"
        first = "" if self.window.groups == 1 else group if self.ins == 1 else f"{group} * {self.per_group}"
        return " + ".join(part for part in (first, mine) if part) or "0"

    def _left(self, channel: str) -> str:
        """Return the place of a term in memory; without a channel, each of them is an image."""
        text = f"(image * {self.channels} + {channel})" if channel else "image"
        for number, side in enumerate(self.before):
            stride = self.window.stride[number] if self.window.transposed else 1
            place = self._place(number) + (f" // {stride}" if stride != 1 else "")
            text = f"({text} * {side} + {place})"
        return text[1:-1]

    def _right(self, term: str, out_channel: str, column: str, group: str = "group") -> str:
        """Return the place of a term's weight in memory.

        Args:
            term: The term.
            out_channel: Channel of the result.
            column: Channel of the result, counted from the first of its group.
            group: Its group.
        """
        if not self.window.transposed:
            return f"{out_channel} * {self.k} + {term}"
        channel = self._channel(term, group)
        row = f"({channel})" if " " in channel else channel
        place = row if self.outs == 1 < self.window.groups else f"({row} * {self.n} + {column})"
        element = term if self.ins == 1 else f"{term} % {self._elements}"
        return f"{place} * {self._elements} + {element}" if self.elements != 1 else place

    def _bias(self, rest: str) -> list[str]:
        return [f"acc += tl.load(bias_ptr + {rest}"] if self.layer.bias is not None else []

    @property
    def _elements(self) -> str:
        return _times([str(one) for one in self.window.edges if one != 1])


def _plain(sizes: Dims) -> Dims:
    return tuple(map(int, sizes))


def _digit(text: str, sides: Sequence[str], number: int, *, whole: bool = True) -> str:
    """Return an index along an axis from the index of an element.

    Args:
        text: Index of the element.
        sides: Lengths of the axes; those of length 1 have no part in the index.
        number: Number of the axis.
        whole: Whether the index is not above the last element.

    >>> [_digit("i", ["2", "3", "5"], number) for number in range(3)], _digit("i", ["3", "1"], 0, whole=False)
    (['i // (3 * 5)', 'i // 5 % 3', 'i % 5'], 'i % 3')
    """
    inner = [side for side in sides[number + 1 :] if side != "1"]
    text += f" // {_times(inner)}" if inner else ""
    first = all(side == "1" for side in sides[:number])
    return text if whole and first else f"{text} % {sides[number]}"


def _times(texts: Sequence[str]) -> str:
    """Return a product of sizes, in parentheses if it has several."""
    return texts[0] if len(texts) == 1 else f"({' * '.join(texts)})"
