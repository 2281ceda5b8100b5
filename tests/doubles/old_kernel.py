"""Imported into a zygote of tests: from then on it finds a kernel without mount_setattr, as before Linux 5.12."""

from __future__ import annotations

import errno

from cudal1_worker.sandbox import libc


def absent(path: str, flags: int, *, recursive: bool = False) -> None:
    raise OSError(errno.ENOSYS, f"mount_setattr of {path}")


libc.mount_setattr = absent
