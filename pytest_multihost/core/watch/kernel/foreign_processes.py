"""Read the open and mapped files of processes that do not belong to a world.

They are read at most once in a snapshot, and only if needed.
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
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses
from pytest_multihost.core.watch.kernel.memory import MemoryMapping
from pytest_multihost.core.watch.kernel.proc_files import entries, link, read

EVENTFD = "anon_inode:[eventfd]"
_REMOVED = " (deleted)"
_EVENTFD_ID = re.compile(rb"^eventfd-id:\s*(\d+)", re.MULTILINE)


@dataclass
class ForeignProcesses:
    """All processes outside of the world that may use their descriptors and memory.

    Processes of other users cannot be read. They can share an object without a name only if a
    common ancestor gave it to them.
    """

    pids: Collection[int]
    _known: dict[str, bool] = field(default_factory=dict)

    def holders(self, target: str) -> list[tuple[int, int]]:
        """Return process id and descriptor of each holder of a pipe, socket or eventfd."""
        return self._held.get(target, [])

    def has(self, mapping: MemoryMapping) -> bool:
        """Return whether any of them has mapped or opened a file that has no name."""
        if mapping.file not in self._known:
            line_part = f" {mapping.file} ".encode()
            # The maps of a process are unreadable if it is gone, a kernel thread or another user's.
            is_mapped = any(line_part in (read(f"/proc/{pid}/maps") or b"") for pid in self.pids)
            self._known[mapping.file] = is_mapped or mapping.file in self._removed
        return self._known[mapping.file]

    @cached_property
    def eventfds(self) -> Mapping[int | None, list[int]]:
        """The holders of each eventfd, by the kernel's number of it; None for unknown numbers."""
        found: dict[int | None, list[int]] = {}
        for each in self.holders(EVENTFD):
            found.setdefault(eventfd_id(*each), []).append(each[0])
        return found

    @cached_property
    def _removed(self) -> frozenset[str]:
        """Open files that have no name any more, in the form of `MemoryMapping.file`."""
        found = set()
        for target, holders in self._held.items():
            for pid, fd in holders if target.endswith(_REMOVED) else ():
                with suppress(OSError):  # it is not open any more
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
    """Return the kernel's number of an eventfd, the same in all processes; None if unknown.

    fdinfo has it since Linux 5.2 (https://docs.kernel.org/filesystems/proc.html).
    """
    found = _EVENTFD_ID.search(read(f"/proc/{pid}/fdinfo/{fd}") or b"")
    return int(found[1]) if found else None


def with_eventfd_holders(
    process: Process, foreign: ForeignProcesses, names: Mapping[int, str], harness: HarnessProcesses
) -> Process:
    """Return a process with the other processes that may write to the eventfds it waits for.

    All eventfds have the same link in /proc/PID/fd; only the number in fdinfo distinguishes them.

    Waits of its runtime's own threads are skipped: they do not matter, and resolving them costs
    time, because any process may hold the eventfd.
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
            holders = foreign.eventfds[number]
            if harness.owns(holders):
                found[fd] = replace(found[fd], where="harness", peer=harness.title)
                continue
            peer = f"{names.get(holders[0], '')} {holders[0]}"
            found[fd] = replace(found[fd], where="outside", peer=peer)
    return replace(process, descriptors=found)
