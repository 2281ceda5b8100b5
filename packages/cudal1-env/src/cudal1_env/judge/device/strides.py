"""Do elements of a tensor share memory?"""

from __future__ import annotations

from functools import lru_cache

from cudal1_env.judge.device.tensors import Expected


@lru_cache(maxsize=1024)
def own_memory(strides: tuple[int, ...], expected: Expected) -> bool:
    """Whether elements share memory only where those of the reference's own output do.

    What the reference repeats (a stride of zero, as of `expand`) may be repeated, with or without the reference's other
    strides. Strides with which it is not plain that no two elements meet count as if they met: those of some
    overlapping dimension must be larger than all that the smaller ones span.

    Args:
        strides: In elements, none below zero.
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
    """Whether no two elements share memory for certain, given each dimension's size and stride (zero or more).

    >>> apart([(3, 5), (4, 1)]), apart([(3, 3), (4, 1)]), apart([(1, 0), (2, 1)])
    (True, False, True)
    """
    span = 0
    for stride, size in sorted((s, n) for n, s in dimensions if n > 1):
        if stride <= span:
            return False
        span += (size - 1) * stride
    return True
