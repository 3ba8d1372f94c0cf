"""What processes outside the world have open and mapped: read once in a snapshot, if it matters."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pytest_multihost.watch.kernel.memory import Mapping
from pytest_multihost.watch.kernel.proc_files import entries, link, maps_file, read

EVENTFD = "anon_inode:[eventfd]"
_REMOVED = " (deleted)"
_EVENTFD_ID = re.compile(rb"^eventfd-id:\s*(\d+)", re.MULTILINE)


@dataclass
class ForeignProcesses:
    """All processes that do not belong to the world and may do something with what they have.

    Those of other users cannot be read. Of what has no name they can only have what a common
    ancestor gave them.

    Attributes:
        pids: Their ids.
    """

    pids: Collection[int]
    _known: dict[str, bool] = field(default_factory=dict)

    def holders(self, target: str) -> list[tuple[int, int]]:
        """Return who holds the pipe or socket that a link leads to: process and descriptor."""
        return self._held.get(target, [])

    def has(self, mapping: Mapping) -> bool:
        """Return whether any of them has a file without a name, mapped or open."""
        if mapping.file not in self._known:
            is_mapped = any(maps_file(pid, mapping.file) for pid in self.pids)
            self._known[mapping.file] = is_mapped or mapping.file in self._removed
        return self._known[mapping.file]

    @cached_property
    def eventfds(self) -> dict[int | None, int]:
        """Who holds which eventfd, by the kernel's number for it; None where it has none."""
        return {eventfd_id(*each): each[0] for each in self.holders(EVENTFD)}

    @cached_property
    def _removed(self) -> frozenset[str]:
        """Files that are open and have no name any more, as `Mapping.file` has them."""
        targets = [target for target in self._held if target.endswith(_REMOVED)]
        return frozenset(_file(*each) for target in targets for each in self._held[target])

    @cached_property
    def _held(self) -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = {}
        for pid, fd, target in self._links():
            is_stream = target.startswith(("pipe:", "socket:"))
            if is_stream or target == EVENTFD or target.endswith(_REMOVED):
                found.setdefault(target, []).append((pid, fd))
        return found

    def _links(self) -> Iterator[tuple[int, int, str]]:
        for pid in self.pids:
            for fd in entries(f"/proc/{pid}/fd") or ():
                yield pid, fd, link(f"/proc/{pid}/fd/{fd}")


def eventfd_id(pid: int, fd: int) -> int | None:
    """Return the kernel's number of an eventfd, the same in whatever process; None if unknown.

    It is in fdinfo since Linux 5.2 (https://docs.kernel.org/filesystems/proc.html).
    """
    found = _EVENTFD_ID.search(read(f"/proc/{pid}/fdinfo/{fd}") or b"")
    return int(found[1]) if found else None


def _file(pid: int, fd: int) -> str:
    """Return which file is open, as the lines of maps have it; empty if it is not any more."""
    try:
        found = os.stat(f"/proc/{pid}/fd/{fd}")  # noqa: PTH116 - as for PTH115
    except OSError:
        return ""
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x} {found.st_ino}"
