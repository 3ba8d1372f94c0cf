"""Who can wake a thread that waits for a word in memory, and whether it waits to run Python."""

from __future__ import annotations

import os
import re

from pytest_multihost.model.process import NEVER, Where
from pytest_multihost.proof import system_calls as calls
from pytest_multihost.proof.thread_owners import is_interpreter
from pytest_multihost.watch.kernel.descriptors import Tables
from pytest_multihost.watch.kernel.memory import Mapping, Memory

_NUMBERED = "/SYSV"
"""System V memory is no file and always called removed; any process of its user can attach it."""

_DRAWN = re.compile(r"sem\.(mp|loky-[0-9]+)-[a-z0-9_]{8}")
"""Semaphores of multiprocessing and loky, which have their names for spawned children."""

_ANONYMOUS = "/dev/zero (deleted)"
_UNREADABLE = ""


def who_wakes(call: str, args: tuple[int, ...], memory: Memory, tables: Tables | None) -> Where:
    """Tell who can wake a thread that waits for a futex, by the page in which that lies.

    Args:
        call: What the thread waits in; what is no futex, only its own process can wake.
        args: The arguments.
        memory: Of its process.
        tables: All processes; None if they are not looked at.
    """
    if call not in calls.FUTEXES or calls.is_private_futex(call, args):
        return "inside"
    mapping = None if call == "futex_waitv" else memory.mapping(args[0])
    if mapping is None or tables is None:
        return "unknown"
    if not mapping.is_shared:
        return "inside"
    if can_be_opened(mapping, memory.pid):
        return "unknown"
    return "outside" if tables.outsiders.have(mapping) else "inside"


def can_be_opened(mapping: Mapping, pid: int) -> bool:
    """Tell whether anybody may get at a file that he does not have yet: by a name, or its number.

    Nobody guesses a name that was drawn by lot, and those who draw it tell only their children.
    """
    if mapping.path.startswith(_NUMBERED):
        return True
    if not mapping.is_removed:
        return not _DRAWN.fullmatch(os.path.basename(mapping.path))  # noqa: PTH119 - as for PTH115
    return any(not _DRAWN.fullmatch(name) for name in _other_names(mapping, pid))


def _other_names(mapping: Mapping, pid: int) -> list[str]:
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


def is_for_interpreter(
    call: str, args: tuple[int, ...], memory: Memory, ends_s: float | None
) -> bool:
    """Tell whether a thread waits for its turn to run Python.

    It asks for it every five milliseconds
    (https://docs.python.org/3/library/sys.html#sys.setswitchinterval), and the word that it waits
    for lies in the interpreter; those of locks and queues lie on the heap.
    """
    is_timed = call == "futex" and ends_s != NEVER
    return is_timed and is_interpreter(memory.file_of_data(args[0]))
