"""The agent: a policy that writes programs, and the three stages of CUDA-L1 that improve it.

`cudal1_agent.train.train` runs a whole training, with `cudal1_agent.settings.Settings`. Importing this package
imports only its errors, so `cudal1-agent --help` is fast.
"""

from cudal1_agent.errors import AgentError, ConfigError, CorpusError, PolicyError, RunError

__all__ = ["AgentError", "ConfigError", "CorpusError", "PolicyError", "RunError"]
