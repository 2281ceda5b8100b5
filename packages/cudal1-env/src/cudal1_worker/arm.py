"""One arm: the process in which one program lives, is called, and dies.

The judge leads through the slow phases by messages (`build`, `construct`, `load`, `slots`, `call`) and
through timed calls by the control page. Whatever this module says is a courtesy: the judge believes bytes only.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from cudal1_worker import layout
from cudal1_worker import protocol as wire
from cudal1_worker.arithmetic import allow_tf32
from cudal1_worker.cpu_side import CpuSide

MODULE_NAME = "candidate"
_ERROR_CHARS = 4000

# Taken before any candidate could replace them: not for safety (the judge reads bytes), but so that an honest
# program that patches torch still gets an honest descriptor.
_shape = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_dtype = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_device = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_layout = torch.Tensor.layout.__get__  # type: ignore[attr-defined]
_stride = torch.Tensor.stride
_data_ptr = torch.Tensor.data_ptr


class Failure(Exception):
    """A phase failed in a way that has a name (`kind`)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def execute(source: str, wanted: str) -> types.ModuleType:
    """Run a program as a module of its own, from a file, so that `inspect.getsource` and Triton work.

    Args:
        source: Program text.
        wanted: Name that it must define.

    Raises:
        Failure: `syntax`, `no_code`; exceptions of the program itself pass through.
    """
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"{MODULE_NAME}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    try:
        code = compile(source, path, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Failure("syntax", f"{type(error).__name__}: {error}") from error
    module = types.ModuleType(MODULE_NAME)
    module.__file__ = path
    sys.modules[MODULE_NAME] = module
    exec(code, module.__dict__)
    if wanted not in module.__dict__:
        raise Failure("no_code", f"expected a program that defines `{wanted}`, found none")
    return module


def describe_error(error: BaseException) -> wire.Message:
    """Turn an exception into the message that reports it."""
    if isinstance(error, Failure):
        return {"error": error.kind, "text": str(error)[:_ERROR_CHARS]}
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or wire.says_no_memory(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename.endswith(f"{MODULE_NAME}.py")), None)
    where = f" (line {line})" if line is not None else ""
    return {
        "error": "memory" if memory else "raised",
        "text": f"{type(error).__name__}: {error}"[:_ERROR_CHARS] + where,
    }


class Arm:
    """State of one arm between messages."""

    def __init__(self, channel: socket.socket, control_fd: int, reply_fd: int) -> None:
        self.channel = channel
        control = mmap.mmap(control_fd, wire.PAGE_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self.control = memoryview(control).cast("Q")
        self.reply = mmap.mmap(reply_fd, wire.PAGE_BYTES, flags=mmap.MAP_SHARED)
        self.words = memoryview(self.reply).cast("Q")
        self.module: types.ModuleType | None = None
        self.model: Any = None
        self.side: Any = CpuSide()
        self.entries: list[layout.Entry] = []
        self.inputs: list[list[Any]] = []
        self.outputs: list[Any] = []
        self.forms: dict[int, Any] = {}
        self.reused = False
        self.handlers: dict[str, Callable[[wire.Message, list[int]], wire.Message]] = {
            "build": self.build,
            "ahead": self.ahead,
            "cuda": self.use_cuda,
            "construct": self.construct,
            "load": self.load,
            "inputs": self.learn_inputs,
            "call": self.call_once,
            "pace": self.pace,
            "rehearse": self.rehearse,
            "profile": self.profile,
        }

    def serve(self) -> None:
        """Answer messages until the judge closes the channel."""
        while True:
            try:
                message, fds = wire.receive(self.channel)
            except wire.ChannelClosed:
                return
            if message["op"] == "timed":
                self.timed()
            try:
                answer = self.handlers[message["op"]](message, fds)
            except Exception as error:  # every failure of a program is data for the judge
                answer = describe_error(error)
            finally:
                for fd in fds:
                    os.close(fd)
            wire.send(self.channel, answer)

    def build(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Import the program; compilers may run."""
        with os.fdopen(os.dup(fds[0]), "rb") as file:
            source = file.read().decode()
        self.module = execute(source, message["wanted"])
        return {"ok": True}

    def ahead(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make the model and call it once on made-up inputs, so that it compiles what it will want.

        Floating-point inputs are standard normal, all others zero, which is valid for an index.
        """
        device = torch.device(message["device"])
        if device.type == "cuda":
            allow_tf32(message["tf32"])
        self.model = self.made(message)
        if isinstance(self.model, torch.nn.Module):
            self.model = self.model.to(device)
        block = torch.zeros(message["bytes"], dtype=torch.uint8, device=device)
        self.entries = message["entries"]
        inputs = self.inputs_in(block)
        with torch.no_grad():
            for value in inputs:
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    value.normal_()
            self.model(*inputs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return {"ok": True}

    def made(self, message: wire.Message) -> Any:
        """Construct the model under a seed."""
        torch.manual_seed(message["seed"])
        arguments = layout.decode(message["arguments"])
        factory = getattr(self.module, message["wanted"])
        return factory(**arguments) if isinstance(arguments, dict) else factory(*arguments)

    def use_cuda(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Work on a GPU from now on; answer with the address of the arena."""
        from cudal1_worker.cuda_side import CudaSide

        self.side = CudaSide(message, fds)
        return {"arena": self.side.start}

    def construct(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make the model under the seed; answer with names, shapes and dtypes of its state."""
        self.model = self.side.place(self.made(message))
        return {"state": state_names(self.model)}

    def load(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Load the judge's weights into the model's state."""
        whole = mmap.mmap(fds[0], message["bytes"], flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        block = torch.frombuffer(whole, dtype=torch.uint8)
        state = self.model.state_dict()
        with torch.no_grad():
            for name, entry in zip(message["names"], message["entries"], strict=True):
                state[name].copy_(layout.view(block, entry))
        return {"ok": True}

    def learn_inputs(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Learn how inputs will lie in memory, and map the blocks in which timed calls find them."""
        self.entries = message["entries"]
        self.inputs = []  # they lie in what is unmapped now
        self.side.learn_slots(message, fds)
        return {"ok": True}

    def inputs_in(self, block: torch.Tensor) -> list[Any]:
        """Return a set of inputs that lies in a block; tell the judge where that is."""
        self.words[wire.INPUTS] = _data_ptr(block)
        return [
            layout.view(block, entry) if "tensor" in entry else layout.decode(entry["value"]) for entry in self.entries
        ]

    def call_once(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Call the model once, untimed, and leave a descriptor in the reply page; answer with its seconds if asked to.

        The outputs of the call before live on meanwhile: whether this one overwrites them is learnt here.
        """
        before = set(places(self.outputs))
        self.inputs = [self.inputs_in(self.side.untimed_block(message, fds))]
        seconds = message["clock"] and time.perf_counter()
        with torch.no_grad():
            outputs = self.model(*self.inputs[0])
        self.side.finish()
        seconds = message["clock"] and time.perf_counter() - seconds
        self.reused = not before.isdisjoint(places(outputs))
        self.outputs = [self.side.keep(outputs, reused=False)]
        self.side.finish()
        if self.describe(self.outputs) != wire.RETURNED:
            raise Failure("contract", "expected dense tensors, or nested lists, tuples or dicts of them")
        return {"ok": True, "seconds": seconds}

    def pace(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Call again and again on the last inputs, and answer with the seconds of a call."""
        calls, began = 0, time.perf_counter()
        with torch.no_grad():
            while calls < wire.PACE_CALLS and time.perf_counter() - began < wire.PACE_S:
                self.model(*self.inputs[0])
                calls += 1
        self.side.finish()
        return {"seconds": (time.perf_counter() - began) / calls}

    def rehearse(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make as many calls in one go as a timed turn will, and learn whether outputs lie where earlier ones did.

        A program may turn over several buffers, which two calls alone do not show.
        """
        blocks = self.side.slots[: len(self.side.slots) // wire.SLOTS]
        outputs: list[Any] = []  # all alive to the end, so that memory is used again by the program only
        found: list[int] = []
        with torch.no_grad():
            for block in blocks:
                outputs.append(self.model(*self.inputs_in(block)))
                # At once: outputs of torch.compile's graphs refuse to be asked after the next call.
                found += places(outputs[-1])
        self.side.finish()
        self.reused = self.reused or len(set(found)) < len(found)
        return {"ok": True}

    def profile(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make calls under the profiler, and answer with what ran; this arm is used for nothing else."""
        from cudal1_worker.profile import profiled

        inputs = self.inputs_in(self.side.untimed_block(message, fds))
        gpu = not isinstance(self.side, CpuSide)
        return profiled(lambda: self.model(*inputs), self.side.finish, calls=message["calls"], gpu=gpu)

    def timed(self) -> NoReturn:
        """Follow the control page for the rest of this process's life.

        At WAKE, which no clock sees, outputs of the turn before are dropped and tensors made over the block of the next
        turn's inputs. The judge fills that block while this process is stopped, and lets it go on with GO. So all that
        this loop does while the clock runs is the call and its description: whatever else it did would be subtracted
        as overhead, and a program that replaces the loop by a leaner one would seem faster.
        """
        control, words, side = self.control, self.words, self.side
        last_go = last_wake = 0
        kept = self.outputs
        side.hold()
        with torch.no_grad():
            while True:
                go = control[wire.GO]
                if go == last_go:
                    wake = control[wire.WAKE]
                    if wake != last_wake:
                        self.outputs = []
                        first = control[wire.SLOT]
                        self.inputs = [self.inputs_in(side.slots[first + k]) for k in range(control[wire.COUNT])]
                        side.wake(wake)
                        words[wire.AWAKE] = last_wake = wake
                    continue
                last_go = go
                try:
                    if control[wire.OPERATION] == wire.CALL:
                        self.outputs = self.call_all()
                        words[wire.OUTCOME] = self.describe(self.outputs)
                    else:
                        began = time.perf_counter_ns()
                        side.touch()
                        again = [side.keep(kept[0], reused=False) for _ in self.inputs]
                        side.finish()
                        words[wire.OUTCOME] = self.describe(again)
                        words[wire.DESCRIBING] = time.perf_counter_ns() - began
                    words[wire.FLAG] = go
                except Exception as error:  # data for the judge, sent behind the flag
                    words[wire.OUTCOME] = wire.RAISED
                    words[wire.FLAG] = go
                    wire.send(self.channel, describe_error(error))

    def call_all(self) -> list[Any]:
        """Call the model on each set of inputs; return the outputs when nothing of it runs any more.

        Outputs that the next call would overwrite are copied, on the program's own time.
        """
        side, reused = self.side, self.reused and len(self.inputs) > 1
        outputs = [side.keep(self.model(*one), reused=reused) for one in self.inputs]
        side.finish()
        return outputs

    def describe(self, calls: list[Any]) -> int:
        """Write one descriptor for each output tensor of each call into the reply page; return the outcome.

        One tensor of the same form as the last in its place needs only its address: this runs while the clock does.
        """
        words, place = self.words, 0
        for outputs in calls:
            form = (_shape(outputs), _stride(outputs), _dtype(outputs)) if type(outputs) is torch.Tensor else None
            if form is not None and form == self.forms.get(place):
                words[wire.ADDRESS + place * wire.DESCRIPTOR_WORDS] = _data_ptr(outputs)
                place += 1
                continue
            leaves = layout.flatten(outputs) if type(outputs) is not torch.Tensor else [outputs]
            if place + len(leaves) > wire.MAX_DESCRIPTORS:
                return wire.NOT_TENSORS
            for leaf in leaves:
                self.forms.pop(place, None)
                if not self.describe_one(leaf, place):
                    return wire.NOT_TENSORS
                place += 1
            if form is not None:
                self.forms[place - 1] = form
        words[wire.OUTPUTS] = place
        return wire.RETURNED

    def describe_one(self, leaf: Any, place: int) -> bool:
        """Write the descriptor at a place; False for what is no dense tensor."""
        if not isinstance(leaf, torch.Tensor) or _layout(leaf) is not torch.strided:
            return False
        shape = _shape(leaf)
        rank = len(shape)
        if rank > wire.MAX_DIMENSIONS:
            return False
        padding = (0,) * (wire.MAX_DIMENSIONS - rank)
        kind = _device(leaf).type
        wire.DESCRIPTOR.pack_into(
            self.reply,
            wire.DESCRIPTOR_OFFSET + place * wire.DESCRIPTOR.size,
            _data_ptr(leaf),
            layout.dtype_code(_dtype(leaf)),
            rank,
            0 if kind == "cpu" else 1 if kind == "cuda" else 2,
            *shape,
            *padding,
            *_stride(leaf),
            *padding,
        )
        return True


def places(outputs: Any) -> list[int]:
    """Return the addresses of the dense tensors among outputs."""
    leaves = [leaf for leaf in layout.flatten(outputs) if isinstance(leaf, torch.Tensor)]
    return [_data_ptr(leaf) for leaf in leaves if type(leaf) is torch.Tensor and _layout(leaf) is torch.strided]


def state_names(model: Any) -> list[list[Any]]:
    """Return `[name, shape, dtype]` for each tensor of a module's state, in order; empty for anything else."""
    if not isinstance(model, torch.nn.Module):
        return []
    return [
        [name, list(value.shape), str(value.dtype).removeprefix("torch.")]
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
    ]
