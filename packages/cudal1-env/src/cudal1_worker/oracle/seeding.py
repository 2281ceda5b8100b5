"""Disables a task's own seeding, so that its inputs come from the judge's secret seeds.

While a task's program is imported and while it draws inputs, seeding functions do nothing, and generators that it makes
are seeded here. A program that evades this draws the same values twice; the oracle compares two draws.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

_SEED = torch.Generator.manual_seed


class _Obedient(torch.Generator):
    """A generator that only `Seeds` seeds."""

    seeds: Seeds

    def __new__(cls, device: Any = "cpu") -> _Obedient:
        """Make a seeded generator."""
        made = super().__new__(cls, device)  # pyright: ignore[reportCallIssue]
        cls.seeds.adopt(_SEED, made)
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
        self._made: list[tuple[Callable[[Any, int], Any], weakref.ref[Any]]] = []
        self._numpy: Any = sys.modules.get("numpy")
        self._kind = type("Generator", (_Obedient,), {"seeds": self})
        self._state_kind: Any = None
        if self._numpy is not None:
            self._state_kind = type("RandomState", (self._numpy.random.RandomState,), {"seed": _nothing})
            self._seeds_state = self._numpy.random.RandomState.seed
            # NumPy's class supports no weak references; a subclass does.
            self._rng_kind: Any = type("Generator", (self._numpy.random.Generator,), {})

    def _number(self, place: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._seed}/{place}".encode()).digest()[:4], "little")

    def adopt(self, seeds: Callable[[Any, int], Any], one: Any) -> None:
        """Seed a generator now and at each `start`."""
        seeds(one, self._number(len(self._made)))
        self._made.append((seeds, weakref.ref(one)))

    def start(self, seed: int, device: torch.device) -> None:
        """Seed all generators: torch's (on CPU and device), Python's, NumPy's, and the program's own."""
        self._seed = seed
        self._made = [pair for pair in self._made if pair[1]() is not None]
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` formats a traceback for each other device
        if device.type == "cuda":
            index = torch.cuda.current_device()  # the first time, this makes the generators
            torch.cuda.default_generators[index].manual_seed(seed)
        random.seed(seed)
        if self._numpy is not None:
            self._numpy.random.seed(self._number(-1))
        for place, (seeds, one) in enumerate(self._made):
            seeds(one(), self._number(place))

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
        silent += [(random, "seed"), (random, "setstate")]
        found = [(owner, name, _nothing) for owner, name in silent]
        found += [(torch, "Generator", self._kind), (random, "Random", self._python)]
        if self._numpy is not None:
            numpy = self._numpy.random
            found += [(numpy, "seed", _nothing), (numpy, "set_state", _nothing)]
            found += [(numpy, "RandomState", self._state), (numpy, "default_rng", self._rng)]
        return found

    def _python(self, *_: Any) -> random.Random:
        one = _PythonRandom()
        self.adopt(_PythonRandom.begin, one)
        return one

    def _state(self, *_: Any, **__: Any) -> Any:
        one = self._state_kind()
        self.adopt(self._seeds_state, one)
        return one

    def _rng(self, *_: Any, **__: Any) -> Any:
        one = self._rng_kind(self._numpy.random.PCG64())

        def begin(generator: Any, seed: int) -> None:
            generator.bit_generator.state = self._numpy.random.PCG64(seed).state

        self.adopt(begin, one)
        return one


def _nothing(*_: Any, **__: Any) -> torch.Generator:
    """Seed nothing; return torch's default generator, as `torch.manual_seed` does."""
    return torch.default_generator


class _PythonRandom(random.Random):
    """Python's generator, which only `Seeds` seeds."""

    def seed(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def begin(self, seed: int) -> None:
        """Seed the generator."""
        super().seed(seed)
