"""The oracle: runs a task's reference in float64 and makes its inputs, in a separate sandbox.

It gets single-use seeds from the judge and writes bytes into memory that the judge owns and copies. It has no access to
candidates or to a clock.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.jit import _state as scripts

from cudal1_worker import layout
from cudal1_worker import protocol as wire
from cudal1_worker.arithmetic import allow_tf32
from cudal1_worker.oracle import distributions, inputs
from cudal1_worker.oracle.calls import Calls
from cudal1_worker.oracle.description import describe
from cudal1_worker.oracle.faults import FaultyRuns
from cudal1_worker.oracle.models import Models, Widened, as_dtype
from cudal1_worker.oracle.recurrence import recurrence
from cudal1_worker.oracle.reference_error import error_of, moved_by, read, report, second_values
from cudal1_worker.oracle.seeding import Seeds
from cudal1_worker.oracle.sensitivity import Variation
from cudal1_worker.oracle.steps import RUNNING, Call
from cudal1_worker.oracle.tolerance import (
    PLACES,
    Blocks,
    Draw,
    Limits,
    Profile,
    Seen,
    bulk,
    bulk_allowed,
    enough,
    expected,
)
from cudal1_worker.oracle.unrounded import Unrounded
from cudal1_worker.oracle.unseen import Unseen
from cudal1_worker.program import state
from cudal1_worker.program.module import Failure, describe_error, execute

REFERENCE = "Model"
_AGAIN, _AGAIN_HALF = 3, 16
"""Runs on perturbed inputs. All three errors are below a thirtieth of the usual one once in 50,000 times. In half
precision a tolerance is 6 errors, not 400: all 16 are below a half of the usual one once in 5 million times."""
_ROUNDINGS, _MOVES = 0x20BAD, 0x5EED
"""Makes the seed of perturbations differ from that of inputs. From one stream they would correlate with the inputs, and
their effect on a sum would grow with its number of terms, not with the square root."""


class Oracle:
    """State of one oracle between messages: the reference module, its weights, its models."""

    widened: Widened | None = None
    """After `describe` None unless the reference requests float32, because operators take longer in the mode."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.module: types.ModuleType | None = None
        self.widened = Widened()
        self.models = Models(None, None, None)
        """The reference and its twins; after `state`, with the judge's weights."""
        self.profiles: list[Profile | None] = []
        """One per output; None for integer outputs."""
        self.double = False
        """Whether any output is float64."""
        self.scans = False
        """Whether the reference's source names a running sum or product."""
        self.limits: list[Limits] = []
        """One per output."""
        self.seeds = Seeds()
        self.entries: list[layout.Entry] = []
        self.written: tuple[list[layout.Entry], list[Any]] = ([], [])
        self.device = torch.device("cpu")
        self.block: torch.Tensor = torch.empty(0)
        self.memory: Any = None
        self.variation: Variation | None = None
        self.natures: list[distributions.Nature] | None = None
        """One per input, set by `describe`."""
        faulty = FaultyRuns(self)
        self.handlers: dict[str, Callable[[wire.Message, list[int]], wire.Message | None]] = {
            "build": self.build,
            "describe": partial(describe, self),
            "state": self.state,
            "fingerprints": self.fingerprints,
            "probe": self.probe,
            "make": self.make,
            "draw": self.draw,
            "block": self.use_block,
            "write": self.write,
            "rest": self.rest,
            "vary": self.vary,
            "change": self.change,
            "unseen": Unseen(self).unseen,
            "recurrence": partial(recurrence, self),
            "steps": faulty.steps,
            "faulty": faulty.faulty,
            "changes": faulty.changes,
        }

    def serve(self) -> None:
        """Answer messages until the judge closes the channel."""
        wire.serve(self.channel, self.handlers, describe_error)

    def build(self, message: wire.Message, fds: list[int]) -> None:
        """Choose the device and import the reference program."""
        self.device = torch.device(message["device"])
        if self.device.type == "cuda":
            allow_tf32(message["tf32"])
        # Otherwise an attention layer may be one operator, which rounds inside, where no mode sees it.
        torch.backends.mha.set_fastpath_enabled(False)
        # No mode sees inside a script, and autograd does not see inside inference mode.
        scripts.disable()
        torch._C._InferenceMode = lambda on: torch.no_grad() if on else contextlib.nullcontext()
        with os.fdopen(os.dup(fds[0]), "rb") as file, self.seeds.only():
            text = file.read().decode()
            self.module = execute(text, REFERENCE)
        self.scans = any(name in text for name in RUNNING)
        for name in ("get_inputs", "get_init_inputs"):
            if name not in self.module.__dict__:
                raise Failure(
                    "no_code", f"the task defines no `{name}`; every task defines Model, get_inputs and get_init_inputs"
                )

    def fresh_model(self, seed: int) -> Any:
        """Make the reference model under a seed."""
        assert self.module is not None
        arguments = self.module.get_init_inputs()
        torch.manual_seed(seed)
        factory = getattr(self.module, REFERENCE)
        model = factory(**arguments) if isinstance(arguments, dict) else factory(*arguments)
        return model.to(self.device) if isinstance(model, torch.nn.Module) else model

    def fresh_inputs(self, seed: int, distribution: str) -> list[Any]:
        """Call the task's `get_inputs` under a seed, then move its values to another distribution."""
        assert self.module is not None
        self.seeds.start(seed, self.device)
        # Draw on the device that needs them.
        with self.seeds.only(), contextlib.nullcontext() if self.device.type == "cpu" else self.device:
            found = self.module.get_inputs()
        if isinstance(found, torch.Tensor):
            raise Failure("task", "get_inputs() returns a tensor; return a list of inputs, such as [x]")
        values = list(found)
        if (place := inputs.nested(values)) is not None:
            raise Failure(
                "task",
                f"input {place} of get_inputs() is a {type(values[place]).__name__} with tensors; return each tensor "
                "as an input of its own",
            )
        values = [value.detach().to(self.device) if isinstance(value, torch.Tensor) else value for value in values]
        return distributions.transform(values, distribution, seed, self.natures)

    def state(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make models with non-default weights; `write` writes the weights."""
        models = [self.fresh_model(message["seed"]) for _ in range(2 + self.double)]
        with torch.no_grad():
            parameters = {
                name for name, value in state.tensors(models[0]).items() if isinstance(value, torch.nn.Parameter)
            }
            held = models[0].state_dict()
            # Another seed shows which buffers have structure. Making a large model takes seconds.
            other = held if held.keys() <= parameters else self.fresh_model(message["seed"] ^ 1).state_dict()
            values = distributions.non_default_state(held, message["values_seed"], parameters=parameters, other=other)
            for model in models:
                held = model.state_dict()
                for name, value in values.items():
                    held[name].copy_(value)
            values = {
                name: value.clone() for name, value in models[0].state_dict().items() if name in values
            }  # tied tensors share one value
            entries, size = layout.manifest(list(values.values()))
            self.written = (entries, list(values.values()))
        self.models = self.trio(models)
        return {"names": list(values), "entries": entries, "size_bytes": size}

    def fingerprints(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make the reference model under a seed, and answer with hashes of its state."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in an arm: a product's last digits may depend on the number of threads
        try:
            model = self.fresh_model(message["seed"])
        finally:
            torch.set_num_threads(threads)
        return {"fingerprints": state.fingerprints(model, list(state.tensors(model)))}

    def trio(self, models: list[Any]) -> Models:
        """Convert identical models to the reference, its float64 twin and, for float64 outputs, its float32 twin.

        Tensors in plain attributes of a module, outside its parameters and buffers, are converted, too.
        """
        plain, wide, *rest = models
        return Models(plain, as_dtype(wide, torch.float64), as_dtype(rest[0], torch.float32) if rest else None)

    def probe(self, message: wire.Message, fds: list[int]) -> None:
        """Estimate the reference's typical errors, by place and magnitude, on several sets of the task's own inputs.

        `limits` are the fields of `tolerance.Limits` for each output. `tolerance.enough` determines how many of the
        `seeds` are used.
        """
        self.limits = [Limits(*one) for one in message["limits"]]
        draws: dict[int, list[Draw]] = {}
        shapes: list[tuple[int, ...]] = []
        for number, seed in enumerate(message["seeds"]):
            if number >= enough([Blocks(shapes[k]).width for k in draws]) and number:
                break
            shapes, drawn = self.drawn(seed, message["answer_bytes"])
            for k, one in drawn.items():
                draws.setdefault(k, []).append(one)
        self.profiles = [
            Profile(shape, draws[k], largest=self.limits[k].largest) if k in draws else None
            for k, shape in enumerate(shapes)
        ]

    def drawn(self, seed: int, answer_bytes: int) -> tuple[list[tuple[int, ...]], dict[int, Draw]]:
        """Return the outputs' shapes, and magnitudes and errors of each that is not of integers, on a set of inputs.

        Answers and errors take four times as much memory as a float32 output, so that no two sets' exist at a time.
        """
        values = self.fresh_inputs(seed, "own")
        answers = self.exact(self.models.wide, values)
        self.check_answers(answers, answer_bytes)
        errors = self.errors(self.models, values, answers)[1]
        pairs = enumerate(zip(answers, errors, strict=True))
        drawn = {k: Draw.of(one.reshape(-1), error) for k, (one, error) in pairs if one.is_floating_point()}
        return [tuple(one.shape) for one in answers], drawn

    def errors(
        self, models: Models, values: list[Any], answers: list[torch.Tensor], draws: torch.Generator | None = None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the outputs of the reference and the error of each element, flat; of half precision, before rounding.

        With `draws`, the reference rounds half precision at random (`Unrounded`).

        A float64 output has no more precise answer to compare with. Its error is estimated as the error in float32
        divided by 2 ** 29: to first order, float32's roundings are the same but larger by this factor (Higham 2002,
        chapter 2).
        """
        if not self.double:
            half = any(limits.largest for limits in self.limits)
            with Unrounded(draws) if half else contextlib.nullcontext() as mode:
                found = self.run(models.plain, values)
            errors = [error_of(one, answer) for one, answer in zip(found, answers, strict=True)]
            if mode:
                errors = list(map(mode.error, found, answers, errors))
            if not self.scans:
                return found, errors
            others = map(error_of, self.scanned_by_doubling(values), answers)
            return found, [torch.maximum(one, other) for one, other in zip(errors, others, strict=True)]
        found = self.run(models.plain, values)
        narrow = [as_dtype(value, torch.float32) for value in values]
        exact = self.exact(models.wide, narrow)
        rough = self.run(models.narrow, narrow)
        result: list[torch.Tensor] = []
        for k, (one, answer) in enumerate(zip(found, answers, strict=True)):
            if one.dtype != torch.float64:
                result.append(error_of(one, answer))
                continue
            if rough[k].dtype == torch.float64:
                raise Failure(
                    "task",
                    f"output {k} is float64 even for float32 inputs, so that its rounding error cannot be measured; "
                    "compute in the inputs' dtype, or return float32",
                )
            result.append(error_of(rough[k], exact[k]).mul_(2.0**-29))
        return found, result

    def scanned_by_doubling(self, values: list[Any]) -> list[torch.Tensor]:
        """Return the reference's outputs with float32 running sums and products accumulated in float32.

        On a CPU torch accumulates them in float64, which underestimates a program's error.
        """

        def change(call: Call) -> Any:
            scans = call.kind == "reduction" and call.name in RUNNING
            own = scans and call.dtype == torch.float32 and not call.func._schema.is_mutable
            return call.by_doubling() if own else call.func(*call.args, **call.kwargs)

        with Calls(change):
            return self.run(self.models.plain, values)

    def nearby(
        self, values: list[Any], answers: list[torch.Tensor], seed: int, allowed: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor], list[list[float]]]:
        """Return the expected error of each element, flat, from slightly perturbed inputs.

        It is the maximum of `tolerance.expected` over `_AGAIN` or `_AGAIN_HALF` perturbed sets; zero for integer
        outputs, and for all outputs if any is float64.

        Args:
            values: The inputs; not changed.
            answers: Their answers.
            seed: Of the perturbations.
            allowed: Tolerances without these errors, flat; None for outputs whose `tolerance.bulk` is not wanted.

        Returns:
            The errors, and for each output its `bulk` on each set; empty if not wanted.
        """
        result = [torch.zeros_like(answer, dtype=torch.float64).reshape(-1) for answer in answers]
        bulks: list[list[float]] = [[] for _ in answers]
        if self.double or not any(answer.is_floating_point() for answer in answers):
            return result, bulks
        draws = torch.Generator(self.device).manual_seed(seed ^ _ROUNDINGS)
        for number in range(_AGAIN_HALF if any(limits.largest for limits in self.limits) else _AGAIN):
            moved = self.moved(values, seed + number, PLACES, own=True)
            pairs = zip(moved, values, strict=True)
            moved = [one.to(v.dtype) if isinstance(v, torch.Tensor) else v for one, v in pairs]
            right = self.exact(self.models.wide, moved)
            found, errors = self.errors(self.models, moved, right, draws)
            for k, error in enumerate(errors):
                if answers[k].is_floating_point():
                    change, answer = error_of(right[k], answers[k]), answers[k].reshape(-1)
                    torch.maximum(result[k], expected(error, change, answer, self.limits[k]), out=result[k])
                if (by := allowed[k]) is not None:
                    bulks[k].append(bulk(error_of(found[k], right[k]), by))
        return result, bulks

    def check_inputs(self, values: list[Any]) -> None:
        """Refuse a task whose inputs differ in shape or layout from those of `describe`."""
        if layout.manifest(values)[0] != self.entries:
            raise Failure(
                "task", "get_inputs() must return the same shapes, layouts and non-tensor values in each call"
            )

    def check_answers(self, answers: list[torch.Tensor], size: int) -> None:
        """Refuse a task whose outputs differ in size on these inputs."""
        if sum(8 * answer.numel() for answer in answers) != size:
            raise Failure(
                "task",
                "output shapes depend on the values of the inputs; they must be the same for every input set",
            )

    def draw(self, message: wire.Message, fds: list[int]) -> None:
        """Write a set of inputs into the judge's memory."""
        values = self.fresh_inputs(message["seed"], "own")
        self.check_inputs(values)
        layout.store(self.block, self.entries, values)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def make(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make sets of inputs with their answers and tolerances in the judge's memory, one after another.

        A set consists of its inputs, the answers as float64 (integers as int64), and for each output the tolerances of
        its elements (for integers, the second accepted values): of all elements, or of those at the `positions`. Errors
        on moved inputs count if `nearby`; they take 3 or 16 times as long as the rest. The reply has
        `reference_error.REPORTED` for each set and output, and the largest `tolerance.bulk` of whole outputs in half
        precision (None for others).
        """
        models = self.models
        found: list[torch.Tensor] = []
        bulks: list[list[float | None]] = []
        for number, one in enumerate(message["sets"]):
            values = self.fresh_inputs(one["seed"], one["distribution"])
            answers = self.exact(models.wide, values)
            self.check_inputs(values)
            self.check_answers(answers, message["answer_bytes"])
            begin, at = message["stride"] * number, message["answers_at"]
            place = self.block[begin : begin + message["stride"]]
            self.store(place, self.entries, values, answers, at)
            own, errors = self.errors(models, values, answers)
            place = place[at + message["answer_bytes"] :]
            limits = self.allow(place, one, values, own, answers, errors, None)
            nearby, at_random = self.nearby(values, answers, one["seed"], limits) if one["nearby"] else (None, None)
            bulks.append(self.allowed_bulks(own, answers, limits, at_random))
            if nearby is not None:
                self.allow(place, one, values, own, answers, errors, nearby)  # over `limits`
            for mine, answer, error in zip(own, answers, errors, strict=True):
                found.append(report(mine.reshape(-1), answer.reshape(-1), error))
        reports = iter(read(found))
        return {"reports": [[next(reports) | {"bulk": most} for most in one] for one in bulks]}

    def allowed_bulks(
        self,
        own: list[torch.Tensor],
        answers: list[torch.Tensor],
        limits: Sequence[torch.Tensor | None],
        at_random: Sequence[Sequence[float]] | None = None,
    ) -> list[float | None]:
        """Return `tolerance.bulk_allowed` of each output; None where `limits` has None."""
        found: list[float | None] = []
        for k, (one, answer, allowed) in enumerate(zip(own, answers, limits, strict=True)):
            known = at_random[k] if at_random else ()
            found.append(None if allowed is None else bulk_allowed(bulk(error_of(one, answer), allowed), known))
        return found

    def allow(
        self,
        place: torch.Tensor,
        one: dict[str, Any],
        values: list[Any],
        own: list[torch.Tensor],
        answers: list[torch.Tensor],
        errors: list[torch.Tensor],
        nearby: list[torch.Tensor] | None,
    ) -> list[torch.Tensor | None]:
        """Write the tolerance of each element, or for integers the second accepted value.

        Returns:
            What was written for whole outputs in half precision; None for others.
        """
        whole = one["whole"]
        integers = [k for k, answer in enumerate(answers) if not answer.is_floating_point()]

        def moved(sign: float) -> list[torch.Tensor]:
            """Return the answers of integer outputs for inputs perturbed by about a rounding error."""
            places = sign * self.limits[integers[0]].factor
            found = self.exact(self.models.wide, self.moved(values, one["seed"], places))
            return [found[k] for k in integers]

        seconds = second_values(
            [own[k] for k in integers], [answers[k] for k in integers], moved if whole and integers else None
        )
        second = dict(zip(integers, seconds, strict=True))
        at = 0
        written: list[torch.Tensor | None] = []
        for k, (answer, positions) in enumerate(zip(answers, one["positions"], strict=True)):
            profile = self.profiles[k]
            seen = Seen(answer.reshape(-1), errors[k], None if nearby is None else nearby[k])
            if profile is not None and own[k].dtype != torch.float64:
                seen = seen.rounded()
            dtype = torch.int64 if profile is None else own[k].dtype
            kind = dtype if dtype in (torch.int64, torch.float64) else torch.float32
            count = answer.numel() if whole else len(positions)
            size = count * kind.itemsize
            out = place[at : at + size].view(kind)
            at += size + (-size) % 8
            written.append(out if whole and self.limits[k].largest else None)
            if not count:
                continue
            chosen = torch.tensor(positions, device=answer.device) if not whole else None
            if profile is None:
                out.copy_(second[k].reshape(-1) if chosen is None else second[k].reshape(-1)[chosen])
            elif chosen is None:
                profile.of_all(out, seen, self.limits[k])
            else:
                out.copy_(profile.of_positions(chosen, seen, self.limits[k]))
        return written

    def moved(self, values: list[Any], seed: int, places: float, *, own: bool = False) -> list[Any]:
        """Return inputs with each element of movable tensors changed by up to `places` units in the last place.

        Changed tensors are float64. For half precision the unit is float32's, unless `own`.
        """
        generator = torch.Generator(self.device).manual_seed(seed ^ _MOVES)
        pairs = zip(values, self.natures or [], strict=True)
        return [moved_by(value, places, generator, own=own) if nature.movable else value for value, nature in pairs]

    def store(
        self, place: torch.Tensor, entries: list[layout.Entry], values: list[Any], answers: list[torch.Tensor], at: int
    ) -> None:
        """Write tensors by their manifest, then answers one after another from offset `at`."""
        layout.store(place, entries, values)
        for answer in answers:
            if answer.numel():
                place[at : at + 8 * answer.numel()].view(answer.dtype).copy_(answer.contiguous().flatten())
            at += 8 * answer.numel()

    def use_block(self, message: wire.Message, fds: list[int]) -> None:
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

    def write(self, message: wire.Message, fds: list[int]) -> None:
        """Write the latest weights by their manifest."""
        layout.store(self.block, *self.written)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def rest(self, message: wire.Message, fds: list[int]) -> None:
        """Return cached memory to the driver, because other processes need it."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def vary(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make the inputs for measuring input sensitivity; `change` then changes single elements."""
        wide = self.models.wide
        first, *others = message["seeds"]
        self.variation = Variation(
            lambda changed: self.exact(wide, changed),
            self.fresh_inputs(first, "own"),
            (self.fresh_inputs(seed, "own") for seed in others),
        )
        return {"most": self.variation.most()}

    def change(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return whether a change of one element changes the answer visibly."""
        assert self.variation is not None, "vary first"
        return {"changes": self.variation.changes(message["tensor"], message["position"])}

    def run(self, model: Any, values: list[Any]) -> list[torch.Tensor]:
        """Call a model once without gradients; return its output tensors."""
        before = inputs.versions(values)
        with torch.no_grad():
            outputs = layout.flatten(model(*values))
        pairs = zip(before, inputs.versions(values), strict=True)
        if written := [place for place, (then, now) in enumerate(pairs) if then != now]:
            raise Failure(
                "task",
                f"inputs must stay unchanged, and the reference writes to input {written[0]}; use operators that "
                "return a new tensor",
            )
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                kind = type(output).__name__
                raise Failure("task", f"an output of Model.forward is of type {kind}; return tensors only")
        return [output.detach() for output in outputs]

    def exact(self, wide: Any, values: list[Any]) -> list[torch.Tensor]:
        """Call the float64 twin `wide` on the same values; return float64 (or int64) answers."""
        upcast = [as_dtype(v, torch.float64) for v in values]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with self.widened or contextlib.nullcontext():
                outputs = self.run(wide, upcast)
        finally:
            torch.set_default_dtype(before)
        return [out.to(torch.float64 if out.is_floating_point() else torch.int64) for out in outputs]
