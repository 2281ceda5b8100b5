"""Every exception that cudal1_agent raises.

```
AgentError                      anything below
|- ConfigError (ValueError)     settings that cannot be read, or contradict each other
|- RunError                     a run directory that cannot be begun, resumed or read
|- PolicyError                  a model or an endpoint that cannot be used
|- CorpusError                  a suite or corpus with nothing to train on
|- OptimizeError                a module that cannot be optimised
`- TimeIsUpError                the time limit of a training or a search is reached; it can be resumed
```
"""

from __future__ import annotations


class AgentError(Exception):
    """Base of all errors of this package."""


class ConfigError(AgentError, ValueError):
    """Settings that cannot be read, or contradict each other."""


class RunError(AgentError):
    """A run directory that cannot be begun, resumed or read."""


class PolicyError(AgentError):
    """A model or an endpoint that cannot be used."""


class CorpusError(AgentError):
    """A suite or corpus with nothing to train on."""


class OptimizeError(AgentError, ValueError):
    """A module that cannot be optimised, with the reason and what to do."""


class TimeIsUpError(AgentError):
    """The time limit of a training or a search is reached; it stopped where it can be resumed."""
