"""Speedups against several baselines: which counts, and on which machines they can be compared."""

from __future__ import annotations

from cudal1_env.errors import RecordError
from cudal1_env.records import Machine, Speedup, Strongest


def strongest_of(eager: Speedup, others: dict[str, Speedup]) -> Strongest:
    """Return the baseline that leaves the smallest speedup, by the best estimate.

    The strongest of several estimates is more often overrated than underrated, so a candidate's speedup against it is
    rather too small than too large.

    >>> two, half = (Speedup(low=x, point=x, high=x) for x in (2.0, 0.5))
    >>> strongest_of(two, {}).name, strongest_of(two, {"compile": half}).name
    ('eager', 'compile')
    """
    name, speedup = min({"eager": eager, **others}.items(), key=lambda item: item[1].point)
    return Strongest(name=name, speedup=speedup)


def check_machine(theirs: Machine | None, ours: Machine | None) -> None:
    """Refuse to compare across machines: the reference's arm is what two measurements have in common.

    Raises:
        RecordError: Device, model, driver or torch differ.
    """
    parts = [
        None if one is None else (one.device, one.name, one.driver or "no driver", one.torch) for one in (theirs, ours)
    ]
    if parts[0] != parts[1]:
        texts = ["an unknown machine" if part is None else ", ".join(part) for part in parts]
        raise RecordError(
            f"a record made on {texts[0]} cannot be compared with baselines of {texts[1]}; judge it again"
        )
