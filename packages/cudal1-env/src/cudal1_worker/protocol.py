"""Protocol between judge and worker: framed JSON over a socket, and two shared pages.

The socket serves the slow phases (build, construct, weights). The pages serve timed calls, in which a system call could
take longer than the call itself:

* the judge writes the *control page*; the worker maps it read-only (its memfd is sealed);
* the worker writes the *reply page*; the judge copies it once for each call, when the flag is set.

Both are arrays of 64-bit words in native byte order.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

PAGE_BYTES = 1 << 16

# Words of the control page.
GO = 0
"""The ready word."""
OPERATION = 1
"""Kind of the call: `CALL` or `EMPTY`."""
KEY = 2
"""First word of the key of the call's inputs."""
# Operations.
CALL = 1
EMPTY = 2
# Words of the reply page.
FLAG = 0
OUTCOME = 1
OUTPUTS = 2
# Outcomes of a call.
RETURNED = 1
RAISED = 2
NOT_TENSORS = 3

_NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "ALLOC_FAILED", "OUT_OF_MEMORY")

MAX_DIMENSIONS = 8
MAX_OUTPUTS = 32
DESCRIPTOR_OFFSET = 64
ADDRESS = DESCRIPTOR_OFFSET // 8
"""Word of the first output's address."""
DESCRIPTOR = struct.Struct(f"=QQQQ{MAX_DIMENSIONS}q{MAX_DIMENSIONS}q")
"""Address, dtype code, dimensions, device code, shape, strides (in elements)."""
DESCRIPTOR_WORDS = DESCRIPTOR.size // 8

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
    "complex128",
)
"""Names of the supported dtypes, in the order of their codes."""

ALIGNMENT = 4096
"""In a block of bytes, each tensor starts on a new page."""
MAX_KERNELS = 48
"""Maximum number of kernel names that a worker reports from a profile."""
MAX_KERNEL_NAME = 200
"""Maximum number of characters of each kernel name."""
MAX_MESSAGE_BYTES = 8 << 20
SLOTS = 2
"""Number of memory slots for inputs. Calls use them in turn, so consecutive calls have different addresses. An untimed
call uses each slot before the first timed call, so a program may capture a CUDA graph for each address."""
_LENGTH = struct.Struct("=I")
_PIECE_BYTES = 1 << 15


class ChannelClosed(Exception):
    """The other side has closed the channel."""


class ChannelTimeout(Exception):
    """The other side did not answer in time."""


class BadMessage(Exception):
    """The other side sent an invalid message; only an untrusted side does that."""


def send(channel: socket.socket, message: Message, fds: Sequence[int] = (), *, timeout_s: float | None = None) -> None:
    """Send one message with file descriptors.

    Args:
        channel: A stream socket.
        message: The message.
        fds: Descriptors to send with it.
        timeout_s: Seconds for the whole message; None waits forever. Set it for an untrusted receiver, which may never
            read.

    Raises:
        ChannelClosed: The other side has closed the channel.
        ChannelTimeout: The other side does not read.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    data = json.dumps(message).encode()
    frame = memoryview(_LENGTH.pack(len(data)) + data)
    while frame:
        _wait(channel, deadline, select.POLLOUT)
        # A piece this small does not block once poll reports the socket writable.
        piece = frame[:_PIECE_BYTES]
        try:
            sent = socket.send_fds(channel, [piece], list(fds)) if fds else channel.send(piece)
        except OSError as error:
            raise ChannelClosed(f"cannot send: the other side closed the channel ({error})") from error
        frame, fds = frame[sent:], ()


def receive(channel: socket.socket, *, timeout_s: float | None = None, max_fds: int = 16) -> tuple[Message, list[int]]:
    """Receive one message and its file descriptors.

    Args:
        channel: A stream socket.
        timeout_s: Seconds for the whole message; None waits forever.
        max_fds: Maximum number of descriptors.

    Raises:
        ChannelClosed: The other side has closed the channel.
        ChannelTimeout: No complete message arrived in time.
        BadMessage: The message is too large or not a JSON object.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    fds: list[int] = []
    data = bytearray()
    need = _LENGTH.size
    while len(data) < need:
        _wait(channel, deadline, select.POLLIN)
        try:
            chunk, more, _, _ = socket.recv_fds(channel, min(1 << 16, need - len(data)), max_fds)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        fds.extend(more)
        if not chunk:
            raise ChannelClosed("the other side closed the channel")
        data += chunk
        if len(data) == _LENGTH.size and need == _LENGTH.size:
            need += _LENGTH.unpack(data)[0]
            if need > MAX_MESSAGE_BYTES:
                raise BadMessage(f"a message of {need} bytes exceeds the limit of {MAX_MESSAGE_BYTES} bytes")
    try:
        message = json.loads(bytes(data[_LENGTH.size :]))
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"a message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadMessage(f"expected a message that is a JSON object, got {type(message).__name__}")
    return message, fds


def serve(
    channel: socket.socket,
    handlers: Mapping[str, Callable[[Message, list[int]], Message | None]],
    describe_error: Callable[[Exception], Message],
) -> None:
    """Answer messages until the judge closes the channel; close received descriptors before each answer is sent.

    Args:
        channel: The channel to the judge.
        handlers: Handler of each `op`; without a result, the answer is empty.
        describe_error: Turns a handler's exception into an answer, because a program's failure is data for the judge.
    """
    while True:
        try:
            message, fds = receive(channel)
        except ChannelClosed:
            return
        try:
            answer = handlers[message["op"]](message, fds) or {}
        except Exception as error:
            answer = describe_error(error)
        finally:
            for fd in fds:
                os.close(fd)
        send(channel, answer)


def _wait(channel: socket.socket, deadline: float | None, event: int) -> None:
    poll = select.poll()
    poll.register(channel, event)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
    if not poll.poll(left):
        raise ChannelTimeout("timed out waiting for the worker's channel")


def says_no_memory(text: str) -> bool:
    """Return whether an error's text reports too little memory, in the wording of torch, cuBLAS or the driver."""
    return any(words in text for words in _NO_MEMORY)
