"""Reads a variable of the environment that a running program has set itself, from its memory.

/proc/PID/environ shows only the variables with which a program was started. Python passes a change
of `os.environ` on to the C library, which keeps a pointer to the present variables in `environ`.
"""

from __future__ import annotations

import ctypes
import os
import struct

from pytest_multihost.core.watch.kernel.memory import Memory

_WORD = 8
_MAX_VARIABLES = 4096
_MAX_BYTES = 64


def set_variable(pid: int, name: str) -> str | None:
    """Return the present value of a short variable of a process; None if it cannot be read."""
    own, memory = Memory(os.getpid()), Memory(pid)
    try:
        pointer = ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ"))
        return _value(memory, _same_place(own, memory, pointer), name)
    except ValueError:  # a C library without it
        return None
    finally:
        own.close()
        memory.close()


def _same_place(own: Memory, other: Memory, address: int) -> int:
    """Return where another process has the data that this one has at an address; 0 if unknown.

    Both must have loaded the same file, as copies of one Python have.
    """
    path = own.file_of_data(address)
    here, there = ([e for e in m.mappings("r") if e.path == path] for m in (own, other))
    if not path or not here or not there or here[0].file != there[0].file:
        return 0
    return address - here[0].start + there[0].start


def _value(memory: Memory, pointer: int, name: str) -> str | None:
    first = _words(memory.read_up_to(pointer, _WORD))
    beginning = f"{name}=".encode()
    for address in _words(memory.read_up_to(first[0], _MAX_VARIABLES * _WORD)) if first else ():
        if not address:
            return None
        text, end, _ = memory.read_up_to(address, _MAX_BYTES).partition(b"\0")
        if end and text.startswith(beginning):
            return text.removeprefix(beginning).decode(errors="replace")
    return None


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"={len(data) // _WORD}Q", data[: len(data) // _WORD * _WORD])
