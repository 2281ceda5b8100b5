"""Checks whether elements of a tensor share memory, from its strides."""

from __future__ import annotations

from functools import lru_cache

from cudal1_env.judge.device.tensors import Expected


@lru_cache(maxsize=1024)
def own_memory(strides: tuple[int, ...], expected: Expected) -> bool:
    """Return whether elements share memory only where those of the reference's output do.

    Dimensions that the reference repeats (stride zero, as by `expand`) may be repeated. The other dimensions must be
    provably disjoint: each stride must exceed the span of all smaller ones. Doubtful strides count as sharing.

    Args:
        strides: In elements, none negative.
        expected: The output's shape and the reference's strides.

    >>> own_memory((1, 4), Expected((4, 4), "float32", aliases=False))
    True
    >>> own_memory((0, 1), Expected((4, 4), "float32", aliases=False))
    False
    >>> own_memory((0, 1), Expected((4, 4), "float32", aliases=False, strides=(0, 1)))
    True
    """
    theirs = expected.strides
    if expected.size <= 1 or strides == theirs:
        return True
    repeated = [theirs is not None and theirs[k] == 0 == stride for k, stride in enumerate(strides)]
    return apart([(n, s) for n, s, twice in zip(expected.shape, strides, repeated, strict=True) if not twice])


def apart(dimensions: list[tuple[int, int]]) -> bool:
    """Return whether certainly no two elements share memory, given each dimension's size and stride (zero or more).

    >>> apart([(3, 5), (4, 1)]), apart([(3, 3), (4, 1)]), apart([(1, 0), (2, 1)])
    (True, False, True)
    """
    span = 0
    for stride, size in sorted((s, n) for n, s in dimensions if n > 1):
        if stride <= span:
            return False
        span += (size - 1) * stride
    return True
