"""Find the processes that can wake a thread that waits for a word in memory (futex(2))."""

from __future__ import annotations

import os
import re

from pytest_multihost.core.model.process import NEVER, Where
from pytest_multihost.core.proof.runtime_threads import is_interpreter
from pytest_multihost.core.proof.system_calls import FUTEXES, SystemCall
from pytest_multihost.core.watch.kernel.descriptors import Tables
from pytest_multihost.core.watch.kernel.memory import Memory, MemoryMapping

_NUMBERED = "/SYSV"
"""System V memory: no file, always marked as removed, and any process of its user can attach it."""

_RANDOM_NAME = re.compile(r"sem\.(mp|loky-[0-9]+)-[a-z0-9_]{8}")
"""Semaphores of multiprocessing and loky, which have names only for spawned children."""

_ANONYMOUS = "/dev/zero (deleted)"


def who_wakes(call: SystemCall, memory: Memory, tables: Tables | None) -> Where:
    """Return where the wakers of a waiting thread may be, from the memory page of its futex.

    Args:
        call: The system call of the wait; unless it is a futex call, the result is "inside".
        tables: None in a shallow snapshot.
    """
    if call.name not in FUTEXES or call.is_private_futex:
        return "inside"
    # futex_waitv waits for several words, which are not read: it is not used in practice.
    mapping = None if call.name == "futex_waitv" else memory.mapping(call.args[0])
    if mapping is None or tables is None:
        return "unknown"
    if not mapping.is_shared:
        return "inside"
    if can_be_opened(mapping, memory.pid):
        return "unknown"
    return "outside" if tables.foreign.has(mapping) else "inside"


def can_be_opened(mapping: MemoryMapping, pid: int) -> bool:
    """Return whether a process that does not have a file yet may open it, by name or by number.

    Random names cannot be guessed; the process that made one passes it only to its children.

    glibc creates a semaphore under a temporary name, links it to its own name and removes the
    first, which the kernel goes on reporting (https://sourceware.org/git/glibc.git,
    sysdeps/pthread/sem_open.c). So other names of a removed file are searched in its directory.
    """
    directory, name = os.path.split(mapping.path)
    if mapping.path.startswith(_NUMBERED):
        return True
    if not mapping.is_removed:
        return not _RANDOM_NAME.fullmatch(name)
    if directory == "/" or mapping.path == _ANONYMOUS:  # anonymous memory, not a file
        return False
    try:
        with os.scandir(f"/proc/{pid}/root{directory}") as found:
            names = [each.name for each in found if each.inode() == mapping.inode]
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it may have any name
    return not all(map(_RANDOM_NAME.fullmatch, names))


def waits_for_gil(call: SystemCall, memory: Memory, ends_s: float | None) -> bool:
    """Return whether a thread waits for its turn to run Python.

    Such a thread requests the GIL every five milliseconds
    (https://docs.python.org/3/library/sys.html#sys.setswitchinterval). Its futex lies in the
    interpreter's data; futexes of locks and queues lie on the heap.
    """
    is_timed = call.name == "futex" and ends_s != NEVER
    return is_timed and is_interpreter(memory.file_of_data(call.args[0]))
