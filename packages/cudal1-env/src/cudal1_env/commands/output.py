"""Text output of the commands."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudal1_env.records import Evaluation, Profile

_SHOWN = 4
_LABELS = {"cublas": "cuBLAS", "cudnn": "cuDNN", "aten": "ATen", "triton": "Triton"}
_MAX_NAME = 40


def describe(evaluation: Evaluation) -> str:
    """Return a record as one line of text, without the control characters that a program may put into its message."""
    where = f" [{evaluation.task}]"
    times = ""
    if evaluation.reference is not None and evaluation.candidate is not None:
        times = f" ({evaluation.reference.median_ms:.3g} ms -> {evaluation.candidate.median_ms:.3g} ms)"
    return f"{evaluation.status}{where}: {plain(evaluation.message)}{times}"


def details(evaluation: Evaluation) -> list[str]:
    """Return the rest of a record as lines of text: reward, other baselines, KernelBench's rules, and the profile."""
    lines = _reward(evaluation)
    beside = [f"{name} {speedup}" for name, speedup in evaluation.speedups.items()]
    beside += [f"{name} failed ({fault.status})" for name, fault in evaluation.baselines_failed.items()]
    if evaluation.strongest is not None:
        strongest = evaluation.strongest
        beside.append(f"the strongest, {strongest.name}: {strongest.speedup}")
    if beside:
        lines.append(f"against {'; '.join(beside)}")
    if evaluation.kernelbench is not None:
        lines.append(
            f"by KernelBench's rules: {evaluation.kernelbench.status}: {plain(evaluation.kernelbench.message)}"
        )
    if evaluation.profile is not None:
        lines.append(profile_line(evaluation.profile))
    elif evaluation.profile_note:
        lines.append(plain(evaluation.profile_note))
    return lines


def _reward(evaluation: Evaluation) -> list[str]:
    """Return a line with the reward and what lowers it, if it is less than the interval's lower end."""
    from cudal1_env.reward import reward_of

    end = evaluation.speedup.low if evaluation.correct and evaluation.speedup is not None else 0.0
    paid = reward_of(evaluation)
    if end <= 1.0 or f"{paid:.3g}" == f"{end:.3g}":
        return []
    counts = "count as the program's time"
    why: list[str] = []
    if evaluation.rewarded_low == 1.0:
        why.append("calls are too short for more" if evaluation.too_short else "outputs may not show all work")
    else:
        if evaluation.stealable_ms:
            why.append(f"{1e3 * evaluation.stealable_ms:.1f} us of harness overhead {counts}")
        if (share := min(evaluation.reference_shares, default=1.0)) < 1.0:
            why.append(f"the reference alone took {share:.2g} of its time in pairs")
    if evaluation.constant_ms:
        why.append(f"{1e3 * evaluation.constant_ms:.1f} us for values that recur with other inputs {counts}")
    return [f"reward {paid:.3g}, not {end:.3g}: {'; '.join(why)}"]


def profile_line(profile: Profile) -> str:
    """Return a profile as one line: the largest shares with their origins and short names."""
    shown = [
        f"{100 * kernel.share:.0f} % {_LABELS.get(kernel.origin, kernel.origin)} {short_name(kernel.name)}"
        for kernel in profile.kernels[:_SHOWN]
    ]
    rest = profile.rest_share + sum(kernel.share for kernel in profile.kernels[_SHOWN:])
    if rest >= 0.005:
        shown.append(f"{100 * rest:.0f} % the rest")
    return f"profile: {', '.join(shown)}"


def short_name(name: str) -> str:
    """Return a kernel's name without result type, namespaces, template arguments and parameters.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)")
    'vectorized_elementwise_kernel'
    """
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", bare, maxsplit=1)[0].strip()
    return plain((head.rsplit("::", 1)[-1] or name)[:_MAX_NAME])


def plain(text: str) -> str:
    """Return text as one line without control characters."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def log(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)
