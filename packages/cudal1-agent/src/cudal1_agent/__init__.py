"""The agent: a policy that writes programs, and the three stages of CUDA-L1 that improve it.

Importing this package imports no torch; `cudal1_agent.train.train` runs a whole training.
"""

from cudal1_agent.errors import AgentError, ConfigError, CorpusError, PolicyError, RunError
from cudal1_agent.settings import Settings, load_settings

__all__ = ["AgentError", "ConfigError", "CorpusError", "PolicyError", "RunError", "Settings", "load_settings"]
