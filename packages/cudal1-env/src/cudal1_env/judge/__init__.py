"""The trusted side of an evaluation: secrets, inputs, answers, clock, verdict. It never runs untrusted programs."""

from cudal1_env.judge.judge import Judge
from cudal1_env.judge.settings import JudgeSettings

__all__ = ["Judge", "JudgeSettings"]
