"""Assembler for seccomp programs.

A program is a list of instructions `(code, jump if true, jump if false, constant)`. Every rule ends in a return or
falls through to the next rule, so no jump leaves its rule.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

Instruction = tuple[int, int, int, int]

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
NOTIFY = 0x7FC00000
_ERRNO = 0x00050000

# Operation codes.
_LOAD = 0x20
_RETURN = 0x06
_IF_EQUAL = 0x15
_IF_GREATER = 0x25
_IF_AT_LEAST = 0x35
_IF_ANY_BIT = 0x45
# Offsets in `struct seccomp_data`.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16
_X86_64 = 0xC000003E
_X32_BIT = 0x40000000


def errno(number: int) -> int:
    """Return the action that makes a call fail with `number`."""
    return _ERRNO | number


def prologue(newest: int, unknown: int) -> list[Instruction]:
    """Kill on other architectures or the x32 interface, take `unknown` above `newest`, and load the call's number."""
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_IF_GREATER, 0, 1, newest),
        (_RETURN, 0, 0, unknown),
    ]


def on_call(number: int, action: int) -> list[Instruction]:
    """Take `action` on a call with any arguments."""
    return [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, action)]


def on_argument(number: int, position: int, tests: Sequence[tuple[str, int, int]], otherwise: int) -> list[Instruction]:
    """Decide on the low 32 bits of one argument.

    Args:
        number: The call's number.
        position: Position of the argument, from 0.
        tests: `("equal" | "any-bit", constant, action)`; the first match decides.
        otherwise: Action if no test matches.
    """
    kinds = {"equal": _IF_EQUAL, "any-bit": _IF_ANY_BIT}
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * position)]
    for kind, constant, action in tests:
        body += [(kinds[kind], 0, 1, constant), (_RETURN, 0, 0, action)]
    body.append((_RETURN, 0, 0, otherwise))
    return [(_IF_EQUAL, 0, len(body), number), *body]


def finish(rules: Sequence[Sequence[Instruction]]) -> list[Instruction]:
    """Join rules into a program that allows all other calls."""
    return [*(instruction for rule in rules for instruction in rule), (_RETURN, 0, 0, ALLOW)]


class Program(ctypes.Structure):
    """`struct sock_fprog`; keeps its instructions alive."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    @classmethod
    def of(cls, instructions: Sequence[Instruction]) -> Program:
        """Assemble instructions."""
        data = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
        return cls(len(instructions), data)
