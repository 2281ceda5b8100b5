"""The frozen record of a verdict: its fields, and how records are read.

The judge returns an `Evaluation`, the archive keeps it and the commands print it.
"""

from cudal1_env.records.evaluation import Evaluation, KernelBench, OutputError
from cudal1_env.records.machine import GpuState, Machine, Seconds
from cudal1_env.records.profile import Kernel, Origin, Profile
from cudal1_env.records.reading import read_record
from cudal1_env.records.speed import BaselineFault, Latency, Speedup, Strongest
from cudal1_env.records.values import PROTOCOL_VERSION, Device, NonNegative, Positive, Precision, Status

__all__ = [
    "PROTOCOL_VERSION",
    "BaselineFault",
    "Device",
    "Evaluation",
    "GpuState",
    "Kernel",
    "KernelBench",
    "Latency",
    "Machine",
    "NonNegative",
    "Origin",
    "OutputError",
    "Positive",
    "Precision",
    "Profile",
    "Seconds",
    "Speedup",
    "Status",
    "Strongest",
    "read_record",
]
