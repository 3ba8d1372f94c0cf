"""Read the memory of another process without affecting it: /proc/PID/mem and maps (proc(5)).

The process goes on meanwhile, so data may come from two instants. They count only if the thread to
which they belong has not moved. Reading needs the permission to ptrace(2), which an ancestor of the
same user has by default (Yama's ptrace_scope), but attaches to nothing.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from pytest_multihost.core.model.foreign_bytes import read_at
from pytest_multihost.core.watch.kernel.proc_files import read


@dataclass(frozen=True, slots=True)
class MemoryMapping:
    """One line of /proc/PID/maps.

    Attributes:
        flags: ``r``, ``w``, ``x``, and ``s`` for shared or ``p`` for private.
        device: The file's device, as it is written there.
        path: The file's path, a name in brackets, or empty for anonymous memory.
        offset: Where in the file it begins.
    """

    start: int
    end: int
    flags: str
    device: str
    inode: int
    path: str
    offset: int = 0

    @property
    def file(self) -> str:
        """Device and inode, as they are written there, which identify the file."""
        return f"{self.device} {self.inode}"

    @property
    def is_shared(self) -> bool:
        """Whether other processes may share this memory, and wake waiters on a futex in it."""
        return self.flags.endswith("s")

    @property
    def is_removed(self) -> bool:
        """Whether the name by which its file was opened is gone; the file may have another."""
        return self.path.endswith(" (deleted)")


@lru_cache(maxsize=1 << 12)  # processes forked from one have their libraries at equal addresses
def _mapping(line: bytes) -> MemoryMapping:
    addresses, flags, offset, device, inode, *rest = line.split(maxsplit=5)
    start, _, end = addresses.partition(b"-")
    path = rest[0] if rest else b""
    return MemoryMapping(
        int(start, 16),
        int(end, 16),
        flags.decode(),
        device.decode(),
        int(inode),
        path.decode("utf-8", "replace"),
        int(offset, 16),
    )


# Two snapshots of a world find the same maps, and of hundreds of lines only a few are ever parsed.
_KEPT_MAPS = 128


@lru_cache(maxsize=_KEPT_MAPS)
def _lines(maps: bytes) -> tuple[list[int], list[bytes]]:
    """Return the lines of maps, by address, with the address at which each begins."""
    lines = maps.splitlines()
    return [int(each[: each.index(b"-")], 16) for each in lines], lines


@lru_cache(maxsize=_KEPT_MAPS)
def _with_flag(maps: bytes, flag: bytes) -> tuple[MemoryMapping, ...]:
    lines = _lines(maps)[1]
    return tuple(_mapping(each) for each in lines if flag in each[: each.index(b" ") + 5])


@dataclass
class Memory:
    """The memory of one process during one snapshot."""

    pid: int
    _file: int | None = field(default=None, repr=False)

    def close(self) -> None:
        """Close the file of the memory."""
        if self._file is not None and self._file >= 0:
            os.close(self._file)
        self._file = None

    def read(self, address: int, size: int) -> bytes | None:
        """Return `size` bytes at `address`, None if they cannot be read."""
        data = self.read_up_to(address, size)
        return data if len(data) == size else None

    def read_up_to(self, address: int, size: int) -> bytes:
        """Return at most `size` bytes at `address`, up to the first page that cannot be read.

        The process may have chosen the size: a range that is too large is not read.
        """
        if self._file is None:
            self._file = -1
            with contextlib.suppress(OSError):
                self._file = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        if self._file < 0 or not address:
            return b""
        return read_at(self._file, size, address)

    def seconds(self, address: int, unit: float) -> float | None:
        """Return the timespec or timeval at `address`."""
        data = self.read(address, 16)
        if data is None:
            return None
        whole, part = (float(each) for each in struct.unpack("=qq", data))
        return whole + part / unit

    def text(self, address: int) -> str:
        """Return the string at `address`, up to the end of its page; empty if unreadable."""
        data = self.read(address, min(4096 - address % 4096, 1024))
        return data.partition(b"\0")[0].decode("utf-8", "backslashreplace") if data else ""

    @cached_property
    def _maps(self) -> bytes:
        """The text of its maps; empty if they cannot be read."""
        return read(f"/proc/{self.pid}/maps") or b""

    def mappings(self, flag: str) -> tuple[MemoryMapping, ...]:
        """Return all mappings with a flag, by address; none if they cannot be read."""
        return _with_flag(self._maps, flag.encode())

    def mapping(self, address: int) -> MemoryMapping | None:
        """Return the mapping in which `address` lies."""
        starts, lines = _lines(self._maps)
        at = bisect.bisect(starts, address) - 1
        found = _mapping(lines[at]) if at >= 0 else None
        return found if found and address < found.end else None

    def file_of_data(self, address: int) -> str:
        """Return the path of the file whose data are at `address`, empty if there is none.

        Data that begin as zeros have no file; their mapping follows that of the file's other data.
        """
        found = self.mapping(address)
        if found is None or found.path:
            return found.path if found is not None else ""
        before = self.mapping(found.start - 1)
        return before.path if before is not None else ""
