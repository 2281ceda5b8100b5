"""Stopping, sealing and killing a worker from the judge's side."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from cudal1_env.errors import MachineError
from cudal1_env.judge.workers.worker import Dead, Late, Worker
from cudal1_env.sandbox import Cage, CgroupUnavailable, available_layers, default_spec
from cudal1_worker.sandbox import Spec
from doubles.boxes import Box, Boxes

COUNT_IN_A_THREAD = """
    import struct, threading, time
    def count():
        value = 0
        while True:
            value += 1
            struct.pack_into("=Q", page, 0, value)
    threading.Thread(target=count, daemon=True).start()
    tell("counting")
    time.sleep(1000)
"""

COUNT_IN_A_CHILD = """
    import struct, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        value = 0
        while True:
            value += 1
            struct.pack_into("=Q", page, 0, value)
    os.wait()
    tell("counting")
    time.sleep(1000)
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Boxes]:
    boxes = Boxes()
    yield boxes
    boxes.stop()


@pytest.fixture
def boxes(zygote: Boxes) -> Iterator[Boxes]:
    yield zygote
    zygote.clear()


@pytest.fixture
def spec() -> Spec:
    return default_spec()


class Held:
    """Makes the judge's view of boxes, and closes it at the end."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def __call__(self, box: Box) -> Worker:
        owned = ExitStack()
        channel, other = socket.socketpair()
        log_fd, write_fd = os.pipe()
        other.close()
        os.close(write_fd)
        owned.enter_context(channel)
        owned.callback(os.close, log_fd)
        worker = Worker(box.pid, box.supervisor, channel, box.control, log_fd, box.report_fd, (), None, owned)
        worker.layers = box.layers
        self.workers.append(worker)
        return worker


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    for worker in held.workers:
        worker.close()


def counter(box: Box) -> int:
    return int.from_bytes(box.page[:8], "little")


def goes_on(box: Box, seconds: float = 2.0) -> bool:
    """Whether the counter moves within some time."""
    before, deadline = counter(box), time.monotonic() + seconds
    while time.monotonic() < deadline:
        if counter(box) != before:
            return True
    return False


def stands_still(box: Box, seconds: float = 0.05) -> bool:
    before = counter(box)
    time.sleep(seconds)
    return counter(box) == before


def counting(boxes: Boxes, source: str, spec: Spec, *, gate: bool = True) -> Box:
    box = boxes.start(source, spec, gate=gate)
    box.report()
    assert box.value() == "counting"
    assert goes_on(box)
    return box


needs_gate = pytest.mark.skipif(
    available_layers()["fork-gate"] is not None, reason=f"no gate here: {available_layers()['fork-gate']}"
)


def test_a_frozen_worker_stops_and_a_thawed_one_resumes(boxes: Boxes, spec: Spec, held: Held) -> None:
    box = counting(boxes, COUNT_IN_A_THREAD, spec)
    worker = held(box)
    for _ in range(20):
        worker.freeze()
        assert stands_still(box, 0.002)
        worker.thaw()
        assert goes_on(box)


@needs_gate
def test_a_sealed_worker_freezes_at_once_and_fully(boxes: Boxes, spec: Spec, held: Held) -> None:
    box = counting(boxes, COUNT_IN_A_THREAD, spec)
    worker = held(box)
    worker.seal()
    assert worker.sealed
    assert stands_still(box)
    times = []
    for _ in range(50):
        worker.thaw()
        assert goes_on(box)
        began = time.perf_counter()
        worker.freeze()
        times.append(time.perf_counter() - began)
        assert stands_still(box, 0.001)
    # On an idle machine 50 us; on a busy one the worker must first be given its core in order to stop.
    assert min(times) < 0.05, times


def test_sigstop_alone_leaves_a_child_running_and_freeze_does_not(boxes: Boxes, spec: Spec, held: Held) -> None:
    box = counting(boxes, COUNT_IN_A_CHILD, spec)
    worker = held(box)
    os.kill(box.pid, signal.SIGSTOP)
    assert goes_on(box), "the attack is no attack here"
    assert len(worker.other_processes()) == 1
    worker.freeze()
    assert stands_still(box)
    assert worker.other_processes() == []


@needs_gate
def test_sealing_kills_what_was_forked_before(boxes: Boxes, spec: Spec, held: Held) -> None:
    box = counting(boxes, COUNT_IN_A_CHILD, spec)
    worker = held(box)
    assert len(worker.other_processes()) == 1
    worker.seal()
    assert worker.other_processes() == []
    worker.thaw()
    assert stands_still(box)


def test_a_child_whose_first_thread_is_dead_is_killed_too(boxes: Boxes, spec: Spec, held: Held) -> None:
    source = """
        import ctypes, struct, threading, time
        def count():
            value = 0
            while True:
                value += 1
                struct.pack_into("=Q", page, 0, value)
        if os.fork() == 0:
            threading.Thread(target=count).start()
            ctypes.CDLL(None).syscall(60, 0)  # ends this thread alone: the process looks like a zombie
        tell("counting")
        time.sleep(1000)
    """
    box = counting(boxes, source, spec)
    worker = held(box)
    assert worker.other_processes()
    worker.freeze()
    assert stands_still(box)
    assert worker.other_processes() == []


def test_a_child_that_wakes_its_parent_is_killed_too(boxes: Boxes, spec: Spec, held: Held) -> None:
    source = """
        import signal, struct, time
        if os.fork() == 0:
            while True:
                os.kill(1, signal.SIGCONT)
        tell("counting")
        value = 0
        while True:
            value += 1
            struct.pack_into("=Q", page, 0, value)
    """
    box = counting(boxes, source, spec)
    worker = held(box)
    assert len(worker.other_processes()) == 1
    worker.freeze()
    assert stands_still(box)
    assert worker.other_processes() == []


def test_a_thread_that_waits_for_its_child_in_the_kernel_is_stopped(boxes: Boxes, spec: Spec, held: Held) -> None:
    # vfork holds its caller in the kernel, deaf to SIGSTOP, until the child runs a program or ends.
    source = """
        import ctypes
        if ctypes.PyDLL(None).vfork() == 0:
            while True:
                page[0] = (page[0] + 1) % 256
    """
    box = boxes.start(source, spec)
    box.report()
    worker = held(box)
    while not worker.other_processes():
        time.sleep(0.001)
    assert goes_on(box)
    worker.sealed = True  # then freeze looks for no other process
    with pytest.raises(Late, match="did not stop within"):
        worker.freeze(timeout_s=0.2)
    worker.sealed = False
    worker.freeze(timeout_s=10.0)
    assert stands_still(box)


def test_killing_a_worker_kills_all_its_children(boxes: Boxes, spec: Spec, held: Held) -> None:
    box = counting(boxes, COUNT_IN_A_CHILD, spec)
    worker = held(box)
    others = worker.other_processes()
    worker.kill()
    assert stands_still(box)
    assert box.end() == signal.SIGKILL
    assert not [pid for pid in (box.pid, *others) if os.path.exists(f"/proc/{pid}")]
    with pytest.raises(Dead):
        worker.freeze()
    with pytest.raises(Dead):
        worker.thaw()
    worker.close()


def test_a_stopped_worker_can_be_killed(boxes: Boxes, spec: Spec, held: Held) -> None:
    box = counting(boxes, COUNT_IN_A_THREAD, spec)
    worker = held(box)
    worker.freeze()
    worker.kill()
    assert box.end() == signal.SIGKILL


def test_without_a_gate_each_freeze_looks_for_processes_again(boxes: Boxes, spec: Spec, held: Held) -> None:
    source = """
        import struct, time
        tell("ready")
        while page[8] == 0:
            time.sleep(0.001)
        os.fork()
        value = 0
        while True:
            value += 1
            struct.pack_into("=Q", page, 0, value)
    """
    box = boxes.start(source, spec, gate=False)
    box.report()
    assert box.value() == "ready"
    worker = held(box)
    worker.seal()
    assert not worker.sealed
    worker.thaw()
    box.page[8] = 1
    while not worker.other_processes():
        time.sleep(0.001)
    worker.freeze()
    assert stands_still(box)
    assert worker.other_processes() == []


@needs_gate
def test_a_worker_whose_supervisor_is_dead_is_not_sealed(boxes: Boxes, spec: Spec, held: Held) -> None:
    box = counting(boxes, COUNT_IN_A_THREAD, spec)
    worker = held(box)
    os.kill(box.supervisor, signal.SIGKILL)
    with pytest.raises(Dead):
        worker.seal()
    assert not worker.sealed
    worker.kill()


def test_a_worker_that_does_not_die_is_a_machine_error(boxes: Boxes, spec: Spec, held: Held) -> None:
    worker = held(counting(boxes, COUNT_IN_A_THREAD, spec))
    worker._dying = [worker._pidfd]  # as if it had been killed and went on
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "start_kill", lambda: None)
        with pytest.raises(MachineError, match="did not die within 0.1 s of SIGKILL"):
            worker.kill(timeout_s=0.1)
    worker.close()
    assert not worker._open


@pytest.mark.parametrize("how", ["freeze", "kill", "close"])
def test_without_a_pid_namespace_orphans_are_found_as_well(boxes: Boxes, spec: Spec, held: Held, how: str) -> None:
    layers = tuple(name for name in spec.layers if name != "pid-namespace")
    box = counting(boxes, COUNT_IN_A_CHILD, replace(spec, layers=layers))
    worker = held(box)
    (orphan,) = worker.other_processes()
    if how == "freeze":
        worker.freeze()
        assert worker.other_processes() == []
    elif how == "kill":
        worker.kill()
    else:  # the supervisor alone
        box.control.close()
        box.end()
        assert not os.path.exists(f"/proc/{orphan}")
    assert stands_still(box)
    worker.kill()
    worker.close()


def test_the_judge_holds_a_worker_to_a_core_with_all_its_threads(boxes: Boxes, spec: Spec, held: Held) -> None:
    box = counting(boxes, COUNT_IN_A_THREAD, spec)
    worker = held(box)
    core = max(os.sched_getaffinity(0))
    worker.pin(core)
    tasks = [int(name) for name in os.listdir(f"/proc/{box.pid}/task")]
    assert len(tasks) == 2
    assert [os.sched_getaffinity(task) for task in tasks] == [{core}] * 2


def test_the_judge_reads_a_stopped_workers_memory(boxes: Boxes, spec: Spec, held: Held) -> None:
    source = """
        import ctypes, time
        text = ctypes.create_string_buffer(b"what the judge must see")
        tell(ctypes.addressof(text))
        time.sleep(1000)
    """
    box = boxes.start(source, spec)
    box.report()
    address = box.value()
    worker = held(box)
    worker.freeze()
    assert read_memory(box.pid, address, 23) == b"what the judge must see"


def read_memory(pid: int, address: int, count: int) -> bytes:
    class Span(ctypes.Structure):
        _fields_ = [("start", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    libc = ctypes.CDLL(None, use_errno=True)
    out = ctypes.create_string_buffer(count)
    here, there = Span(ctypes.addressof(out), count), Span(address, count)
    got = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    assert got == count, os.strerror(ctypes.get_errno())
    return out.raw


# -- control groups ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cage() -> Iterator[Cage]:
    try:
        cage = Cage.make()
    except CgroupUnavailable as error:
        pytest.skip(f"no control groups for this user: {error}")
    yield cage
    cage.remove()


def test_a_cage_bounds_processes(boxes: Boxes, spec: Spec, cage: Cage) -> None:
    if "pids" not in cage.controllers:
        pytest.skip("this machine has no pids controller to give away")
    source = """
        import time
        while page[0] == 0:
            time.sleep(0.001)
        made = 0
        try:
            while made < 100:
                if os.fork() == 0:
                    time.sleep(1000)
                made += 1
        except BlockingIOError:
            pass
        tell(made)
        time.sleep(1000)
    """
    box = boxes.start(source, spec)
    box.report()
    cage.limit(tasks=10)
    cage.add(box.pid)
    box.page[0] = 1
    assert box.value() == 9
    assert len(cage.members()) == 10
    cage.remove()
    assert box.end() == signal.SIGKILL


def test_a_cage_bounds_shared_memory(boxes: Boxes, spec: Spec, cage: Cage) -> None:
    if "memory" not in cage.controllers:
        pytest.skip("this machine has no memory controller to give away")
    source = """
        import mmap, time
        while page[0] == 0:
            time.sleep(0.001)
        memory = mmap.mmap(-1, 256 << 20)
        for offset in range(0, len(memory), 4096):
            memory[offset] = 1
        tell("all of it")
    """
    box = boxes.start(source, spec)
    box.report()
    cage.limit(memory_bytes=64 << 20)
    cage.add(box.pid)
    box.page[0] = 1
    assert box.end() == signal.SIGKILL


def test_many_processes_take_no_more_of_a_core_than_one(boxes: Boxes, spec: Spec, cage: Cage) -> None:
    if "cpu" not in cage.controllers:
        pytest.skip("this machine has no cpu controller to give away")
    many = """
        import time
        while page[0] == 0:
            time.sleep(0.001)
        for _ in range(30):
            if os.fork() == 0:
                os.setsid()
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    pass
                os._exit(0)
        tell("busy")
        time.sleep(60)
    """
    one = """
        import time
        while page[0] == 0:
            time.sleep(0.001)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
        tell(time.process_time())
        time.sleep(60)
    """
    spec = replace(spec, core=max(os.sched_getaffinity(0)))
    crowd, single = boxes.start(many, spec), boxes.start(one, spec)
    crowd.report()
    single.report()
    other = Cage.make()
    try:
        for box, own in ((crowd, cage), (single, other)):
            own.add(box.pid)
            box.page[0] = 1
            took_s = box.value()
        assert isinstance(took_s, float)
        assert took_s > 0.25
    finally:
        other.remove()
