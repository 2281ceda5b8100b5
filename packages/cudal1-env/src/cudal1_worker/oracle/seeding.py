"""Disables a task's own seeding, so that its inputs come from the judge's secret seeds.

While a task's program is imported and while it draws inputs, seeding functions do nothing. The torch generators that it
makes are seeded here; those of Python and NumPy share the state of the modules' functions. A program that evades this
draws the same values twice; the oracle compares two draws.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import weakref
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch

_SEED = torch.Generator.manual_seed


class _Obedient(torch.Generator):
    """A generator that only `Seeds` seeds."""

    seeds: Seeds

    def __new__(cls, device: Any = "cpu") -> _Obedient:
        """Make a seeded generator."""
        made = super().__new__(cls, device)  # pyright: ignore[reportCallIssue]
        cls.seeds.adopt(made)
        return made

    def manual_seed(self, seed: int) -> _Obedient:
        """Do nothing."""
        return self

    def seed(self) -> int:
        """Do nothing."""
        return self.initial_seed()

    def set_state(self, new_state: torch.Tensor) -> _Obedient:
        """Do nothing."""
        return self


class Seeds:
    """Seeds for all random generators that a task's program may use."""

    def __init__(self) -> None:
        self._seed = 0
        self._made: list[weakref.ref[torch.Generator]] = []
        self._kind = type("Generator", (_Obedient,), {"seeds": self})

    def _number(self, place: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._seed}/{place}".encode()).digest()[:4], "little")

    def adopt(self, one: torch.Generator) -> None:
        """Seed a generator now and at each `start`."""
        _SEED(one, self._number(len(self._made)))
        self._made.append(weakref.ref(one))

    def start(self, seed: int, device: torch.device) -> None:
        """Seed all generators: torch's (on CPU and device), Python's, NumPy's, and the program's own."""
        self._seed = seed
        living = [one for made in self._made if (one := made()) is not None]
        self._made = [weakref.ref(one) for one in living]
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` formats a traceback for each other device
        if device.type == "cuda":
            index = torch.cuda.current_device()  # the first time, this makes the generators
            torch.cuda.default_generators[index].manual_seed(seed)
        random.seed(seed)
        np.random.seed(self._number(-1))
        for place, one in enumerate(living):
            _SEED(one, self._number(place))

    @contextlib.contextmanager
    def only(self) -> Generator[None]:
        """Disable seeding within the context."""
        replaced = [(owner, name, getattr(owner, name)) for owner, name, _ in self._replacements()]
        try:
            for owner, name, new in self._replacements():
                setattr(owner, name, new)
            yield
        finally:
            for owner, name, old in replaced:
                setattr(owner, name, old)

    def _replacements(self) -> Sequence[tuple[Any, str, Any]]:
        silent: list[tuple[Any, str]] = [(torch, "manual_seed"), (torch, "seed"), (torch, "set_rng_state")]
        silent += [(torch.random, "manual_seed"), (torch.random, "seed"), (torch.random, "set_rng_state")]
        silent += [(torch.cuda, name) for name in ("manual_seed", "manual_seed_all", "seed", "seed_all")]
        silent += [(torch.cuda, "set_rng_state"), (torch.cuda, "set_rng_state_all")]
        silent += [(torch.cuda.random, name) for name in ("manual_seed", "manual_seed_all", "set_rng_state")]
        silent += [(random, "seed"), (random, "setstate"), (np.random, "seed"), (np.random, "set_state")]
        # Each of these modules has its generator's methods as functions.
        made = [(random, "Random", lambda *_: random), (np.random, "RandomState", lambda *_, **__: np.random)]
        made += [(torch, "Generator", self._kind), (np.random, "default_rng", _global_rng)]
        return [*((owner, name, _nothing) for owner, name in silent), *made]


def _nothing(*_: Any, **__: Any) -> torch.Generator:
    """Seed nothing; return torch's default generator, as `torch.manual_seed` does."""
    return torch.default_generator


def _global_rng(*_: Any, **__: Any) -> np.random.Generator:
    """Return a generator that shares the state of NumPy's functions."""
    return np.random.Generator(np.random.mtrand.get_bit_generator())
