"""Adapters that give verdicts to other projects' trainers and benchmarks.

| module | for |
| --- | --- |
| `trl` | TRL's `GRPOTrainer`: a reward function, and an environment with a tool |
| `verifiers` | verifiers (v1): a taskset |
| `kernelbench` | KernelBench: a replacement of `eval_kernel_against_ref`, and files that its analysis reads |

Each uses an `Evaluator`: this machine's judge, or `RemoteEvaluator(url)`. None adds a dependency to this package.
"""

from __future__ import annotations

from cudal1_data import Task

from cudal1_env.evaluator import Evaluator
from cudal1_env.gate import find_audit
from cudal1_env.hardware import resolve_device
from cudal1_env.local import LocalEvaluator
from cudal1_env.remote import RemoteEvaluator

_evaluators: dict[tuple[str, str], LocalEvaluator | RemoteEvaluator] = {}

PROMPT = """\
Write a faster version of this PyTorch program: a class `ModelNew` with the constructor and the `forward` of `Model`, \
the same results and the same names of parameters and buffers. You may write CUDA, Triton or PyTorch. Answer with the \
whole program in one ```python block.

```python
{reference}```
"""


def prompt_of(task: Task) -> str:
    """Return a plain prompt for a task; write your own if the policy needs another."""
    return PROMPT.format(reference=task.source if task.source.endswith("\n") else f"{task.source}\n")


def shared_evaluator(url: str, suite: str = "") -> LocalEvaluator | RemoteEvaluator:
    """Return this process's evaluator for the URL of a service, or for this machine if `url` is empty.

    It has the audit of the suite, if one is named.
    """
    if (url, suite) not in _evaluators:
        evaluator = RemoteEvaluator(url) if url else LocalEvaluator(resolve_device("auto"))
        learn_audit(evaluator, suite)
        _evaluators[url, suite] = evaluator
    return _evaluators[url, suite]


def learn_audit(evaluator: Evaluator, suite: str) -> None:
    """Load a suite's own audit, if there is one, into an evaluator: tasks that it marks pay at most 1."""
    own = isinstance(evaluator, LocalEvaluator | RemoteEvaluator)
    device = evaluator.device if own else resolve_device("auto")
    if (audit := find_audit("auto", suite, device)) is not None:
        evaluator.learn(audit)
