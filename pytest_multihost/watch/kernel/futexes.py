"""Who can wake a thread that waits for a word in memory (futex(2)), and whether it is the GIL's."""

from __future__ import annotations

import os
import re

from pytest_multihost.model.process import NEVER, Where
from pytest_multihost.proof.threads import SystemCall, is_interpreter
from pytest_multihost.watch.kernel.descriptors import Tables
from pytest_multihost.watch.kernel.memory import Memory, MemoryMapping

_NUMBERED = "/SYSV"
"""System V memory is no file and always called removed; any process of its user can attach it."""

_RANDOM_NAME = re.compile(r"sem\.(mp|loky-[0-9]+)-[a-z0-9_]{8}")
"""Semaphores of multiprocessing and loky, which have their names for spawned children."""

_ANONYMOUS = "/dev/zero (deleted)"
_UNREADABLE = ""


def who_wakes(call: SystemCall, memory: Memory, tables: Tables | None) -> Where:
    """Return who can wake a thread that waits for a futex, by the page in which that lies.

    Args:
        call: What the thread waits in; what is no futex, only its own process can wake.
        memory: Of its process.
        tables: All processes; None in a shallow snapshot.
    """
    if not call.is_futex or call.is_private_futex:
        return "inside"
    # futex_waitv waits for several words, which are not worth reading: nobody uses it here.
    mapping = None if call.name == "futex_waitv" else memory.mapping(call.args[0])
    if mapping is None or tables is None:
        return "unknown"
    if not mapping.is_shared:
        return "inside"
    if can_be_opened(mapping, memory.pid):
        return "unknown"
    return "outside" if tables.foreign.has(mapping) else "inside"


def can_be_opened(mapping: MemoryMapping, pid: int) -> bool:
    """Return whether a process that does not have a file yet may open it: by name, or by number.

    Nobody guesses a random name, and the process that made it up hands it only to its children.
    """
    if mapping.path.startswith(_NUMBERED):
        return True
    if not mapping.is_removed:
        return not _RANDOM_NAME.fullmatch(os.path.basename(mapping.path))  # noqa: PTH119 - as for PTH115
    return any(not _RANDOM_NAME.fullmatch(name) for name in _other_names(mapping, pid))


def _other_names(mapping: MemoryMapping, pid: int) -> list[str]:
    """Return the names that a removed file still has in its directory.

    glibc makes a semaphore under one name, gives it its own and removes the first, by which the
    kernel goes on calling it (https://sourceware.org/git/glibc.git, sysdeps/pthread/sem_open.c).
    """
    directory = os.path.dirname(mapping.path)  # noqa: PTH120 - as for PTH115
    if directory == "/" or mapping.path == _ANONYMOUS:  # no file, but what the kernel calls one
        return []
    inode = int(mapping.file.split()[1])
    try:
        with os.scandir(f"/proc/{pid}/root{directory}") as found:
            return [each.name for each in found if each.inode() == inode]
    except FileNotFoundError:
        return []
    except OSError:
        return [_UNREADABLE]


def waits_for_gil(call: SystemCall, memory: Memory, ends_s: float | None) -> bool:
    """Return whether a thread waits for its turn to run Python.

    It asks for the GIL every five milliseconds
    (https://docs.python.org/3/library/sys.html#sys.setswitchinterval), and the word that it waits
    for lies in the interpreter's data; those of locks and queues lie on the heap.
    """
    is_timed = call.name == "futex" and ends_s != NEVER
    return is_timed and is_interpreter(memory.file_of_data(call.args[0]))
