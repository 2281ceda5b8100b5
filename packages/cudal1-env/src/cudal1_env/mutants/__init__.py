"""Mutants: what an incorrect program might return, each defined once.

- `answers`: mutants of a correct answer, as arrays, and how far each is off.
- `programs`: the same mutants as programs, for the testing kit.
- `mutation`: lines that change any correct program.

The task gate (`cudal1_env.campaigns.audit.mutants`) makes its own choice of `answers`, at random places. The lines that
make a mutant of a program's text are in `cudal1_data.mutants`, which the corpus uses too.
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
