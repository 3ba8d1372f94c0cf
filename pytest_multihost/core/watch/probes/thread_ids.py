"""Translates the ids of a process's threads into the ids of this process's PID namespace.

A process in a container has ids of its own for its threads, those of its PID namespace. Python 3.10
and older do not keep these ids; there, only the address of libc's descriptor of each thread is
known (pthread_self(3)).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import closing

from pytest_multihost.core.watch.kernel.memory import Memory
from pytest_multihost.core.watch.kernel.proc_files import entries, read_status

_TID_AT = {"x86_64": 720, "aarch64": 208}
"""Where glibc's descriptor of a thread (`struct pthread` in nptl/descr.h) has the thread's id.

It is private to glibc. The value there counts only if it is the id of a thread of that process,
another one for each descriptor.
"""


def ids_by_own_id(pid: int) -> Mapping[int, int]:
    """Return the id of each thread of a process by the id that the process itself sees."""
    tids = entries(f"/proc/{pid}/task") or ()
    if len(_ids(f"/proc/{pid}")) == 1:  # it is in the same PID namespace
        return {tid: tid for tid in tids}
    found = ((_ids(f"/proc/{pid}/task/{tid}"), tid) for tid in tids)
    return {ids[-1]: tid for ids, tid in found if ids}


def _ids(directory: str) -> list[int]:
    """Return the ids of a thread in each PID namespace from this one inwards (NSpid, proc(5))."""
    return [int(each) for each in read_status(directory).get("NSpid", "0").split()]


def ids_by_handle(
    pid: int, handles: Collection[int], by_own_id: Mapping[int, int]
) -> Mapping[int, int]:
    """Return the id of each thread by the address of its descriptor; empty if it is not known.

    Args:
        by_own_id: The ids of all threads of the process by the ids that the process itself sees.
    """
    at = _TID_AT.get(os.uname().machine)
    if at is None:
        return {}
    with closing(Memory(pid)) as memory:
        words = {each: memory.read(each + at, 4) or b"" for each in handles}
    found = {each: by_own_id.get(int.from_bytes(w, "little"), 0) for each, w in words.items()}
    is_sound = 0 not in found.values() and len({*found.values()}) == len(found)
    return found if is_sound else {}
