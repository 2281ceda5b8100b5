"""How much of the host's memory a worker on a GPU holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cudal1_env.errors import MachineError
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.headroom import check_host_memory, drivers_bytes, held_bytes
from cudal1_env.records import Status

MIB = 1 << 20
HOLD = """
import mmap, sys
block = mmap.mmap(-1, {size}, flags=mmap.MAP_ANONYMOUS | mmap.{kind})
for place in range(0, {size}, 4096):
    block[place] = 1
print("ready", flush=True)
sys.stdin.read()
"""
MAPS = """\
200000000-300200000 ---p 00000000 00:00 0
7f0000000000-7f0040000000 rw-s 00000000 00:05 812 /dev/nvidia-uvm
7f0040000000-7f0040200000 rw-s 00000000 00:05 813                        /dev/nvidia0
7f0040200000-7f0040400000 r--s 00000000 00:05 813                        /dev/nvidia0
7f0050000000-7f0090000000 rw-p 00000000 00:00 0
7f00a0000000-7f00b0000000 rw-s 00000000 00:01 99                         /memfd:/dev/nvidia0 (deleted)
"""


@pytest.mark.parametrize("kind", ["MAP_SHARED", "MAP_PRIVATE"])
def test_what_a_process_holds_counts_shared_or_not(kind: str) -> None:
    size = 256 * MIB
    command = [sys.executable, "-c", HOLD.format(size=size, kind=kind)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert size <= held_bytes(process.pid) < 2 * size
        check_host_memory(process.pid, 2 * size)
        with pytest.raises(Fault, match=r"holds 0\.2[5-9]\d* GiB .* limit is 0\.25 GiB") as found:
            check_host_memory(process.pid, size)
        assert found.value.status is Status.OUT_OF_MEMORY
        process.kill()
        process.wait()
    assert held_bytes(process.pid) == 0


def test_a_process_that_may_not_be_looked_at_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(MachineError, match="judge as root"):
        held_bytes(1)


def test_what_the_driver_maps_writable_counts() -> None:
    assert drivers_bytes(MAPS) == 1024 * MIB + 2 * MIB
    assert drivers_bytes("") == 0
