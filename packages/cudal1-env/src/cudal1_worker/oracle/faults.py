"""Fault injection: the reference with a fault in one step. The task gate tests checkers with it.

A dispatch mode in the oracle sees every operator call of a forward pass, counts those that are steps, and executes one
of them with a fault (`steps`). The same fault in the float64 twin, which has no other error, shows the fault's effect
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from cudal1_worker import protocol as wire
from cudal1_worker.oracle.calls import Calls, tensors
from cudal1_worker.oracle.models import same_bits
from cudal1_worker.oracle.steps import Call
from cudal1_worker.program.module import Failure, describe_error

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

MIN_SHARE = 0.01
"""Minimum size of a step that counts, over the largest size of its kind."""


@dataclass
class Step:
    """One step of a forward pass: a call, or a chain of elementwise calls without another step in between."""

    name: str
    kind: str
    size: int
    """Number of elements of its largest operand."""
    dtype: torch.dtype
    shapes: list[list[int]]
    """Shapes of the first call's operands."""
    faults: list[str]


class Injection(Calls):
    """Counts steps and changes one; consecutive elementwise calls are one step.

    Args:
        step: Number of the step to change; None for each.
        change: Executes a changed call; None to change nothing.
    """

    def __init__(self, step: int | None = None, change: Callable[[Call], Any] | None = None) -> None:
        super().__init__(self._counted)
        self.steps: list[Step] = []
        self._step = step
        self._fault = change

    def _counted(self, call: Call) -> Any:
        if call.kind is not None:
            last = self.steps[-1] if self.steps else None
            if last is not None and last.kind == call.kind == "elementwise":
                last.size = max(last.size, call.size)
            else:
                shapes = [list(one.shape) for one in call.operands]
                self.steps.append(Step(call.name, call.kind, call.size, call.dtype, shapes, call.faults()))
            if self._fault is not None and self._step in (None, len(self.steps) - 1):
                return self._fault(call)
        return call.func(*call.args, **call.kwargs)


class Watched:
    """Executes calls in another way, and records whether a result changed.

    Args:
        run: Executes one call.
    """

    def __init__(self, run: Callable[[Call], Any]) -> None:
        self.changed = False
        self._run = run

    def __call__(self, call: Call) -> Any:
        """Execute one call."""
        args, kwargs = call.args, call.kwargs
        if call.func._schema.is_mutable:
            args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.clone, (args, kwargs))
        plain, faulty = call.func(*args, **kwargs), self._run(call)
        self.changed = self.changed or not all(map(same_bits, tensors(plain), tensors(faulty)))
        return faulty


class FaultyRuns:
    """Runs the reference with faults for the task gate."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._known: list[Step] = []
        """The reference's steps, in order."""

    def steps(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return the steps of the reference on one input set, with the faults for each.

        In a reference with products, only products get faults, because only they gain by lower precision.
        """
        values = self._values(message)
        with Injection() as counted:
            self._oracle.run(self._oracle.models.plain, values)
        self._known = counted.steps
        products = any(step.kind == "product" for step in self._known)
        largest: dict[str, int] = {}
        for step in self._known:
            largest[step.kind] = max(step.size, largest.get(step.kind, 0))

        def chosen(step: Step) -> list[str]:
            gains = step.kind == "product" or not products
            return step.faults if gains and step.size >= MIN_SHARE * largest[step.kind] else []

        return {"steps": [{"name": one.name, "shapes": one.shapes, "faults": chosen(one)} for one in self._known]}

    def faulty(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Run the reference, or its float64 twin, with a fault; write its outputs in the place of answers.

        Keys of the message in addition to those of a set: `wide`, whether the twin runs; `fault`; `step`, the number of
        the step, null for all steps. The reply has the reason of a fault that fails: the program failed, the task did
        not.
        """
        oracle, fault, step = self._oracle, message["fault"], message["step"]
        plain, wide = oracle.models.plain, oracle.models.wide
        try:
            values = self._values(message)
            change: Callable[[Call], Any] | None = None
            if message["wide"] and fault != "none":
                assert step is not None, "each step at a time in the float64 twin"
                change = partial(Call.in_precision, fault=fault, own=self._known[step].dtype)
            elif fault != "none":
                change = partial(Call.with_fault, fault=fault)
            with Injection(step, change) as injection:
                outputs = oracle.exact(wide, values) if message["wide"] else oracle.run(plain, values)
            if message["wide"] and fault != "none":
                taken, known = [[one.name for one in steps] for steps in (injection.steps, self._known)]
                if taken != known:
                    raise Failure(
                        "task",
                        "the reference takes other steps in float64 than in its own precision; they must be the same",
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
        """Return whether a fault changes its step's result in the reference, and integer outputs depend on that result.

        They depend on it if one changes when the sign of the step's result is inverted.
        """
        plain, step, fault = self._oracle.models.plain, message["step"], message["fault"]
        values = self._values(message)
        watched = Watched(lambda call: call.with_fault(fault))
        with Injection(step, watched):
            own = self._oracle.run(plain, values)
        if not watched.changed:
            return {"changes": False}
        with Injection(step, _opposite):
            other = self._oracle.run(plain, values)
        pairs = zip(own, other, strict=True)
        return {"changes": any(not one.is_floating_point() and not torch.equal(one, two) for one, two in pairs)}

    def _values(self, message: wire.Message) -> list[Any]:
        return self._oracle.fresh_inputs(message["seed"], message["distribution"])


def _opposite(call: Call) -> Any:
    """Execute a call and invert the sign of its (first) result."""
    result = call.func(*call.args, **call.kwargs)
    first = result[0] if isinstance(result, tuple) else result
    first.neg_()
    return result
