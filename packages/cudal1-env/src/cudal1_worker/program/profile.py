"""Profiles calls: kernels by GPU time, or on a CPU operators by self time.

It runs in a separate worker, because the profiler (CUPTI) stays active in its process. The answer is untrusted: the
judge checks its form (`cudal1_env.judge.add_ons.profile`), and it does not affect the reward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from cudal1_worker import protocol as wire

OUTSIDE = "(no operator)"
"""Name for the time of a call outside operators: the program's own Python and compiled code."""


def profiled(call: Callable[[], Any], finish: Callable[[], None], *, calls: int, gpu: bool) -> wire.Message:
    """Make calls under the profiler.

    Args:
        call: Makes one call.
        finish: Waits until all work of the call has ended.
        calls: Number of calls.
        gpu: Whether to report GPU kernels; otherwise operators.

    Returns:
        `kernels`: `[name, microseconds, launches]` over all calls, longest first, at most `wire.MAX_KERNELS`;
        `rest_us`: microseconds of the remaining ones.
    """
    activity = ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU
    with torch.no_grad(), profile(activities=[activity]) as found:
        for _ in range(calls):
            with record_function(OUTSIDE):
                call()
            finish()
    times: dict[str, float] = {}
    launches: dict[str, int] = {}
    for event in found.events() or []:
        if gpu:
            if event.device_type != DeviceType.CUDA or event.is_user_annotation:
                continue
            took_us = event.time_range.elapsed_us()
        else:
            took_us = event.self_cpu_time_total
        name = event.name[: wire.MAX_KERNEL_NAME]
        times[name] = times.get(name, 0.0) + took_us
        launches[name] = launches.get(name, 0) + 1
    names = sorted(times, key=lambda name: -times[name])
    told, rest = names[: wire.MAX_KERNELS], names[wire.MAX_KERNELS :]
    return {
        "kernels": [[name, times[name], launches[name]] for name in told],
        "rest_us": sum(times[name] for name in rest),
    }
