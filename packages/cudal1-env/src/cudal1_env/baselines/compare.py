"""Comparison with several baselines: the strongest one, and a check that both sides ran on the same machine."""

from __future__ import annotations

from cudal1_env.errors import RecordError
from cudal1_env.records import Machine, Speedup, Strongest


def strongest_of(eager: Speedup, others: dict[str, Speedup]) -> Strongest:
    """Return the baseline with the smallest speedup over it, by point estimates.

    The strongest of several estimates is more often overestimated than underestimated, so the speedup over it tends
    to be too small.

    >>> two, half = (Speedup(low=x, point=x, high=x) for x in (2.0, 0.5))
    >>> strongest_of(two, {}).name, strongest_of(two, {"compile": half}).name
    ('eager', 'compile')
    """
    name, speedup = min({"eager": eager, **others}.items(), key=lambda item: item[1].point)
    return Strongest(name=name, speedup=speedup)


def check_machine(theirs: Machine | None, ours: Machine | None) -> None:
    """Check that two measurements are from the same machine, because they share only the reference's arm.

    Raises:
        RecordError: Device, model, driver or torch version differ.
    """
    parts = [
        None if one is None else (one.device, one.name, one.driver or "no driver", one.torch) for one in (theirs, ours)
    ]
    if parts[0] != parts[1]:
        texts = ["an unknown machine" if part is None else ", ".join(part) for part in parts]
        raise RecordError(
            f"a record made on {texts[0]} cannot be compared with baselines of {texts[1]}; judge it again"
        )
