"""One arm: the process that imports and calls one program.

The judge drives the slow phases by messages (`build`, `begin`, `construct`, `load`, `call`) and timed calls by the
control page. The judge trusts nothing that this module reports; it reads output bytes itself.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import torch

from cudal1_worker import layout
from cudal1_worker import protocol as wire
from cudal1_worker.arithmetic import allow_tf32
from cudal1_worker.overlap import Place, shared
from cudal1_worker.program import state
from cudal1_worker.program.cpu_side import CpuSide
from cudal1_worker.program.module import Failure, describe_error, execute

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Tensor types without overridden attributes."""


class Arm:
    """State of one arm between messages."""

    def __init__(self, channel: socket.socket, control_fd: int, reply_fd: int) -> None:
        self.channel = channel
        control = mmap.mmap(control_fd, wire.PAGE_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self.control = memoryview(control).cast("Q")
        self.reply = mmap.mmap(reply_fd, wire.PAGE_BYTES, flags=mmap.MAP_SHARED)
        self.words = memoryview(self.reply).cast("Q")
        self.factory: Any = None
        """The model's class or function, once the program is imported."""
        self.model: Any = None
        self.side: Any = None
        """Memory of the calls: `CpuSide` or `CudaSide`."""
        self.entries: list[layout.Entry] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.registered: set[int] = set()
        """Addresses of the storages of the model's parameters and buffers."""
        self.strides: list[list[int]] = []
        """Strides of the reference's outputs."""
        self.places: list[tuple[Any, ...]] | None = None
        """Places of the last outputs, if all are plain dense tensors."""
        self.described: list[tuple[Any, ...]] | None = None
        """Shapes, strides and dtypes (`_place`) of the outputs described in the reply page, if known."""
        self.handlers: dict[str, Callable[[wire.Message, list[int]], wire.Message | None]] = {
            "build": self.build,
            "ahead": self.ahead,
            "begin": self.begin,
            "construct": self.construct,
            "fingerprints": self.fingerprints,
            "load": self.load,
            "call": self.call_once,
            "profile": self.profile,
            "timed": self.timed,
        }

    def serve(self) -> None:
        """Answer messages until the judge closes the channel."""
        wire.serve(self.channel, self.handlers, describe_error)

    def build(self, message: wire.Message, fds: list[int]) -> None:
        """Import the program, which may run compilers."""
        with os.fdopen(os.dup(fds[0]), "rb") as file:
            source = file.read().decode()
        self.factory = getattr(execute(source, message["wanted"]), message["wanted"])

    def ahead(self, message: wire.Message, fds: list[int]) -> None:
        """Construct the model and call it once on made-up inputs, so that it compiles its kernels.

        Floating-point inputs are standard normal; others are zero, which is a valid index.
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

    def made(self, message: wire.Message) -> Any:
        """Construct the model under a seed."""
        torch.manual_seed(message["seed"])
        arguments = layout.decode(message["arguments"])
        return self.factory(**arguments) if isinstance(arguments, dict) else self.factory(*arguments)

    def begin(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Map the memory of calls; answer with the address of a GPU's arena."""
        self.entries, self.strides = message["entries"], message["strides"]
        if message["device"] == "cuda":
            from cudal1_worker.program.cuda_side import CudaSide

            self.side = CudaSide(message, fds)
        else:
            self.side = CpuSide(message, fds)
        return {"arena": self.side.start}

    def construct(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Construct the model under the seed; answer with a description of its state."""
        self.outputs, self.model = [], None
        self.model = self.side.place(self.made(message))
        return {"state": state.described(self.model)}

    def fingerprints(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Answer with hashes of the named tensors of the model's state."""
        return {"fingerprints": state.fingerprints(self.model, message["names"])}

    def load(self, message: wire.Message, fds: list[int]) -> None:
        """Load the judge's weights into the model's state."""
        whole = mmap.mmap(fds[0], message["bytes"], flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        state.load(self.model, message["names"], message["entries"], torch.frombuffer(whole, dtype=torch.uint8))

    def inputs_in(self, block: torch.Tensor) -> list[Any]:
        """Return the inputs as views of a block."""
        return [
            layout.view(block, entry) if "tensor" in entry else layout.decode(entry["value"]) for entry in self.entries
        ]

    def call_once(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make one untimed call and describe its outputs; answer with the seconds and the inputs' address."""
        self.outputs = []
        block = self.side.untimed_block(message)
        self.inputs = self.inputs_in(block)
        self.registered = storages(self.model)
        began = message["clock"] and time.perf_counter()  # not always: a candidate may have broken its clock
        with torch.no_grad():
            self.side.begin()
            self.outputs = self.returned(self.model(*self.inputs))
        seconds = message["clock"] and time.perf_counter() - began
        if self.describe(self.outputs) != wire.RETURNED:
            raise Failure("contract", "expected dense tensors, or nested lists, tuples or dicts of them")
        return {"seconds": seconds, "inputs": block.data_ptr()}

    def profile(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Make calls under the profiler; answer with the kernels that ran. This arm serves no other purpose."""
        from cudal1_worker.program.profile import profiled

        inputs = self.inputs_in(self.side.untimed_block(message))
        gpu = not isinstance(self.side, CpuSide)
        return profiled(lambda: self.model(*inputs), self.side.finish, calls=message["calls"], gpu=gpu)

    def timed(self, message: wire.Message, fds: list[int]) -> NoReturn:
        """Follow the control page for the rest of this process's life.

        Call n starts when the judge has written n to GO, and finds its inputs in slot n modulo `wire.SLOTS`. Views of
        the next slot are made after the flag is set. The rest of the loop is on the clock, for both arms alike. A
        program that replaces this loop with a faster one gains at most the judge's allowance (`Overhead`).
        """
        control, words, slots, kept = self.control, self.words, self.side.slots, self.outputs
        last = 0  # not read from the page: the judge may already have written the first GO
        with torch.no_grad():
            while True:
                inputs = self.inputs_in(slots[(last + 1) % wire.SLOTS])
                while (go := control[wire.GO]) == last:
                    pass
                last = go
                try:
                    self.side.receive(go % wire.SLOTS, control)
                    is_call = control[wire.OPERATION] == wire.CALL
                    if is_call:
                        self.outputs = []
                    self.side.begin()
                    leaves = self.returned(self.model(*inputs) if is_call else kept)
                    words[wire.OUTCOME] = self.describe(leaves)
                    if is_call:
                        self.outputs = leaves
                    words[wire.FLAG] = go
                except Exception as error:  # data for the judge, sent after the flag
                    words[wire.OUTCOME] = wire.RAISED
                    words[wire.FLAG] = go
                    wire.send(self.channel, describe_error(error))

    def returned(self, outputs: Any) -> list[Any]:
        """Return the leaves of a call's outputs once all work of the call has ended.

        This runs on the clock, in empty calls too. It does the same for outputs at known places as for new ones, so
        that a program gains nothing by returning the same tensors in each call.
        """
        leaves = [outputs] if type(outputs) is torch.Tensor else layout.flatten(outputs)
        places: list[Any] = list(map(_place, leaves))
        if None in places or not self.in_place(leaves, places):
            self.copy_some(leaves)
            places = list(map(_place, leaves))
        self.places = None if None in places else places
        self.side.finish()
        return leaves

    def in_place(self, leaves: list[Any], places: list[Any]) -> bool:
        """Return whether plain dense tensors certainly need no copies (`copy_some`)."""
        for number, (leaf, (_, _, strides, _, _, negated)) in enumerate(zip(leaves, places, strict=True)):
            if negated or self.is_copied(leaf, strides, number):
                return False
        if len(leaves) == 1:
            return True
        spans = sorted(
            (address, address + Place(address, shape, strides, dtype.itemsize).span_bytes)
            for address, shape, strides, dtype, *_ in places
        )
        return all(end <= start for (_, end), (start, _) in pairwise(spans))

    def is_copied(self, leaf: Any, strides: Sequence[int], number: int) -> bool:
        """Return whether an output must be copied, independently of the other outputs."""
        if type(leaf) in _PLAIN and leaf.untyped_storage().data_ptr() in self.registered:
            return True
        return not self.side.reachable(leaf) or (0 in strides and self.repeats_more(strides, number))

    def repeats_more(self, strides: Sequence[int], number: int) -> bool:
        """Return whether an output repeats elements (stride zero) where the reference's does not."""
        theirs = self.strides[number] if number < len(self.strides) else ()
        return len(theirs) != len(strides) or any(
            not step and their for step, their in zip(strides, theirs, strict=True)
        )

    def copy_some(self, leaves: list[Any]) -> None:
        """Replace leaves, where necessary, by copies that the judge may read and overwrite.

        A leaf is copied if the judge cannot read its memory, if it shares memory with a parameter or buffer (the judge
        overwrites outputs), if it is expanded and the reference's is not, or if it shares an element with an earlier
        output. Copies are on the program's own time.
        """
        known: list[Place] = []
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                leaf = leaf.resolve_neg() if type(leaf) is torch.Tensor else leaf  # torch may defer a negation
                lies = Place(leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype.itemsize)
                copied = self.is_copied(leaf, lies.strides, number) or any(shared(lies, other) for other in known)
                leaves[number] = self.side.copy(leaf) if copied else leaf
                known.append(lies)

    def describe(self, leaves: list[Any]) -> int:
        """Write a descriptor of each output tensor into the reply page; return the outcome.

        If shapes, strides and dtypes are those of the last call, only addresses are written: this runs on the clock.
        """
        places, words = self.places, self.words
        forms = None if places is None else [place[1:] for place in places]
        if places is not None and forms == self.described:
            for place, (address, *_) in enumerate(places):
                words[wire.ADDRESS + place * wire.DESCRIPTOR_WORDS] = address
            return wire.RETURNED
        self.described = None
        if len(leaves) > wire.MAX_OUTPUTS or not all(map(self.describe_one, leaves, range(len(leaves)))):
            return wire.NOT_TENSORS
        words[wire.OUTPUTS] = len(leaves)
        self.described = forms
        return wire.RETURNED

    def describe_one(self, leaf: Any, place: int) -> bool:
        """Write the descriptor at a place; return False if the leaf is not a dense tensor."""
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return False
        shape = leaf.shape
        rank = len(shape)
        if rank > wire.MAX_DIMENSIONS:
            return False
        padding = (0,) * (wire.MAX_DIMENSIONS - rank)
        kind = leaf.device.type
        wire.DESCRIPTOR.pack_into(
            self.reply,
            wire.DESCRIPTOR_OFFSET + place * wire.DESCRIPTOR.size,
            leaf.data_ptr(),
            layout.CODES[leaf.dtype],
            rank,
            0 if kind == "cpu" else 1 if kind == "cuda" else 2,
            *shape,
            *padding,
            *leaf.stride(),
            *padding,
        )
        return True


def _place(leaf: Any) -> tuple[Any, ...] | None:
    """Return address, shape, strides, dtype, device and negation of a plain dense tensor; None for anything else."""
    if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided:
        return None
    return leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype, leaf.device.type, leaf.is_neg()


def storages(model: Any) -> set[int]:
    """Return the addresses of a module's parameters and buffers."""
    if not isinstance(model, torch.nn.Module):
        return set()
    own = torch.nn.Module  # a program may use the names `parameters` and `buffers` for itself
    tensors = (*own.parameters(model), *own.buffers(model))
    return {one.untyped_storage().data_ptr() for one in tensors if not torch.nn.parameter.is_lazy(one)}
