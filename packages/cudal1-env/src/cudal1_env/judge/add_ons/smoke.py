"""Smoke test: does a program run in the sandbox on the device, on the same path as every candidate?"""

from __future__ import annotations

from cudal1_worker.layout import encode

from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.oracle.client import IoSpec

_PROGRAM = """
import torch

class ModelNew:
    def __init__(self):
        ones = torch.ones(1024, device="{device}")
        if int((ones + ones).sum()) != 2048:
            raise RuntimeError("the sum of 1024 twos is not 2048")
"""


def why_no_program_runs(builder: Builder) -> str | None:
    """Import a program in a worker and construct its model: on a GPU in the judge's arena, with a kernel of its own.

    Args:
        builder: Forks the worker. Its device's lease is the caller's to see to.

    Returns:
        What went wrong, None if nothing did.
    """
    worker = builder.zygote.fork("arm", builder.spec(None, core=builder.core))
    io_spec = IoSpec(encode([]), (), [], 4096, ())
    arm = builder.arm(worker, io_spec, "ModelNew")
    try:
        arm.build(_PROGRAM.format(device=builder.device.name))
        arm.construct(0)
    except Fault as fault:
        return f"{fault.status}: {fault.message}"
    finally:
        arm.close()
    return None
