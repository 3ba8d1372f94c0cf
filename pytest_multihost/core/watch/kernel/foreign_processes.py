"""The processes that do not belong to a world, and what they have open and mapped.

Read once in a snapshot, and only if it matters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from pytest_multihost.core.model.process import Process
from pytest_multihost.core.proof.runtime_threads import is_runtime_thread
from pytest_multihost.core.watch.kernel.memory import MemoryMapping
from pytest_multihost.core.watch.kernel.proc_files import entries, link, read

EVENTFD = "anon_inode:[eventfd]"
_REMOVED = " (deleted)"
_EVENTFD_ID = re.compile(rb"^eventfd-id:\s*(\d+)", re.MULTILINE)


@dataclass
class ForeignProcesses:
    """All processes that do not belong to the world and may do something with what they have.

    Those of other users cannot be read. Of what has no name they can only have what a common
    ancestor gave them.
    """

    pids: Collection[int]
    _known: dict[str, bool] = field(default_factory=dict)

    def holders(self, target: str) -> list[tuple[int, int]]:
        """Return process id and descriptor of each holder of the pipe or socket `target`."""
        return self._held.get(target, [])

    def has(self, mapping: MemoryMapping) -> bool:
        """Return whether any of them has a file without a name, mapped or open."""
        if mapping.file not in self._known:
            line_part = f" {mapping.file} ".encode()
            # Unreadable: gone, without memory of its own, or another user's.
            is_mapped = any(line_part in (read(f"/proc/{pid}/maps") or b"") for pid in self.pids)
            self._known[mapping.file] = is_mapped or mapping.file in self._removed
        return self._known[mapping.file]

    @cached_property
    def eventfds(self) -> dict[int | None, int]:
        """Who holds which eventfd, by the kernel's number for it; None where it has none."""
        return {eventfd_id(*each): each[0] for each in self.holders(EVENTFD)}

    @cached_property
    def _removed(self) -> frozenset[str]:
        """Files that are open and have no name any more, as `MemoryMapping.file` has them."""
        found = set()
        for target, holders in self._held.items():
            for pid, fd in holders if target.endswith(_REMOVED) else ():
                with suppress(OSError):  # not open any more
                    file = os.stat(f"/proc/{pid}/fd/{fd}")  # noqa: PTH116 - as for PTH115
                    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
                    found.add(f"{device} {file.st_ino}")
        return frozenset(found)

    @cached_property
    def _held(self) -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = {}
        for pid in self.pids:
            for fd in entries(f"/proc/{pid}/fd") or ():
                target = link(f"/proc/{pid}/fd/{fd}")
                is_stream = target.startswith(("pipe:", "socket:"))
                if is_stream or target == EVENTFD or target.endswith(_REMOVED):
                    found.setdefault(target, []).append((pid, fd))
        return found


def eventfd_id(pid: int, fd: int) -> int | None:
    """Return the kernel's number of an eventfd, the same in whatever process; None if unknown.

    It is in fdinfo since Linux 5.2 (https://docs.kernel.org/filesystems/proc.html).
    """
    found = _EVENTFD_ID.search(read(f"/proc/{pid}/fdinfo/{fd}") or b"")
    return int(found[1]) if found else None


def with_eventfd_holders(
    process: Process, foreign: ForeignProcesses, names: Mapping[int, str]
) -> Process:
    """Return a process with the other processes that may write to the eventfds it waits for.

    All eventfds have the same link in /proc/PID/fd; only the number in fdinfo distinguishes them.

    Waits of its runtime's own threads are left out: they do not matter, and resolving them is not
    free, since any process may hold the eventfd.
    """
    found = dict(process.descriptors)
    waited = {
        fd
        for each in process.threads
        if each is process.main or not (process.is_rank and is_runtime_thread(each))
        for fd in each.fds or ()
    }
    todo = list(waited)
    while todo:
        fd = todo.pop()
        new = set(found[fd].watched or ()) - waited if fd in found else set()
        waited |= new
        todo += new
        if fd not in found or found[fd].kind != "eventfd":
            continue
        number = eventfd_id(process.pid, fd) if foreign.eventfds else 0
        if number is None:
            found[fd] = replace(found[fd], where="unknown")
        elif number in foreign.eventfds:
            holder = foreign.eventfds[number]
            peer = f"{names.get(holder, '')} {holder}"
            found[fd] = replace(found[fd], where="outside", peer=peer)
    return replace(process, descriptors=found)
