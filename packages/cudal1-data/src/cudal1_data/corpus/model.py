"""A pair of a corpus: a task's reference and a program for it, with the verdicts on the program."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cudal1_data.corpus.old_names import renamed

Label = Literal[
    "correct", "syntax", "build", "runtime", "wrong-output", "contract", "timeout", "memory", "crash", "slow"
]
"""What a program is expected to be. `slow` gives correct answers and takes several times as long; the others fail."""

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
"""The verdict that neither confirms nor refutes a label: outputs were correct, but timings disagreed."""

Key = tuple[str, str]
"""Hash of the reference, hash of the program: what tells a pair from others."""


class Speedup(BaseModel):
    """Latency of a baseline over that of the program, with its interval."""

    model_config = ConfigDict(frozen=True)

    baseline: str
    """`eager` for the reference as it is."""
    low: float
    """Lower end of the interval."""
    point: float
    """Best estimate."""
    high: float
    """Upper end of the interval."""


class Figures(BaseModel):
    """What one evaluation found: the record in short."""

    model_config = ConfigDict(frozen=True)

    record: str
    """Id of the evaluation."""
    status: str
    """Its verdict."""
    speedups: tuple[Speedup, ...] = ()
    """Against `eager` first, then the other baselines that were measured."""
    latency_ms: float | None = None
    """Time of a call of the program; None where the record does not tell it."""
    roofline_fraction: float | None = None
    """Time that the task's bytes need at the GPU's bandwidth, over `latency_ms`; None where it is not known."""
    memory_bytes: int | None = None
    """Largest memory that the program's tensors took at once; None where it was not measured."""
    precision: str
    """`training` or `report`: how narrow the interval had to be."""
    device: str
    """`cpu` or `cuda`."""
    machine: str
    """Model of the processor or GPU."""
    created_at: str
    """UTC time, ISO 8601."""
    protocol: str
    """Version of the judge's protocol: figures of two versions do not compare."""

    def against(self, baseline: str) -> Speedup | None:
        """Return the speedup against a baseline, None where it was not measured."""
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
    """`train`, `validation` or `test`: the task's."""
    overlaps: str | None = None
    """Task of KernelBench with the same operators: not to be trained on where KernelBench is the test."""
    reference: str
    """The reference program at the size that the program is for."""
    reference_sha256: str
    """Its hash."""
    source: str
    """The program."""
    source_sha256: str
    """Its hash."""
    backend: str
    """pytorch, triton, cuda-load-inline, cuda-nvrtc, torch-compile; other for what none of them fits."""
    techniques: tuple[str, ...]
    """What it shows (`cudal1_data.techniques`)."""
    template: str = ""
    """What made it; empty for a program that came with its record."""
    parameters: dict[str, int | str] = Field(default_factory=dict[str, int | str])
    """What the template was given."""
    label: Label
    """What is expected of it."""
    evaluations: tuple[Figures, ...] = ()
    """What was found, oldest first."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, given: Any) -> Any:
        return renamed(cast("dict[str, Any]", given)) if isinstance(given, dict) else given

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.reference_sha256, self.source_sha256

    @property
    def verified(self) -> bool:
        """Whether a judge on a GPU found it correct."""
        return any(one.status == "CORRECT" and one.device == "cuda" for one in self.evaluations)

    @property
    def needs_gpu(self) -> bool:
        """Whether it can run on a GPU only."""
        return self.backend in ("triton", "cuda-load-inline", "cuda-nvrtc") or "torch.cuda.CUDAGraph" in self.source

    @property
    def refuted(self) -> bool:
        """Whether a judge found something else than its label says.

        Timing noise does not count, nor does what a CPU says of a program that needs a GPU.
        """
        told = [one for one in self.evaluations if one.device == "cuda" or not self.needs_gpu]
        return any(one.status not in (*LABEL_STATUS[self.label], NOISE) for one in told)

    @property
    def confirmed(self) -> bool:
        """Whether a judge found what its label says: also of a failure."""
        return bool(self.evaluations) and not self.refuted and (self.label != "correct" or self.verified)

    def latest(self) -> Figures | None:
        """Return the latest evaluation on a GPU that found it correct."""
        found = [one for one in self.evaluations if one.status == "CORRECT" and one.device == "cuda"]
        return found[-1] if found else None

    def best(self, baseline: str = "eager", device: str = "cuda") -> Speedup | None:
        """Return the speedup of the latest evaluation that has one on a device."""
        found = [one.against(baseline) for one in self.evaluations if one.status == "CORRECT" and one.device == device]
        return next((one for one in reversed(found) if one is not None), None)


_TOKEN = re.compile(r"\w+|[^\w\s]")


def token_count(text: str) -> int:
    """Return how many words and signs a program has; tokenizers of language models count somewhat more.

    >>> token_count("x = torch.relu(y)")
    8
    """
    return len(_TOKEN.findall(text))


def label_of(statuses: Iterable[str]) -> Label:
    """Return what a program without a template is expected to be, by all its verdicts: correct if any says so.

    >>> label_of(["WRONG_OUTPUT", "CORRECT"]), label_of(["CRASH"]), label_of(["UNSTABLE"])
    ('correct', 'crash', 'correct')
    """
    told = set(statuses) - {NOISE}
    if not told:
        return "correct"
    labels: list[Label] = [label for label, expected in LABEL_STATUS.items() if told & set(expected)]
    return labels[0] if labels else "runtime"
