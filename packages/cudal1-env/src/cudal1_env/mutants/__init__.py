"""Mutants: outputs that an incorrect program might return, each defined once.

- `answers`: mutants of a correct answer, as arrays, and the sizes of their errors.
- `programs`: the same mutants as programs, for the testing kit.
- `mutation`: lines that change any correct program.

The task gate (`cudal1_env.campaigns.audit.mutants`) applies some of `answers` at random places. The code that mutates
a program's text is in `cudal1_data.mutants`, which the corpus uses too.
"""

from cudal1_env.mutants.answers import (
    FACTOR,
    SHARE,
    SLIP,
    Array,
    constant,
    one_wrong,
    rounded,
    scaled,
    swapped_rows,
    with_nan,
)

__all__ = [
    "FACTOR",
    "SHARE",
    "SLIP",
    "Array",
    "constant",
    "one_wrong",
    "rounded",
    "scaled",
    "swapped_rows",
    "with_nan",
]
