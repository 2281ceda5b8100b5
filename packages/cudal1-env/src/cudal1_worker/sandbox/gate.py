"""The gate: the supervisor decides on a worker's calls that create or replace a process (seccomp notification).

A decision inside the worker could be manipulated by its program; the supervisor runs no untrusted program. An open gate
lets compilers start. Once it is closed, permanently, the calls fail with EPERM. After the judge has also killed the
processes that existed before, the worker is a single process, which SIGSTOP stops completely.

Over the control socket the judge sends `SEAL` and receives `SEALED`. When the judge closes it, the worker is killed.
"""

from __future__ import annotations

import array  # noqa: F401 - socket.send_fds needs it, and imports inside the sandbox take time
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct

from cudal1_worker.sandbox.processes import descendants

SEAL = b"S"
SEALED = b"s"

# Requests of ioctl(2) on a notification descriptor.
_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_REQUEST_BYTES = 80
_ANSWER = struct.Struct("=QqiI")
"""Request id, value, error, flags."""
_CONTINUE = 1


class Gate:
    """The supervisor makes it before it forks the worker; the worker calls `pass_on`, the supervisor calls `keep`."""

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._listener: int | None = None
        self._sealed = False

    def pass_on(self, listener: int | None) -> None:
        """Pass the filter's descriptor, if any, to the supervisor and close it. Call it in the worker."""
        self._outside.close()
        if listener is not None:
            socket.send_fds(self._inside, [b"g"], [listener])
            os.close(listener)
        self._inside.close()

    def keep(self, worker: int, control: int | None = None) -> int:
        """Serve until the worker is dead. Call it in the supervisor.

        Args:
            worker: Process id of the worker, a child.
            control: Descriptor of a stream socket to the judge, or None.

        Returns:
            The worker's wait status.
        """
        self._inside.close()
        end = os.pidfd_open(worker)
        poll = select.poll()
        for fd in (end, self._outside.fileno(), *(() if control is None else (control,))):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, events in poll.poll():
                if fd == end:
                    return _bury(worker)
                if fd == self._listener:
                    self._answer(poll, events)
                elif fd == self._outside.fileno():
                    self._take(poll)
                elif not self._obey(fd):  # the judge closed its end
                    poll.unregister(fd)
                    os.kill(worker, signal.SIGKILL)

    def _take(self, poll: select.poll) -> None:
        """Receive the filter's descriptor, the only message on its socket."""
        _, fds, _, _ = socket.recv_fds(self._outside, 1, 1)
        poll.unregister(self._outside.fileno())
        for fd in fds:
            self._listener = fd
            poll.register(fd, select.POLLIN)

    def _answer(self, poll: select.poll, events: int) -> None:
        """Allow one call, or make it fail."""
        listener = self._listener
        assert listener is not None
        if not events & select.POLLIN:  # no process with this filter is left
            poll.unregister(listener)
            return
        request = bytearray(_REQUEST_BYTES)
        # The caller may already be dead; then there is nothing to answer.
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(listener, _RECEIVE, request)
            number = struct.unpack_from("=Q", request)[0]
            verdict = (0, -errno.EPERM, 0) if self._sealed else (0, 0, _CONTINUE)
            fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(number, *verdict)))

    def _obey(self, control: int) -> bool:
        """Read one order; return False if the judge closed its end."""
        try:
            order = os.read(control, 1)
        except ConnectionError:
            return False
        if order == SEAL:
            self._sealed = True
            with contextlib.suppress(BrokenPipeError):
                os.write(control, SEALED)
        return bool(order)


def _bury(worker: int) -> int:
    """Wait for the worker and return its status; kill and reap its orphans (if it has no pid namespace)."""
    status = os.waitpid(worker, 0)[1]
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for orphan in descendants(os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(orphan, signal.SIGKILL)
                os.waitpid(-1, 0)
    return status
