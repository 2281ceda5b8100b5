"""Fusion: grouping of a graph's operators into kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.ir import FLOATS, PLACES, Dims, Loop, Node, broadcast, contiguous, walk

_MAX_ELEMENTS = 2**31
"""Maximum number of elements of a tensor: kernels compute places in 32 bits."""
_MAX_COUNTED = _MAX_ELEMENTS - 2**16
"""The same for a kernel without rows, which counts its places past the end and compares them with their number."""


@dataclass(frozen=True)
class Kernel:
    """Operators that one kernel computes."""

    members: tuple[Node, ...]
    """Operators in order, operands first."""
    domain: Dims
    """The shape that its threads cover."""
    trailing: int
    """Number of the domain's last axes that reductions and scans cover; 0 without any."""
    squeezed: frozenset[int]
    """`id`s of members that lost the trailing axes."""
    outputs: tuple[Node, ...]
    """Nodes that it writes."""
    leaves: tuple[Node, ...]
    """Nodes that it reads."""

    @cached_property
    def rows(self) -> int:
        """Number of rows: elements of the domain without the trailing axes."""
        return math.prod(self.domain[: len(self.domain) - self.trailing])

    @cached_property
    def cols(self) -> int:
        """Length of a row."""
        return math.prod(self.domain[len(self.domain) - self.trailing :])

    @cached_property
    def size(self) -> int:
        """Elements of the domain."""
        return math.prod(self.domain)

    @cached_property
    def columns(self) -> bool:
        """Whether its rows are columns of a tensor in memory: elements of neighbouring rows are adjacent."""
        whole = [one for one in (*self.leaves, *self.gathers) if one.size == self.size]
        return self.trailing == 1 and any(one.swapped or _across(one) for one in whole)

    @property
    def gathers(self) -> list[Node]:
        """Its members that read a table."""
        return [node for node in self.members if node.kind == "gather"]

    def is_table(self, leaf: Node) -> bool:
        """Return whether a leaf is read only at places that a tensor holds."""
        users = [(node, place) for node in self.members for place, one in enumerate(node.operands) if one is leaf]
        return bool(users) and all(node.kind == "gather" and place == 0 for node, place in users)

    @property
    def scans(self) -> bool:
        """Whether it has a scan."""
        return any(node.kind == "scan" for node in self.members)

    @property
    def scans_last(self) -> bool:
        """Whether it has a scan, and no reduction depends on a scan."""
        reduced = walk(*(node for node in self.members if node.kind == "reduce"))
        return self.scans and all(node.kind != "scan" for node in reduced)

    def check_places(self, *others: Dims) -> None:
        """Check that 32 bits can index its domain, the tensors that it reads, and other tensors.

        Raises:
            UnsuitableError: A tensor is too large.
        """
        read = [one.operands[0] if one.strides and one.operands else one for one in self.leaves]
        own = (self.domain, _MAX_ELEMENTS if self.trailing else _MAX_COUNTED)
        for dims, most in (own, *((dims, _MAX_ELEMENTS) for dims in (*(one.dims for one in read), *others))):
            if math.prod(dims) > most:
                raise UnsuitableError(f"a tensor of {dims} has more than the {most} elements that 32 bits reach")

    def by_row(self, node: Node, aligned: bool) -> bool:
        """Return whether a value has one element per row."""
        padded = (1,) * (len(self.domain) - len(node.dims)) + node.dims
        return bool(self.trailing) and (aligned or all(size == 1 for size in padded[-self.trailing :]))

    def offset(self, node: Node, aligned: bool, *, place: str, row: str, col: str) -> str:
        """Return the offset of an element of a leaf or output, as text.

        Args:
            node: The tensor.
            aligned: Whether its axes are those of the rows.
            place: Name of the linear index in the domain.
            row: Name of the row index.
            col: Name of the index in the row.
        """
        if not self.trailing:
            return index_text(node.dims, self.domain, place, node.strides)
        head = self.domain[: len(self.domain) - self.trailing]
        if self.by_row(node, aligned):
            kept = len(node.dims) if aligned else max(len(node.dims) - self.trailing, 0)
            return index_text(node.dims[:kept], head, row, node.strides[:kept])
        if node.dims == self.domain[len(head) :] and not node.strides:
            return col
        if len(node.strides) == len(self.domain):
            parts = [
                index_text(node.dims[axes], self.domain[axes], name, node.strides[axes])
                for axes, name in ((slice(len(head)), row), (slice(len(head), None), col))
            ]
            return f"({' + '.join(part for part in parts if part != '0')})"
        return index_text(node.dims, self.domain, place, node.strides)


def table_offset(gather: Node, places: Sequence[str]) -> str:
    """Return the offset of an element of a table, from the texts of its index and of its count."""
    pairs = zip(places, gather.weights, strict=True)
    return " + ".join(text if weight == 1 else f"{text} * {weight}" for text, weight in pairs)


def _across(node: Node) -> bool:
    """Return whether a gather's neighbours in the last axis but one are neighbours in the table."""
    column = node.operands[-1] if node.kind == "gather" and node.weights[-1] == 1 else None
    return column is not None and column.kind == "count" and column.dims[-1] == 1


@dataclass(frozen=True)
class LoopStep:
    """A loop, and the plan of its body."""

    node: Node
    """The loop."""
    body: tuple[Step, ...]
    """The plan of one step."""
    whole: Kernel | None
    """The kernel of its body, if an element needs only the same element of other steps: then one kernel can run all
    steps. Else None."""
    users: tuple[Node, ...]
    """Nodes that use its states and lists."""

    @property
    def loop(self) -> Loop:
        """The loop's data."""
        assert self.node.loop is not None
        return self.node.loop

    @property
    def finals(self) -> tuple[int, ...]:
        """Numbers of the states that are used after the loop."""
        return tuple(
            number
            for number in range(len(self.loop.states))
            if any(one.text == f"{{0}}_state{number}" for one in self.users)
        )

    @property
    def axes(self) -> tuple[int, ...]:
        """Axis of each list's steps in memory: that of the tensor that it is stacked to, else 0."""
        return tuple(self.loop.stacked[number][1] if number in self.loop.stacked else 0 for number in self._lists)

    @property
    def kept_dims(self) -> tuple[Dims, ...]:
        """Shapes of the tensors that hold each list's steps."""
        count = len(self.loop.steps)
        return tuple(
            (*node.dims[:axis], count, *node.dims[axis:]) for node, axis in zip(self.loop.kept, self.axes, strict=True)
        )

    @property
    def stacked(self) -> tuple[Node | None, ...]:
        """The node that stacks each list, or None."""
        return tuple(self.loop.stacked[number][0] if number in self.loop.stacked else None for number in self._lists)

    @property
    def listed(self) -> tuple[int, ...]:
        """Numbers of the lists that are used other than stacked."""
        others = [one for one in self.users if not any(one is node for node in self.stacked)]
        return tuple(number for number in self._lists if any(f"{{0}}_kept{number}" in one.text for one in others))

    @property
    def invariant(self) -> list[Node]:
        """Nodes of the whole kernel with the same value in every step: it can compute them once."""
        assert self.whole is not None
        leaves = {id(leaf) for leaf in self.whole.leaves}
        changing = {id(one) for one in self.loop.states}
        found: list[Node] = []

        def visit(node: Node) -> bool:
            if id(node) in leaves:
                same = id(node) not in changing and not node.strides
            else:
                below = [visit(operand) for operand in node.operands]
                same = all(below)
            if same and not any(node is one for one in found):
                found.append(node)
            return same

        for node in (*self.loop.nexts, *self.loop.kept):
            visit(node)
        return found

    def places(self, place: str, turn: str) -> list[str]:
        """Return the offset of an element of each list, from its place in a step and the step's number `turn`."""
        found: list[str] = []
        for dims, axis, node in zip(self.kept_dims, self.axes, self.loop.kept, strict=True):
            strides = contiguous(dims)
            where = index_text(node.dims, node.dims, place, strides[:axis] + strides[axis + 1 :])
            found.append(f"{where} + {turn} * {strides[axis]}")
        return found

    @property
    def _lists(self) -> range:
        return range(len(self.loop.kept))


Step = Kernel | Node | LoopStep


def units(steps: Sequence[Step]) -> list[Kernel | LoopStep]:
    """Return possible kernels in order: whole loops, and kernels, including those in bodies of other loops."""
    found: list[Kernel | LoopStep] = []
    for step in steps:
        if isinstance(step, LoopStep) and step.whole is None:
            found += units(step.body)
        elif not isinstance(step, Node):
            found.append(step)
    return found


def flat(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield all steps; those of a loop's body follow the loop."""
    for step in steps:
        yield step
        if isinstance(step, LoopStep):
            yield from flat(step.body)


def uses(roots: Sequence[Node], steps: Sequence[Step]) -> list[Node]:
    """Return every tensor once for each use by a step or as a program output."""
    used = list(roots)
    for step in flat(steps):
        if isinstance(step, LoopStep):
            used += [*step.node.operands, *step.loop.nexts, *step.loop.kept]
        else:
            used.extend(step.leaves if isinstance(step, Kernel) else step.operands)
    return used


@dataclass
class _Group:
    depth: int
    members: list[Node] = field(default_factory=list[Node])


def plan(roots: Sequence[Node], *, most: int = 64) -> list[Step]:
    """Return kernels, loops and opaque nodes in an executable order.

    Connected operators between the same calls into PyTorch become one kernel. Operators that need only inputs and
    parameters and are smaller than their users are recomputed at each use.

    Args:
        roots: Outputs of the program.
        most: Maximum number of operators in one kernel.

    Raises:
        UnsuitableError: A kernel would have to write a tensor of another shape than its own.
    """
    order = walk(*roots)
    light = _light(order, roots)
    groups: dict[int, _Group] = {}
    depth: dict[int, int] = {}
    for node in order:
        below = [depth[id(one)] for one in node.operands]
        depth[id(node)] = max(below, default=0) + (node.kind in ("opaque", "loop") and not node.placed)
        if node.fusable and id(node) not in light:
            _place(node, groups, depth, light, most)
    steps = _ordered(order, roots, groups, light, depth)
    return [_loop(step, order, most) if isinstance(step, Node) and step.loop else step for step in steps]


def _loop(node: Node, order: Sequence[Node], most: int) -> LoopStep:
    assert node.loop is not None
    loop = node.loop
    body = tuple(plan((*loop.nexts, *loop.kept), most=most))
    users = tuple(one for one in order if any(operand is node for operand in one.operands))
    kernels = [step for step in body if isinstance(step, Kernel)]
    others = [step for step in body if not isinstance(step, Kernel)]
    # A kernel can read parts of tensors by the step's number, but not other pieces.
    alone = len(kernels) == 1 and all(
        isinstance(step, Node) and step.strides and (step.pace or not step.text.endswith("]")) for step in others
    )
    fits = (
        alone
        and not kernels[0].trailing
        and loop.steps.start >= 0 < loop.steps.step
        and all((one.dims, one.dtype) == (kernels[0].domain, "float32") for one in loop.states)
        and all(any(one is output for output in kernels[0].outputs) for one in (*loop.nexts, *loop.kept))
    )
    return LoopStep(node, body, kernels[0] if fits else None, users)


def _place(node: Node, groups: dict[int, _Group], depth: dict[int, int], light: set[int], most: int) -> None:
    """Add a node to the group of its operands, or to a new one."""
    near: list[_Group] = []
    for operand in node.operands:
        group = groups.get(id(operand))
        if group is not None and group.depth == depth[id(node)] and group not in near:
            near.append(group)
    merged = _Group(depth[id(node)], [one for group in near for one in group.members] + [node])
    if near and (len(merged.members) > most or not _fits(merged.members, light)):
        depth[id(node)] += 1
        merged = _Group(depth[id(node)], [node])
    _kernel_shape(merged.members, light)
    for member in merged.members:
        groups[id(member)] = merged


def _fits(members: list[Node], light: set[int]) -> bool:
    try:
        _kernel_shape(members, light)
    except UnsuitableError:
        return False
    return True


def _light(order: Sequence[Node], roots: Sequence[Node]) -> set[int]:
    """Return the `id`s of the nodes that are recomputed at each use."""
    light: set[int] = set()
    users: dict[int, list[Node]] = {}
    for node in order:
        for operand in node.operands:
            users.setdefault(id(operand), []).append(node)
    # Nodes that are eventually broadcast, possibly after steps of their own size.
    small: set[int] = set()
    for node in reversed(order):
        using = users.get(id(node), [])
        grows = using and all(
            user.kind == "pointwise" and (node.size < user.size or id(user) in small) for user in using
        )
        if grows and not any(node is root for root in roots):
            small.add(id(node))
    for node in order:
        # Kernels do not write booleans: comparisons with results of PyTorch calls are computed at their uses.
        truth = node.dtype == "bool"
        ready = all(one.placed or id(one) in light or (truth and one.kind == "opaque") for one in node.operands)
        using = users.get(id(node), [])
        # A node with one use is computed once anyway.
        alone = len(using) == 1 and using[0].operands.count(node) == 1
        smaller = all(
            user.kind == "pointwise" and (alone or id(node) in small or node.size < user.size or _cast(node))
            for user in using
        )
        if node.kind == "pointwise" and ready and smaller and not any(node is root for root in roots):
            light.add(id(node))
    return light


def _cast(node: Node) -> bool:
    return node.expression == "a"


def _kernel_shape(members: Sequence[Node], light: set[int]) -> tuple[Dims, int, frozenset[int]]:
    """Return domain, trailing axes and squeezed members.

    Raises:
        UnsuitableError: The members do not fit into one kernel.
    """
    lines = [node for node in members if node.kind in ("reduce", "scan")]
    if lines:
        domain, trailing = lines[0].operands[0].dims, lines[0].trailing
        if any((line.operands[0].dims, line.trailing) != (domain, trailing) for line in lines):
            raise UnsuitableError("reductions of different shapes meet in a kernel; a kernel has one")
    else:
        domain, trailing = _common(members), 0
    known = {id(node) for node in members}
    head = domain[: len(domain) - trailing]
    squeezed: set[int] = set()
    for node in members:
        lost = (node.kind == "reduce" and not node.keepdim) or any(id(one) in squeezed for one in node.operands)
        if lost:
            squeezed.add(id(node))
            if node.kind != "reduce" and any(id(one) in known - squeezed for one in node.operands):
                raise UnsuitableError("one kernel cannot mix values of rows with values of elements")
        _inside(node.dims, head if lost else domain)
        if node.kind == "reduce" and any(id(one) in squeezed for one in node.operands):
            raise UnsuitableError(
                "a reduction has values of rows as its operand; kernels reduce whole rows of elements"
            )
    return domain, trailing, frozenset(squeezed)


def _common(members: Sequence[Node]) -> Dims:
    try:
        return broadcast(*(node.dims for node in members))
    except ValueError as error:
        raise UnsuitableError(str(error)) from error


def _inside(dims: Dims, domain: Dims) -> None:
    try:
        fits = broadcast(dims, domain) == domain
    except ValueError as error:
        raise UnsuitableError(str(error)) from error
    if not fits:
        raise UnsuitableError(f"a tensor of {dims} does not fit into a kernel over {domain}")


def _ordered(
    order: Sequence[Node],
    roots: Sequence[Node],
    groups: dict[int, _Group],
    light: set[int],
    depth: dict[int, int],
) -> list[Kernel | Node]:
    steps: list[tuple[int, int, int, Kernel | Node]] = []
    done: list[_Group] = []
    for place, node in enumerate(order):
        group = groups.get(id(node))
        if node.kind in ("opaque", "loop"):
            # After every kernel that it needs, before every kernel that needs it.
            steps.append((depth[id(node)], 0, place, node))
        elif group is not None and not any(group is one for one in done):
            done.append(group)
            steps.append((group.depth, 1, place, _kernel(group, order, roots, groups, light)))
    return [step[3] for step in sorted(steps, key=lambda step: step[:3])]


def _kernel(
    group: _Group, order: Sequence[Node], roots: Sequence[Node], groups: dict[int, _Group], light: set[int]
) -> Kernel:
    domain, trailing, squeezed = _kernel_shape(group.members, light)
    members = [node for node in order if groups.get(id(node)) is group]
    outside = [one for user in order if groups.get(id(user)) is not group for one in user.operands] + list(roots)
    outputs = [node for node in members if any(node is one for one in outside)]
    rows = math.prod(domain[: len(domain) - trailing])
    for node in outputs:
        if node.dtype not in FLOATS and node.how not in PLACES:
            raise UnsuitableError(f"kernels write floats, not {node.dtype}")
        by_row = trailing and node.size == rows and node.dims != domain
        if node.dims != domain and not by_row:
            raise UnsuitableError(f"a kernel over {domain} cannot write an output of {node.dims}")
    return Kernel(
        tuple(members), domain, trailing, squeezed, tuple(outputs), tuple(_leaves(members, groups, group, light))
    )


def _leaves(members: Sequence[Node], groups: dict[int, _Group], group: _Group, light: set[int]) -> list[Node]:
    found: list[Node] = []

    def visit(node: Node) -> None:
        for operand in node.operands:
            if groups.get(id(operand)) is group:
                continue
            if id(operand) in light:
                visit(operand)
            elif operand.kind != "count" and not any(operand is one for one in found):
                found.append(operand)

    for member in members:
        visit(member)
    return found


def index_text(dims: Dims, domain: Dims, name: str, strides: Dims = ()) -> str:
    """Return the offset of an element of a smaller tensor, from its linear index in the domain.

    Args:
        dims: The tensor's shape.
        domain: The domain's shape.
        name: The index in the domain.
        strides: The tensor's strides; contiguous by default.

    >>> index_text((4, 8), (4, 8), "i"), index_text((8,), (4, 8), "i"), index_text((4, 1), (4, 8), "i")
    ('i', '(i % 8)', '(i / 8)')
    >>> index_text((2, 1, 5), (2, 3, 5), "i")
    '((i / 15) * 5 + (i % 5))'
    >>> index_text((2, 5), (2, 5), "i", (50, 1)), index_text((7, 4, 2), (7, 4, 2), "i", (8, 2, 0))
    ('((i / 5) * 50 + (i % 5))', '(i / 2) * 2')
    """
    ahead = len(domain) - len(dims)
    # A domain's sizes have the reference's names.
    dims = tuple(1 if size == 1 else whole for size, whole in zip((1,) * ahead + dims, domain, strict=True))
    strides = (0,) * ahead + strides if strides else contiguous(dims)
    runs: list[list[int]] = []
    inner, top = 1, 0
    for axis in range(len(domain) - 1, -1, -1):
        if dims[axis] != 1 and strides[axis] != 0:
            if top and strides[axis] == top:
                runs[-1][1] *= domain[axis]
            else:
                runs.append([inner, domain[axis], strides[axis]])
            top = strides[axis] * domain[axis]
        elif domain[axis] != 1:
            top = 0
        inner *= domain[axis]
    parts: list[str] = []
    for start, size, stride in runs:
        text = name if start == 1 else f"({name} / {start})"
        if start * size < math.prod(domain):
            text = f"({text} % {size})"
        parts.append(text if stride == 1 else f"{text} * {stride}")
    return "0" if not parts else parts[0] if len(parts) == 1 else f"({' + '.join(reversed(parts))})"
