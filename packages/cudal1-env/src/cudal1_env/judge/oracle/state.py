"""State as a mapping: which tensor of a candidate corresponds to which tensor of the reference.

The judge loads its own values into the state of the reference and of the candidate. This module matches the tensors of
both in three passes, each over the tensors that are still unmatched:

1. same name, shape and dtype;
2. the same after removing the name parts `_orig_mod` and `module` (torch.compile, DataParallel);
3. same shape, dtype, kind (parameter or buffer) and *seeded value*: both constructors ran under one seed, so tensors
   with the same bytes are most likely the same tensor under another name.

Ties are resolved by the order of registration. Tensors that only the candidate has are ignored. An unmatched tensor of
the reference leads to a rejection: the candidate would keep its constructor's value, which may have structure (rank,
zeros, a constant) that other weights lack (docs/threats.md, H68).

The worker computes the fingerprints of seeded values and describes its state; both are untrusted. A lie gains nothing:
it only changes where the judge's values go, and the outputs must be correct with exactly these values
(docs/decisions/004-state-as-a-mapping.md).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from cudal1_env.judge.device.tensors import Sizes

_WRAPPERS = ("_orig_mod", "module")
_FLOATING = ("float16", "bfloat16", "float32", "float64")
_SHOWN = 8
"""Names, or pairs of names, in a message."""
_NAME_CHARS = 80

_ADVICE = (
    "register every parameter and buffer of Model in ModelNew's constructor, with Model's names, shapes and dtypes, "
    "and derive fused, transposed or packed copies from them in the first forward"
)


@dataclass(frozen=True)
class Entry:
    """One tensor of a module's state, as a worker describes it (`cudal1_worker.program.state.described`)."""

    name: str
    shape: Sizes
    dtype: str
    parameter: bool
    """Whether it is a parameter; otherwise a buffer."""
    tied_to: str | None = None
    """For a second name of the same memory: the first name."""
    fixed: bool = False
    """Whether the judge keeps the constructor's value (a counter, a mask); reported for the reference only."""


Fingerprints = dict[str, str]
"""Hash of the seeded value, by name."""
Key = Callable[[Entry], Hashable]


@dataclass(frozen=True)
class Mapping:
    """Result of matching the reference's state with a candidate's."""

    pairs: dict[str, str] = field(default_factory=dict[str, str])
    """The candidate's name by the reference's name, for matched tensors, in the reference's order."""
    guessed: tuple[str, ...] = ()
    """The reference's names that were matched by seeded value."""
    missing: tuple[Entry, ...] = ()
    """Unmatched tensors of the reference that need a partner."""
    constructed: tuple[Entry, ...] = ()
    """Unmatched tensors of the candidate, which keep the constructor's value."""

    @property
    def similar(self) -> list[str]:
        """Unmatched names of the candidate with the shape, dtype and kind of a missing tensor."""
        wanted = {_form(one) for one in self.missing}
        return [one.name for one in self.constructed if _form(one) in wanted]

    def refusal(self) -> str:
        """Return why the program is rejected."""
        shown = [f"{_clean(one.name)} ({_text(one)})" for one in self.missing[:_SHOWN]]
        more = [f"and {len(self.missing) - _SHOWN} more"] if len(self.missing) > _SHOWN else []
        return (
            f"nothing in ModelNew's state_dict() after construction matches these of Model's: "
            f"{', '.join(shown + more)}; {_ADVICE}"
        )

    def note(self) -> str:
        """Return a hint for an incorrect output; empty if names sufficed and nothing kept the constructor's value.

        The hint shows the candidate's names. The worker sent them right after construction, so they can leak only what
        every candidate of the task sees in its constructor.
        """
        parts: list[str] = []
        if self.guessed:
            shown = [f"{_clean(name)} = {_clean(self.pairs[name])}" for name in self.guessed[:_SHOWN]]
            parts.append(f"state was matched by seeded value (Model = ModelNew): {', '.join(shown)}")
        loaded = set(self.pairs.values())
        kept = [one for one in self.constructed if one.dtype in _FLOATING and one.tied_to not in loaded]
        if self.pairs and kept:
            shown = [_clean(one.name) for one in kept[:_SHOWN]]
            parts.append(f"these of ModelNew's state kept the constructor's values: {', '.join(shown)}")
        return f"; {'; '.join(parts)}; {_ADVICE}" if parts else ""


def match(
    reference: Sequence[Entry],
    candidate: Sequence[Entry],
    seeded: tuple[Fingerprints, Fingerprints] = ({}, {}),
) -> Mapping:
    """Match the reference's state with a candidate's.

    Args:
        reference: The reference's state, in order of registration.
        candidate: The candidate's state as its worker reports it, in order of registration.
        seeded: Fingerprints of the reference's and the candidate's tensors; others are matched by name only.

    >>> weight = Entry("lin.weight", (2, 3), "float32", True)
    >>> match([weight], [Entry("_orig_mod.lin.weight", (2, 3), "float32", True)]).pairs
    {'lin.weight': '_orig_mod.lin.weight'}
    >>> other = Entry("w", (2, 3), "float32", True)
    >>> match([weight], [other], ({"lin.weight": "ab"}, {"w": "ab"})).guessed
    ('lin.weight',)
    """
    spare = {one.name: one for one in candidate}
    pairs: dict[str, str] = {}
    for key in (_exact, _unwrapped):
        pairs |= _paired([one for one in reference if one.name not in pairs], spare, key, key)
    theirs, own = seeded
    guessed = _paired(_needed(reference, pairs), spare, _valued(theirs), _valued(own))
    pairs |= guessed
    return Mapping(
        {one.name: pairs[one.name] for one in reference if one.name in pairs},
        tuple(guessed),
        tuple(_needed(reference, pairs)),
        tuple(spare.values()),
    )


def _paired(left: Sequence[Entry], spare: dict[str, Entry], key: Key, other_key: Key) -> dict[str, str]:
    """Pair entries of the same key, in order, and remove the partners from `spare`; a key of None matches nothing."""
    waiting: dict[Hashable, deque[str]] = {}
    for one in spare.values():
        waiting.setdefault(other_key(one), deque()).append(one.name)
    pairs: dict[str, str] = {}
    for one in left:
        found = key(one)
        if found is not None and (queue := waiting.get(found)):
            pairs[one.name] = queue.popleft()
            del spare[pairs[one.name]]
    return pairs


def _needed(reference: Sequence[Entry], pairs: dict[str, str]) -> list[Entry]:
    """Return unmatched entries that need a partner; for a tied weight one matched name is enough."""
    there = {one.tied_to or one.name for one in reference if one.name in pairs}
    needed: list[Entry] = []
    for one in reference:
        if not one.fixed and (one.tied_to or one.name) not in there:
            needed.append(one)
            there.add(one.tied_to or one.name)
    return needed


def _exact(one: Entry) -> Hashable:
    return one.name, one.shape, one.dtype


def _unwrapped(one: Entry) -> Hashable:
    plain = ".".join(part for part in one.name.split(".") if part not in _WRAPPERS)
    return plain, one.shape, one.dtype


def _valued(fingerprints: Fingerprints) -> Key:
    return lambda one: (_form(one), fingerprints[one.name]) if one.name in fingerprints else None


def _form(one: Entry) -> tuple[tuple[int, ...], str, bool]:
    return one.shape, one.dtype, one.parameter


def _text(one: Entry) -> str:
    kind = "parameter" if one.parameter else "buffer"
    return f"{one.dtype} {kind} of shape {list(one.shape)}"


def _clean(name: str) -> str:
    """Return a name with all but identifier characters replaced: a candidate's names may be any text."""
    return re.sub(r"[^\w.]", "?", name[:_NAME_CHARS], flags=re.ASCII)


_STATE: TypeAdapter[tuple[Entry, ...]] = TypeAdapter(tuple[Entry, ...])
_FINGERPRINTS: TypeAdapter[Fingerprints] = TypeAdapter(Fingerprints)


def parse_state(told: object) -> tuple[Entry, ...]:
    """Return the state that a worker describes; empty if it is malformed."""
    try:
        return _STATE.validate_python(told)
    except ValidationError:
        return ()


def parse_fingerprints(told: object) -> Fingerprints:
    """Return the fingerprints that a worker reports; empty if they are malformed."""
    try:
        return _FINGERPRINTS.validate_python(told, strict=True)
    except ValidationError:
        return {}
