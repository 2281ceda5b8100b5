"""The trusted side of an evaluation: secrets, inputs, answers, clock, verdict. It never runs a program of anybody's."""

from cudal1_env.judge.judge import Judge
from cudal1_env.judge.settings import JudgeSettings

__all__ = ["Judge", "JudgeSettings"]
