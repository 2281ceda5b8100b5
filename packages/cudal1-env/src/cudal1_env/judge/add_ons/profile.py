"""Profile of a candidate, parsed from the answer of a worker that serves no other purpose."""

from __future__ import annotations

import math
from typing import Annotated

from cudal1_worker import protocol as wire
from pydantic import BaseModel, Field, ValidationError

from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.oracle.pool import Pool, private_seed
from cudal1_env.origin import origin_of, triton_names
from cudal1_env.records import Device, Kernel, Profile

_CALLS = 5
_TIMEOUT_S = 30.0
"""Limit for the profiled calls; the program has been called before, so only the profiler can make them this slow."""
_MIN_US = 1e-3
"""Total microseconds below which calls count as not measured; less than a clock cycle."""


_Name = Annotated[str, Field(strict=True, min_length=1, max_length=wire.MAX_KERNEL_NAME)]
_Time = Annotated[float, Field(strict=True, ge=0.0, lt=1e12, allow_inf_nan=False)]
_Count = Annotated[int, Field(strict=True, ge=1, lt=1 << 32)]


class _Told(BaseModel):
    """A worker's well-formed answer."""

    kernels: list[tuple[_Name, _Time, _Count]] = Field(max_length=wire.MAX_KERNELS)
    """Name, microseconds and launches over all calls."""
    rest_us: _Time
    """Microseconds of the kernels that are not listed."""


class OddProfileError(Exception):
    """The worker's answer is not a profile."""


def run_profile(arm: Arm, pool: Pool, source: str, device: Device) -> Profile:
    """Make untimed calls of an arm under the profiler.

    The program chooses the kernel names in its record, so the calls use inputs and weights private to this arm.

    Raises:
        OddProfileError: The worker's answer is an error or not a profile.
        Fault, Dead, Late, BadMessage: The worker fails.
    """
    inputs = pool.private_inputs()
    arm.construct(private_seed())
    arm.answers(inputs)
    arm.thaw()
    message = {"op": "profile", "calls": _CALLS, "slot": 0, "writable": False}
    answer = arm.worker.ask(message, timeout_s=_TIMEOUT_S)
    return parse_profile(answer, calls=_CALLS, source=source, device=device)


def parse_profile(answer: wire.Message, *, calls: int, source: str, device: Device) -> Profile:
    """Return the profile in a worker's answer.

    Raises:
        OddProfileError: The answer is an error or malformed.
    """
    if "error" in answer:
        text = answer.get("text")
        reason = _plain(text) if isinstance(text, str) else "no reason given"
        raise OddProfileError(f"the profiled call failed: {reason}")
    try:
        told = _Told.model_validate(answer)
    except ValidationError as error:
        raise OddProfileError(f"the worker's answer has {error.error_count()} faults") from None
    total_us = math.fsum([told.rest_us, *(took_us for _, took_us, _ in told.kernels)])
    if not told.kernels or total_us < _MIN_US:
        what = "kernel: CUPTI may be refused here" if device == "cuda" else "operator"
        raise OddProfileError(f"the profiler saw no {what}")
    triton = triton_names(source)
    kernels = [
        Kernel(
            name=_plain(name),
            origin=origin_of(name, triton),
            share=min(1.0, took_us / total_us),
            call_us=took_us / calls,
            launches=count / calls,
        )
        for name, took_us, count in told.kernels
    ]
    return Profile(
        kind="kernels" if device == "cuda" else "operators",
        call_us=total_us / calls,
        kernels=tuple(sorted(kernels, key=lambda kernel: -kernel.call_us)),
        rest_share=min(1.0, told.rest_us / total_us),
    )


def _plain(text: str) -> str:
    """Return at most 200 printable ASCII characters."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[: wire.MAX_KERNEL_NAME])
