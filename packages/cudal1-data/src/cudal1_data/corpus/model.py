"""A corpus pair: a task's reference, a program for it, and the verdicts on the program."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cudal1_data.corpus.old_names import renamed

Label = Literal[
    "correct", "syntax", "build", "runtime", "wrong-output", "contract", "timeout", "memory", "crash", "slow"
]
"""Expected result. `slow` is correct and takes several times as long; all but `correct` and `slow` fail."""

LABEL_STATUS: dict[Label, tuple[str, ...]] = {
    "correct": ("CORRECT",),
    "syntax": ("SYNTAX_ERROR",),
    "build": ("BUILD_ERROR",),
    "runtime": ("RUNTIME_ERROR",),
    "wrong-output": ("WRONG_OUTPUT",),
    "contract": ("WRONG_CONTRACT",),
    "timeout": ("TIMEOUT",),
    "memory": ("OUT_OF_MEMORY",),
    "crash": ("CRASH",),
    "slow": ("CORRECT",),
}
"""The verdicts that a label expects."""

NOISE = "UNSTABLE"
"""The verdict that neither confirms nor refutes a label: correct outputs, inconsistent timings."""

Key = tuple[str, str]
"""Unique key of a pair: hash of the reference, hash of the program."""


class Speedup(BaseModel):
    """Latency of a baseline over the program's latency, with its interval."""

    model_config = ConfigDict(frozen=True)

    baseline: str
    """Name of the baseline; `eager` for the unchanged reference."""
    low: float
    """Lower end of the interval."""
    point: float
    """Best estimate."""
    high: float
    """Upper end of the interval."""


class Figures(BaseModel):
    """The results of one evaluation: a short form of its record."""

    model_config = ConfigDict(frozen=True)

    record: str
    """Id of the evaluation."""
    status: str
    """Its verdict."""
    speedups: tuple[Speedup, ...] = ()
    """Speedups over `eager` first, then over the other measured baselines."""
    latency_ms: float | None = None
    """Time per call of the program; None if the record lacks it."""
    roofline_fraction: float | None = None
    """The judge's lower bound of the latency over `latency_ms`; None if unknown."""
    memory_bytes: int | None = None
    """Peak memory of the program's tensors; None if not measured."""
    precision: str
    """Required interval width: `training` or `report`."""
    device: str
    """`cpu` or `cuda`."""
    machine: str
    """Model of the processor or GPU."""
    created_at: str
    """UTC time, ISO 8601."""
    protocol: str
    """Version of the judge's protocol; do not compare figures of different versions."""

    def against(self, baseline: str) -> Speedup | None:
        """Return the speedup over a baseline; None if not measured."""
        return next((one for one in self.speedups if one.baseline == baseline), None)


class Pair(BaseModel):
    """A reference and a program for it."""

    model_config = ConfigDict(frozen=True)

    task: str
    """Task id."""
    family: str
    """Family or category of the task."""
    level: int
    """1 single operator, 2 fusion, 3 network."""
    split: str
    """The task's split: `train`, `validation` or `test`."""
    overlaps: str | None = None
    """KernelBench task with the same operators: not for training if KernelBench is the test."""
    reference: str
    """Text of the reference program at the program's size."""
    reference_sha256: str
    """Hash of the reference."""
    source: str
    """Text of the program."""
    source_sha256: str
    """Hash of the program."""
    backend: str
    """pytorch, triton, cuda-load-inline, cuda-nvrtc, torch-compile, or other."""
    techniques: tuple[str, ...]
    """Techniques of the program (`cudal1_data.techniques`)."""
    template: str = ""
    """Template that made the program; empty for a program that came with its record."""
    parameters: dict[str, int | str] = Field(default_factory=dict[str, int | str])
    """Parameters of the template."""
    label: Label
    """Expected result."""
    evaluations: tuple[Figures, ...] = ()
    """Evaluations, oldest first."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, given: Any) -> Any:
        return renamed(cast("dict[str, Any]", given)) if isinstance(given, dict) else given

    @property
    def key(self) -> Key:
        """The pair's unique key."""
        return self.reference_sha256, self.source_sha256

    def verdict(self, *devices: str) -> str | None:
        """Return the status of the latest evaluation on any of these devices, timing noise aside; None without one."""
        told = [one.status for one in self.evaluations if one.device in devices and one.status != NOISE]
        return told[-1] if told else None

    @property
    def verified(self) -> bool:
        """Whether the latest verdict on a GPU is CORRECT."""
        return self.verdict("cuda") == "CORRECT"

    @property
    def needs_gpu(self) -> bool:
        """Whether the program runs only on a GPU."""
        return self.backend in ("triton", "cuda-load-inline", "cuda-nvrtc") or "torch.cuda.CUDAGraph" in self.source

    @property
    def refuted(self) -> bool:
        """Whether the latest verdict contradicts the label.

        Timing noise does not count, nor do CPU verdicts on a program that needs a GPU.
        """
        verdict = self.verdict("cuda") if self.needs_gpu else self.verdict("cpu", "cuda")
        return verdict is not None and verdict not in LABEL_STATUS[self.label]

    @property
    def confirmed(self) -> bool:
        """Whether the verdicts match the label, including a failure's; a correct program needs one from a GPU."""
        return bool(self.evaluations) and not self.refuted and (self.label != "correct" or self.verified)

    def latest(self) -> Figures | None:
        """Return the latest GPU evaluation that found the program correct."""
        found = [one for one in self.evaluations if one.status == "CORRECT" and one.device == "cuda"]
        return found[-1] if found else None

    def best(self, baseline: str = "eager", device: str = "cuda") -> Speedup | None:
        """Return the speedup over a baseline from the latest CORRECT evaluation that has one on a device."""
        found = [one.against(baseline) for one in self.evaluations if one.status == "CORRECT" and one.device == device]
        return next((one for one in reversed(found) if one is not None), None)


_TOKEN = re.compile(r"\w+|[^\w\s]")


def token_count(text: str) -> int:
    """Return the number of words and signs in a program; tokenizers of language models count somewhat more.

    >>> token_count("x = torch.relu(y)")
    8
    """
    return len(_TOKEN.findall(text))


def label_of(statuses: Iterable[str]) -> Label:
    """Return the label of a program without a template, from all its verdicts: correct if any says so.

    >>> label_of(["WRONG_OUTPUT", "CORRECT"]), label_of(["CRASH"]), label_of(["UNSTABLE"])
    ('correct', 'crash', 'correct')
    """
    told = set(statuses) - {NOISE}
    if not told:
        return "correct"
    labels: list[Label] = [label for label, expected in LABEL_STATUS.items() if told & set(expected)]
    return labels[0] if labels else "runtime"
