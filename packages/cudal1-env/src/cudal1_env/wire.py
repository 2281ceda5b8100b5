"""Bodies of requests and replies between the service and its clients: one frozen model each."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cudal1_env.records import Device, Evaluation, Precision

MAX_JOBS = 64
"""Most jobs in one request."""
MAX_WAIT_S = 30.0
"""Longest time that a request may wait for its verdicts; to wait longer, post it again."""


def _in_utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("UTF-8 cannot encode lone surrogates; replace them with question marks") from error
    return text


Text = Annotated[str, AfterValidator(_in_utf8)]


class Order(BaseModel):
    """One job: a program to judge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Text = Field(min_length=1, max_length=256)
    """Task id."""
    reference_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the client's reference (`cudal1_data.hashes.digest`)."""
    reference: Text | None = None
    """Text of the reference, for a service that accepts its clients' tasks."""
    program: Text
    """The candidate's text."""
    precision: Precision = "training"
    """How narrow the interval must be."""
    salt: Text = Field(default="", max_length=128)
    """A different salt requests a new verdict on the same program."""


class Orders(BaseModel):
    """Body of `POST /v1/verdicts`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jobs: tuple[Order, ...] = Field(min_length=1, max_length=MAX_JOBS)
    """What to judge."""
    wait_s: float = Field(default=0.0, ge=0.0, le=MAX_WAIT_S)
    """How long the reply may wait for verdicts."""


class Outcome(BaseModel):
    """Current outcome of one job."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    kind: Literal["verdict", "refused", "broken", "pending"]
    """`refused`: the task cannot be judged; `broken`: the machine broke, post the job again later; `pending`: post the
    same job again to wait for it."""
    record: Evaluation | None = None
    """The verdict."""
    message: str = ""
    """Why there is no verdict, as a sentence."""

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if (self.kind == "verdict") != (self.record is not None):
            raise ValueError(f"expected a record with a verdict and nothing else, got {self.kind}")
        return self


class Outcomes(BaseModel):
    """Reply to `Orders`."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    outcomes: tuple[Outcome, ...]
    """An outcome for each job, in order."""


class Refusal(BaseModel):
    """Reply to a rejected request."""

    model_config = ConfigDict(frozen=True)

    error: str
    """Short name of the reason."""
    message: str
    """The reason as a sentence."""


class About(BaseModel):
    """Reply to `GET /health`: whether the service works, and what a client needs to know."""

    model_config = ConfigDict(frozen=True)

    state: Literal["ok", "degraded", "broken", "stopping"]
    """`degraded`: some judges are out of service, or the store is broken; `broken`: no judge is in service."""
    messages: tuple[str, ...] = ()
    """What is wrong, one sentence each."""
    protocol: str
    """Version of the judge's protocol."""
    device: Device
    """Kind of device."""
    model: str
    """CPU or GPU model of every judge."""
    judges: int
    """Judges in service."""
    allow_tasks: bool
    """Whether clients may send their own tasks."""
    max_body_bytes: int
    """Maximum size of a request's body."""


class Commitments(BaseModel):
    """Body of `POST /v1/seeds`; the reply maps each commitment whose pool has retired to its seed (hex)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    commitments: tuple[Text, ...] = Field(max_length=4096)
    """Seed commitments of records."""
