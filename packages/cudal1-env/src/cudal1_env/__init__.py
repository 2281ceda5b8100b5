"""Environment and judge. Importing this package registers `CudaL1-v0` and imports no torch.

>>> import gymnasium
>>> import cudal1_env
>>> gymnasium.spec("CudaL1-v0").nondeterministic
True
"""

from typing import TYPE_CHECKING, Any

from cudal1_data.lazy import lazily
from wrapt import when_imported

if TYPE_CHECKING:
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

__getattr__ = lazily(
    __name__,
    {
        "evaluate_answers": "cudal1_env.answers",
        "Archive": "cudal1_env.archive",
        "CudaOptEnv": "cudal1_env.env",
        **dict.fromkeys(
            (
                "EnvError",
                "MachineError",
                "RecordError",
                "SandboxError",
                "SettingsError",
                "TaskError",
                "WorkerLostError",
            ),
            "cudal1_env.errors",
        ),
        "Evaluator": "cudal1_env.evaluator",
        **dict.fromkeys(("Exemplar", "Exemplars"), "cudal1_env.exemplars"),
        "extract_source": "cudal1_env.extract",
        **dict.fromkeys(
            ("Evaluation", "Latency", "Machine", "OutputError", "Seconds", "Speedup", "Status"), "cudal1_env.records"
        ),
        "reward_of": "cudal1_env.reward",
        "SourceText": "cudal1_env.spaces",
        "CudaOptVectorEnv": "cudal1_env.vector",
    },
)


@when_imported("gymnasium")
def _register(gymnasium: Any) -> None:
    """Register the environment: now if gymnasium was imported before, else as soon as it is.

    Most commands need this package without gymnasium, whose import takes longer than the rest of `--help`.
    """
    gymnasium.register(
        id="CudaL1-v0",
        entry_point="cudal1_env.env:CudaOptEnv",
        vector_entry_point="cudal1_env.vector:CudaOptVectorEnv",
        nondeterministic=True,  # rewards are measured, so no two runs give the same
        disable_env_checker=True,  # after a first reset that fails, it loses the verdict of a step (gymnasium 1.4)
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
