"""Which operators of a graph become one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cudal1_data.templates.errors import UnsuitableError
from cudal1_data.templates.graph import Dims, Node, broadcast, walk


@dataclass(frozen=True)
class Kernel:
    """Operators that one kernel computes."""

    members: tuple[Node, ...]
    """In order, operands first."""
    domain: Dims
    """The shape that its threads go over."""
    trailing: int
    """How many of the domain's last axes reductions and scans go over; 0 where there are none."""
    squeezed: frozenset[int]
    """`id`s of members that lost the trailing axes."""
    outputs: tuple[Node, ...]
    """What it writes."""
    leaves: tuple[Node, ...]
    """What it reads."""

    @property
    def rows(self) -> int:
        """Number of rows: elements of the domain without the trailing axes."""
        return math.prod(self.domain[: len(self.domain) - self.trailing])

    @property
    def cols(self) -> int:
        """Length of a row."""
        return math.prod(self.domain[len(self.domain) - self.trailing :])

    @property
    def size(self) -> int:
        """Elements of the domain."""
        return math.prod(self.domain)

    @property
    def scans(self) -> bool:
        """Whether it has a scan."""
        return any(node.kind == "scan" for node in self.members)

    def by_row(self, node: Node, aligned: bool) -> bool:
        """Whether a value is one for each row."""
        padded = (1,) * (len(self.domain) - len(node.dims)) + node.dims
        return bool(self.trailing) and (aligned or all(size == 1 for size in padded[-self.trailing :]))

    def offset(self, node: Node, aligned: bool, *, place: str, row: str, col: str) -> str:
        """Return where an element of a contiguous leaf or output lies.

        Args:
            node: The tensor.
            aligned: Whether its axes are those of the rows.
            place: Name of the linear place in the domain.
            row: Name of the row.
            col: Name of the place in the row.
        """
        if not self.trailing:
            return index_text(node.dims, self.domain, place)
        head = self.domain[: len(self.domain) - self.trailing]
        if self.by_row(node, aligned):
            dims = node.dims if aligned else node.dims[: -self.trailing] if len(node.dims) > self.trailing else ()
            return index_text(dims, head, row)
        if node.dims == self.domain[len(head) :]:
            return col
        return index_text(node.dims, self.domain, place)


@dataclass
class _Group:
    depth: int
    members: list[Node] = field(default_factory=list[Node])


def plan(roots: Sequence[Node], *, most: int = 64) -> list[Kernel | Node]:
    """Return kernels and opaque nodes in an order in which they can be computed.

    Operators that hang together and lie between the same calls into PyTorch become one kernel. Those that need
    only inputs and parameters and are smaller than what uses them are computed again wherever they are used.

    Args:
        roots: What the program returns.
        most: Operators in one kernel, at most.

    Raises:
        UnsuitableError: A kernel would have to write something of another shape than its own.
    """
    order = walk(*roots)
    light = _light(order, roots)
    groups: dict[int, _Group] = {}
    depth: dict[int, int] = {}
    for node in order:
        below = [depth[id(one)] for one in node.operands]
        depth[id(node)] = max(below, default=0) + (node.kind == "opaque")
        if node.fusable and id(node) not in light:
            _place(node, groups, depth, light, most)
    return _ordered(order, roots, groups, light, depth)


def _place(node: Node, groups: dict[int, _Group], depth: dict[int, int], light: set[int], most: int) -> None:
    """Put a node into the group of its operands, or into one of its own."""
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
    """Return the nodes that are computed again where they are used."""
    light: set[int] = set()
    users: dict[int, list[Node]] = {}
    for node in order:
        for operand in node.operands:
            users.setdefault(id(operand), []).append(node)
    for node in order:
        ready = all(one.leaf or id(one) in light for one in node.operands)
        using = users.get(id(node), [])
        # What one operator alone uses costs nothing twice.
        alone = len(using) == 1 and using[0].operands.count(node) == 1
        smaller = all(user.kind == "pointwise" and (alone or node.size < user.size or _cast(node)) for user in using)
        if node.kind == "pointwise" and ready and smaller and not any(node is root for root in roots):
            light.add(id(node))
    return light


def _cast(node: Node) -> bool:
    return node.expression == "a"


def _kernel_shape(members: Sequence[Node], light: set[int]) -> tuple[Dims, int, frozenset[int]]:
    """Return domain, trailing axes and squeezed members.

    Raises:
        UnsuitableError: The members do not go into one kernel.
    """
    lines = [node for node in members if node.kind in ("reduce", "scan")]
    if lines:
        domain, trailing = lines[0].operands[0].dims, lines[0].trailing
        if any((line.operands[0].dims, line.trailing) != (domain, trailing) for line in lines):
            raise UnsuitableError("expected reductions of one shape in a kernel")
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
                raise UnsuitableError("expected values of rows beside values of rows")
        _inside(node.dims, head if lost else domain)
        if node.kind == "reduce" and any(id(one) in squeezed for one in node.operands):
            raise UnsuitableError("expected reductions of whole rows")
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
        raise UnsuitableError(f"expected {dims} to fit into {domain}")


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
        if node.kind == "opaque":
            # Behind every kernel of what it needs, before every kernel that needs it.
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
        if node.dtype != "float32":
            raise UnsuitableError("expected kernels to write float32")
        by_row = trailing and node.size == rows and node.dims != domain
        if node.dims != domain and not by_row:
            raise UnsuitableError(f"expected outputs of the shape of their kernel, {domain}, got {node.dims}")
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
            elif not any(operand is one for one in found):
                found.append(operand)

    for member in members:
        visit(member)
    return found


def index_text(dims: Dims, domain: Dims, name: str) -> str:
    """Return the place of an element of a smaller contiguous tensor, from its linear place in the domain.

    >>> index_text((4, 8), (4, 8), "i"), index_text((8,), (4, 8), "i"), index_text((4, 1), (4, 8), "i")
    ('i', '(i % 8)', '(i / 8)')
    >>> index_text((2, 1, 5), (2, 3, 5), "i")
    '((i / 15) * 5 + (i % 5))'
    """
    padded = (1,) * (len(domain) - len(dims)) + dims
    if padded == domain:
        return name
    parts: list[str] = []
    axis = len(domain) - 1
    weight = inner = 1
    while axis >= 0:
        if padded[axis] == 1:
            inner *= domain[axis]
            axis -= 1
            continue
        size = 1
        start = inner
        while axis >= 0 and padded[axis] != 1:
            size *= domain[axis]
            inner *= domain[axis]
            axis -= 1
        text = name if start == 1 else f"({name} / {start})"
        if inner < math.prod(domain):
            text = f"({text} % {size})"
        parts.append(text if weight == 1 else f"{text} * {weight}")
        weight *= size
    return "0" if not parts else parts[0] if len(parts) == 1 else f"({' + '.join(reversed(parts))})"
