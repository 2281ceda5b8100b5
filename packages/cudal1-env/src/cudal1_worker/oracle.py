"""The oracle: runs a task's reference in float64 and makes its inputs, in a sandbox of its own.

It gets single-use seeds from the judge and writes bytes into memory that the judge owns and copies. It sees no
candidate and no clock.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import random
import socket
import types
from collections.abc import Callable
from typing import Any

import torch

from cudal1_worker import distributions, layout
from cudal1_worker import protocol as wire
from cudal1_worker.arithmetic import allow_tf32
from cudal1_worker.arm import Failure, describe_error, execute, state_names
from cudal1_worker.faults import FaultyRuns
from cudal1_worker.matter import Variation
from cudal1_worker.own_error import in_parts, is_finite, most_of, read, report_of_any, report_of_finite

REFERENCE = "Model"

_CHANCE = 1e-5
"""Zeros of a parameter are its constructor's doing where chance makes as many with less than this probability."""


class Oracle:
    """State of one oracle between messages: the reference module, its weights, its models."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.module: types.ModuleType | None = None
        self.models: dict[str, tuple[Any, Any]] = {}
        self.entries: list[layout.Entry] = []
        self.written: tuple[list[layout.Entry], list[Any]] = ([], [])
        self.device = torch.device("cpu")
        self.block: torch.Tensor = torch.empty(0)
        self.memory: Any = None
        self.variation: Variation | None = None
        self.natures: list[distributions.Nature] | None = None
        """Of the inputs, once `describe` has seen some."""
        self.all_finite = True
        """Whether all outputs and answers seen so far are finite."""
        self.handlers: dict[str, Callable[[wire.Message, list[int]], wire.Message]] = {
            "build": self.build,
            "describe": self.describe,
            "state": self.state,
            "make": self.make,
            "block": self.use_block,
            "write": self.write,
            "held": self.held,
            "rest": self.rest,
            "vary": self.vary,
            "change": self.change,
        } | FaultyRuns(self).handlers()

    def serve(self) -> None:
        """Answer messages until the judge closes the channel."""
        while True:
            try:
                message, fds = wire.receive(self.channel)
            except wire.ChannelClosed:
                return
            try:
                answer = self.handlers[message["op"]](message, fds)
            except Exception as error:  # the task's fault: the judge turns it into a TaskError
                answer = describe_error(error)
            finally:
                for fd in fds:
                    os.close(fd)
            wire.send(self.channel, answer)

    def build(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Choose the device and import the reference program."""
        self.device = torch.device(message["device"])
        if self.device.type == "cuda":
            allow_tf32(message["tf32"])
        with os.fdopen(os.dup(fds[0]), "rb") as file:
            self.module = execute(file.read().decode(), REFERENCE)
        for name in ("get_inputs", "get_init_inputs"):
            if name not in self.module.__dict__:
                raise Failure("no_code", f"expected a task that defines `{name}`, found none")
        return {"ok": True}

    def fresh_model(self, seed: int) -> Any:
        """Make the reference model under a seed."""
        assert self.module is not None
        arguments = self.module.get_init_inputs()
        torch.manual_seed(seed)
        factory = getattr(self.module, REFERENCE)
        model = factory(**arguments) if isinstance(arguments, dict) else factory(*arguments)
        return model.to(self.device) if isinstance(model, torch.nn.Module) else model

    def seed(self, seed: int) -> None:
        """Do what `torch.manual_seed` does, for the device in use: for others it formats a traceback each time."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            index = torch.cuda.current_device()  # the first time, this makes the generators
            torch.cuda.default_generators[index].manual_seed(seed)

    def fresh_inputs(self, seed: int, distribution: str) -> list[Any]:
        """Call the task's `get_inputs` under a seed, then move its values to another distribution."""
        assert self.module is not None
        self.seed(seed)
        random.seed(seed)
        with contextlib.nullcontext() if self.device.type == "cpu" else self.device:  # drawn where they are needed
            values = list(self.module.get_inputs())
        values = [value.detach().to(self.device) if isinstance(value, torch.Tensor) else value for value in values]
        return distributions.transform(values, distribution, seed, self.natures)

    def describe(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Tell what the task's inputs, arguments, state and outputs look like, and whether it is random."""
        assert self.module is not None
        arguments = layout.encode(self.module.get_init_inputs())
        seed = message["seed"]
        self.models = {"seeded": self.pair(self.fresh_model(seed), self.fresh_model(seed))}
        plain = self.models["seeded"][0]
        values = self.fresh_inputs(seed, "own")
        self.entries, size = layout.manifest(values)
        # What two draws have in common: of a tensor of two elements one tells little.
        one = [distributions.nature_of(value) for value in values]
        other = [distributions.nature_of(value) for value in self.fresh_inputs(seed ^ 1, "own")]
        self.natures = [a & b for a, b in zip(one, other, strict=False)]
        before = self.most_allocated(again=True)
        first = self.run(plain, values)
        work = self.most_allocated() - before
        again = self.fresh_inputs(seed, "own")
        torch.manual_seed(seed + 1)  # another state of the generator: dropout and its like show
        second = self.run(plain, again)
        same = all(alike(a, b) for a, b in zip(first, second, strict=True))
        return {
            "arguments": arguments,
            "state": state_names(plain),
            "inputs": self.entries,
            "bytes": size,
            "work_bytes": work,
            "outputs": [
                {
                    "shape": list(out.shape),
                    "dtype": str(out.dtype).removeprefix("torch."),
                    "aliases": aliases(out, values),
                }
                for out in first
            ],
            "random": not same,
            "defaults": default_names(plain),
        }

    def state(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make non-default weights, which wait for `write`, and models that hold them."""
        plain, wide = self.fresh_model(message["seed"]), self.fresh_model(message["seed"])
        with torch.no_grad():
            parameters = {name for name, _ in plain.named_parameters()}
            values = distributions.non_default_state(plain.state_dict(), message["values_seed"], parameters=parameters)
            names = list(values)
            entries, size = layout.manifest([values[name] for name in names])
            self.written = (entries, [values[name] for name in names])
            for model in (plain, wide):
                state = model.state_dict()
                for name in names:
                    state[name].copy_(values[name])
        self.models["loaded"] = self.pair(plain, wide)
        return {"names": names, "entries": entries, "bytes": size}

    def pair(self, plain: Any, wide: Any) -> tuple[Any, Any]:
        """Return the model and its float64 twin.

        Tensors that a module holds beside its parameters and buffers, in plain attributes, become float64 with it.
        """
        if not isinstance(wide, torch.nn.Module):
            return plain, wide
        for module in wide.double().modules():
            for name, value in vars(module).items():
                if not name.startswith("_"):  # those are torch's own
                    vars(module)[name] = widened(value)
        return plain, wide

    def make(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make sets of inputs with their float64 answers, and write them into the judge's memory, one behind the other.

        Each set begins with its inputs; answers follow as float64 (integers as int64), in line. The answer says, for
        each set and output, `own_error.REPORTED`.
        """
        plain, wide = self.models[message["weights"]]
        found: list[torch.Tensor] = []
        largest: list[float] = []
        for number, one in enumerate(message["sets"]):
            values = self.fresh_inputs(one["seed"], one["distribution"])
            answers = self.exact(wide, values)
            entries, _ = layout.manifest(values)
            if entries != self.entries:
                raise Failure("task", "expected get_inputs() to return the same shapes, layouts and values each time")
            size = sum(8 * answer.numel() for answer in answers)
            if size != message["answer_bytes"]:
                raise Failure("task", "expected outputs of the same shapes on all inputs")
            begin = message["stride"] * number
            place = self.block[begin : begin + message["answers_at"] + size]
            self.store(place, entries, values, answers, message["answers_at"])
            # Behind the storing: a reference may write to its inputs.
            for answer, own in zip(answers, self.run(plain, values), strict=True):
                found.append(report_of_finite(own, answer) if self.all_finite else report_of_any(own, answer))
                largest.append(most_of(own.dtype))
        reports = read(found)
        if self.all_finite and not all(is_finite(one, most) for one, most in zip(reports, largest, strict=True)):
            self.all_finite = False  # from now on: others of this task will hardly be otherwise
            return self.make(message, fds)
        width = len(reports) // len(message["sets"])
        return {"reports": [reports[k : k + width] for k in range(0, len(reports), width)]}

    def store(
        self, place: torch.Tensor, entries: list[layout.Entry], values: list[Any], answers: list[torch.Tensor], at: int
    ) -> None:
        """Write tensors by their manifest, then answers in line from an offset on."""
        layout.store(place, entries, values)
        for answer in answers:
            if answer.numel():
                place[at : at + 8 * answer.numel()].view(answer.dtype).copy_(answer.contiguous().flatten())
            at += 8 * answer.numel()

    def use_block(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Map the judge's memory, into which `write` writes."""
        if self.device.type == "cuda":
            from cudal1_worker import vmm

            torch.cuda.synchronize()
            if self.memory is not None:
                self.memory.close()
            self.memory = vmm.Mapping.take(fds[0], message["bytes"], 0)
            self.block = self.memory.tensor()
        else:
            self.memory = mmap.mmap(fds[0], message["bytes"], flags=mmap.MAP_SHARED)
            self.block = torch.frombuffer(self.memory, dtype=torch.uint8)
        return {"ok": True}

    def write(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Write the weights that were made last, by their manifest."""
        layout.store(self.block, *self.written)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return {"ok": True}

    def rest(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Give memory back to the driver that torch only keeps: others need it now."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return {"ok": True}

    def held(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Tell how much of a GPU's memory this process holds."""
        return {"bytes": torch.cuda.memory_reserved() if self.device.type == "cuda" else 0}

    def vary(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make inputs of which single elements are to be changed, for the task gate."""
        wide = self.models[message["weights"]][1]
        first, *others = message["seeds"]
        self.variation = Variation(
            lambda changed: self.exact(wide, changed),
            self.fresh_inputs(first, "own"),
            (self.fresh_inputs(seed, "own") for seed in others),
        )
        return {"most": self.variation.most()}

    def change(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Tell whether the answer changes visibly with one element."""
        assert self.variation is not None, "vary first"
        return {"changes": self.variation.changes(message["tensor"], message["position"])}

    def most_allocated(self, *, again: bool = False) -> int:
        """Memory of a GPU that torch had given out at most, from the last call with `again` on."""
        if self.device.type == "cpu":
            return 0
        if again:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()

    def run(self, model: Any, values: list[Any]) -> list[torch.Tensor]:
        """Call a model once; return its output tensors."""
        with torch.no_grad():
            outputs = layout.flatten(model(*values))
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                raise Failure("task", f"expected tensors from Model.forward, got {type(output).__name__}")
        return outputs

    def exact(self, wide: Any, values: list[Any]) -> list[torch.Tensor]:
        """Call the float64 twin on the same values; return float64 (or int64) answers."""
        upcast = [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            outputs = self.run(wide, upcast)
        finally:
            torch.set_default_dtype(before)
        return [out.double() if out.is_floating_point() else out.to(torch.int64) for out in outputs]


def widened(value: Any) -> Any:
    """A floating-point tensor as float64, also in plain lists, tuples and dicts; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(widened(one) for one in value)
    if type(value) is dict:
        return {key: widened(one) for key, one in value.items()}
    return value


def default_names(model: Any) -> list[str]:
    """Names of what a constructor fills with a constant, and of parameters that it makes partly zero (an identity)."""
    if not isinstance(model, torch.nn.Module):
        return []
    parameters = {name for name, _ in model.named_parameters()}
    return [
        name
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.numel()
        and bool((value == value.flatten()[0]).all() or (name in parameters and partly_zero(value)))
    ]


def partly_zero(value: torch.Tensor) -> bool:
    """Whether more of a parameter is zero than chance would have it, an identity or a row of padding, say.

    `uniform_` draws one of 2 / eps numbers, of which zero may be one, so of n elements k are zero with a probability of
    at most (n eps / 2)^k / k! (Poisson).
    """
    zeros = int((value == 0).sum())
    expected = value.numel() * torch.finfo(value.dtype).eps / 2
    return zeros > 0 and zeros * math.log(expected) - math.lgamma(zeros + 1) < math.log(_CHANCE)


def alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two answers to the same question are the same up to rounding (sums in threads may differ in order)."""
    if first.shape != second.shape:
        return False
    largest = [part.double().nan_to_num().abs().max() for (part,) in in_parts(first)]
    if not largest:
        return True
    most_apart = 1e-3 * torch.stack(largest).max()
    apart = [(_apart(a, b) > most_apart).sum() for a, b in in_parts(first, second)]
    return bool(torch.stack(apart).sum() <= 1e-3 * first.numel())


def _apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double().nan_to_num() - b.double().nan_to_num()).abs()


def aliases(output: torch.Tensor, values: list[Any]) -> bool:
    """Whether an output lies in the memory of an input."""
    start = output.untyped_storage().data_ptr()
    return any(isinstance(v, torch.Tensor) and v.numel() and v.untyped_storage().data_ptr() == start for v in values)
