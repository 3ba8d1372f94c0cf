"""Read the memory of another process without touching it: /proc/PID/mem and maps (proc(5)).

The process goes on meanwhile, so that what is read may be of two instants; it counts only where the
thread that it belongs to has not moved. It takes the permission to ptrace(2), which an ancestor of
the same user has by default (Yama's ptrace_scope), but attaches to nothing.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class MemoryMapping:
    """One line of /proc/PID/maps.

    Attributes:
        start: Its first address.
        end: The address behind its last.
        flags: ``r``, ``w``, ``x``, and ``s`` for shared or ``p`` for private.
        file: Device and inode, as they are written there.
        path: The file's path, something in brackets, or empty for anonymous memory.
        offset: Where in the file it begins.
    """

    start: int
    end: int
    flags: str
    file: str
    path: str
    offset: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether other processes may see the same memory, and wake who waits for a word in it."""
        return self.flags.endswith("s")

    @property
    def is_removed(self) -> bool:
        """Whether the name by which its file was opened is gone; the file may have another."""
        return self.path.endswith(" (deleted)")


@dataclass
class Memory:
    """The memory of one process during one snapshot."""

    pid: int
    _file: int | None = field(default=None, repr=False)

    def close(self) -> None:
        """Close it."""
        if self._file is not None and self._file >= 0:
            os.close(self._file)
        self._file = None

    def read(self, address: int, size: int) -> bytes | None:
        """Return `size` bytes at `address`, None where they cannot be read."""
        if self._file is None:
            self._file = self._open()
        if self._file < 0 or not address:
            return None
        try:
            data = os.pread(self._file, size, address)
        except (OSError, OverflowError):
            return None
        return data if len(data) == size else None

    def _open(self) -> int:
        with contextlib.suppress(OSError):
            return os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        return -1

    def seconds(self, address: int, unit: float) -> float | None:
        """Return the timespec or timeval at `address`."""
        data = self.read(address, 16)
        if data is None:
            return None
        whole, part = (float(each) for each in struct.unpack("=qq", data))
        return whole + part / unit

    def text(self, address: int) -> str:
        """Return the string at `address`, as far as it lies on its page; empty if unreadable."""
        data = self.read(address, min(4096 - address % 4096, 1024))
        return data.partition(b"\0")[0].decode("utf-8", "backslashreplace") if data else ""

    @cached_property
    def mappings(self) -> tuple[MemoryMapping, ...]:
        """All mappings by address; none where they cannot be read."""
        try:
            with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as for PTH115
                return tuple(_mapping(line) for line in file)
        except OSError:
            return ()

    def mapping(self, address: int) -> MemoryMapping | None:
        """Return the mapping in which `address` lies."""
        at = bisect.bisect(self.mappings, address, key=lambda each: each.start) - 1
        found = self.mappings[at] if at >= 0 else None
        return found if found and address < found.end else None

    def file_of_data(self, address: int) -> str:
        """Return the path of the file whose data are at `address`, empty if they are none's.

        Data that begin as zeros have no file of their own: they follow the others.
        """
        found = self.mapping(address)
        if found is None or found.path:
            return found.path if found is not None else ""
        before = self.mapping(found.start - 1)
        return before.path if before is not None else ""


def _mapping(line: str) -> MemoryMapping:
    place, flags, offset, device, inode, *path = line.split(maxsplit=5)
    start, _, end = place.partition("-")
    name, file = "".join(path).rstrip("\n"), f"{device} {inode}"
    return MemoryMapping(int(start, 16), int(end, 16), flags, file, name, int(offset, 16))
