"""Environment and judge. Importing this package registers `CudaL1-v0` and imports no torch.

>>> import gymnasium
>>> import cudal1_env
>>> gymnasium.spec("CudaL1-v0").nondeterministic
True
"""

import gymnasium

from cudal1_env.answers import evaluate_answers
from cudal1_env.archive import Archive
from cudal1_env.env import CudaOptEnv
from cudal1_env.errors import (
    EnvError,
    MachineError,
    RecordError,
    SandboxError,
    SettingsError,
    TaskError,
    WorkerLostError,
)
from cudal1_env.evaluator import Evaluator
from cudal1_env.exemplars import Exemplar, Exemplars
from cudal1_env.extract import extract_source
from cudal1_env.records import Evaluation, Latency, Machine, OutputError, Seconds, Speedup, Status
from cudal1_env.reward import reward_of
from cudal1_env.spaces import SourceText
from cudal1_env.vector import CudaOptVectorEnv

# Rewards are measured, so no two runs give the same.
gymnasium.register(  # pyright: ignore[reportUnknownMemberType]  # annotated in part
    id="CudaL1-v0",
    entry_point="cudal1_env.env:CudaOptEnv",
    vector_entry_point="cudal1_env.vector:CudaOptVectorEnv",
    nondeterministic=True,
)

__all__ = [
    "Archive",
    "CudaOptEnv",
    "CudaOptVectorEnv",
    "EnvError",
    "Evaluation",
    "Evaluator",
    "Exemplar",
    "Exemplars",
    "Latency",
    "Machine",
    "MachineError",
    "OutputError",
    "RecordError",
    "SandboxError",
    "Seconds",
    "SettingsError",
    "SourceText",
    "Speedup",
    "Status",
    "TaskError",
    "WorkerLostError",
    "evaluate_answers",
    "extract_source",
    "reward_of",
]
