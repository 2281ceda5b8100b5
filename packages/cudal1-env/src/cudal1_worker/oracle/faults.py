"""Faulty programs: the reference with a fault in one step or one input. The task gate tests checkers with them.

Runs in the oracle. A dispatch mode sees every operator call of a forward pass, counts those that are steps, and carries
one of them out with a fault (`steps`). The same fault in the float64 twin, where nothing else errs, tells what it
changes by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker import protocol as wire
from cudal1_worker.oracle.models import Mode, copied
from cudal1_worker.oracle.steps import PARTS, Call
from cudal1_worker.program.arm import Failure, describe_error

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

MIN_SHARE = 0.01
"""A step counts if its largest operand has this share of the elements of the largest step's of its kind, at least."""
_REPLACED = ("zeros", "mean", "another draw")
"""Replacements for an input that the faulty program ignores."""


@dataclass
class Step:
    """One step of a forward pass: a call, or a chain of elementwise calls without another step in between."""

    name: str
    kind: str
    size: int
    """Elements of its largest operand."""
    dtype: torch.dtype
    shapes: list[list[int]]
    """Of its first call's operands."""
    faults: list[str]


class Counting(Mode):
    """Counts what runs within, and changes one of what it counts.

    Args:
        number: Of what to change; None for each.
        change: Carries a call out in another way; None to change nothing.
    """

    def __init__(self, number: int | None = None, change: Callable[[Call], Any] | None = None) -> None:
        super().__init__()
        self._number = number
        self._change = change

    def number_of(self, call: Call) -> int | None:
        """Count a call; return its number, or None where it does not count."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Carry out one operator call."""
        call = Call(func, args, kwargs or {})
        number = self.number_of(call)
        if number is None or self._change is None or self._number not in (None, number):
            return func(*args, **call.kwargs)
        return self._change(call)


class Injection(Counting):
    """Counts the steps of what runs within, and changes one; see `Counting`."""

    def __init__(self, step: int | None = None, change: Callable[[Call], Any] | None = None) -> None:
        super().__init__(step, change)
        self.steps: list[Step] = []

    def number_of(self, call: Call) -> int | None:
        """Count a step; elementwise calls behind each other are one."""
        if call.kind is None:
            return None
        last = self.steps[-1] if self.steps else None
        if last is not None and last.kind == call.kind == "elementwise":
            last.size = max(last.size, call.size)
        else:
            shapes = [list(one.shape) for one in call.operands]
            self.steps.append(Step(call.name, call.kind, call.size, call.dtype, shapes, call.faults()))
        return len(self.steps) - 1


class Watched:
    """Carries out calls with a fault, and notes whether that changed a result."""

    def __init__(self, fault: str) -> None:
        self.changed = False
        self._fault = fault

    def __call__(self, call: Call) -> Any:
        """Carry out one call."""
        if call.func._schema.is_mutable:  # cannot be carried out twice
            self.changed = True
            return call.with_fault(self._fault)
        plain, faulty = call.func(*call.args, **call.kwargs), call.with_fault(self._fault)
        first = [one[0] if isinstance(one, tuple) else one for one in (plain, faulty)]  # of attention, the output
        self.changed = self.changed or not torch.equal(first[0], first[1])
        return faulty


class FaultyRuns:
    """Runs faulty programs for the task gate."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._known: list[Step] = []
        """The reference's steps, in the order in which it takes them."""
        self._inputs: tuple[tuple[int, str], list[Any]] | None = None
        """The inputs that were asked for last, with their seed and distribution."""

    def handlers(self) -> dict[str, Callable[[wire.Message, list[int]], wire.Message]]:
        """Return the messages that this class answers, by name."""
        return {"steps": self.steps, "faulty": self.faulty, "changes": self.changes}

    def steps(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return the steps of the reference on one input set, and the faults that apply to each.

        Where it has products, nothing but these is worth a lower precision: other steps get faults in which they leave
        out terms only.
        """
        plain = self._oracle.models.plain
        values = self._values(message)
        with Injection() as counted:
            self._oracle.run(plain, values)
        self._known = counted.steps
        products = any(step.kind == "product" for step in self._known)
        largest: dict[str, int] = {}
        for step in self._known:
            largest[step.kind] = max(step.size, largest.get(step.kind, 0))

        def chosen(step: Step) -> list[str]:
            if step.size < MIN_SHARE * largest[step.kind]:
                return []
            return [name for name in step.faults if name in PARTS or step.kind == "product" or not products]

        return {
            "steps": [{"name": one.name, "shapes": one.shapes, "faults": chosen(one)} for one in self._known],
            "inputs": [_stand_ins(value) for value in values],
        }

    def faulty(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Run the reference, or its float64 twin, with a fault; write its outputs where answers lie.

        Keys of the message beside those of a set: `wide`, whether the twin runs; `fault`; `step`, the number of the
        step, or of the input; null for each step. A fault that cannot be carried out is reported with the reason: the
        program failed, the task did not.
        """
        oracle, fault, step = self._oracle, message["fault"], message["step"]
        plain, wide = oracle.models.plain, oracle.models.wide
        try:
            values = self._values(message)
            change = None
            if fault in _REPLACED:
                values[step] = self._instead(values[step], message)
            elif fault != "none":
                change = self._change(fault, step, wide=message["wide"])
            with Injection(step, change) as injection:
                outputs = oracle.exact(wide, values) if message["wide"] else oracle.run(plain, values)
            if message["wide"] and fault not in (*_REPLACED, "none"):
                taken, known = [[one.name for one in steps] for steps in (injection.steps, self._known)]
                if taken != known:
                    raise Failure(
                        "task",
                        "the reference takes other steps in float64 than in its own precision; faults need the same",
                    )
            answers = [out.double() if out.is_floating_point() else out.to(torch.int64) for out in outputs]
            if 8 * sum(answer.numel() for answer in answers) != message["answer_bytes"]:
                raise Failure(
                    "task", "the reference returns other shapes with a fault injected; every fault must keep them"
                )
            place = oracle.block[: message["answers_at"] + message["answer_bytes"]]
            oracle.store(place, [], [], answers, message["answers_at"])
            if oracle.device.type == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            return {"failed": describe_error(error)["text"]}
        return {"failed": ""}

    def changes(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return whether a fault changes its step's own result in the reference, and integer outputs depend on that.

        They depend on it if one is another where the step's result has the opposite sign.
        """
        plain, step, watched = self._oracle.models.plain, message["step"], Watched(message["fault"])
        with Injection(step, watched):
            own = self._oracle.run(plain, self._values(message))
        if not watched.changed:
            return {"changes": False}
        with Injection(step, _opposite):
            other = self._oracle.run(plain, self._values(message))
        pairs = zip(own, other, strict=True)
        return {"changes": any(not one.is_floating_point() and not torch.equal(one, two) for one, two in pairs)}

    def _change(self, fault: str, step: int | None, *, wide: bool) -> Callable[[Call], Any]:
        if not wide:
            return lambda call: call.with_fault(fault)
        assert step is not None, "each step at a time in the float64 twin"
        own = self._known[step].dtype
        return lambda call: call.in_precision(fault, own)

    def _values(self, message: wire.Message) -> list[Any]:
        """Inputs of a set; copies, because a reference may write to them."""
        key = message["seed"], message["distribution"]
        if self._inputs is None or self._inputs[0] != key:
            self._inputs = key, self._oracle.fresh_inputs(*key)
        return copied(self._inputs[1])

    def _instead(self, value: torch.Tensor, message: wire.Message) -> torch.Tensor:
        """Return the replacement for an ignored input."""
        if message["fault"] == "zeros":
            return torch.zeros_like(value)
        if message["fault"] == "mean":
            return torch.full_like(value, float(value.double().mean()))
        return self._oracle.fresh_inputs(message["seed"] ^ 1, message["distribution"])[message["step"]]


def _opposite(call: Call) -> Any:
    """Carry out a call; its result, or the first of several, has the opposite sign."""
    result = call.func(*call.args, **call.kwargs)
    first = result[0] if isinstance(result, tuple) else result
    first.neg_()
    return result


def _stand_ins(value: Any) -> list[str]:
    """Possible replacements for an input; integers and booleans (labels, masks, indices) have no mean."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return []
    return [name for name in _REPLACED if value.is_floating_point() or name != "mean"]
