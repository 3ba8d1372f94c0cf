"""Read the memory of another process without touching it: limits of waits, and whose code waits."""

from __future__ import annotations

import array
import bisect
import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pytest_multihost.proof.instructions import BYTES, is_call

_ADDRESS_BITS = (1 << 48) - 1
"""The rest of a pointer may carry its signature (aarch64)."""

_MAX_STACK = 1 << 19
_MACHINE = os.uname().machine


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps."""

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
    """The memory of one process during one look."""

    pid: int
    _file: int | None = field(default=None, repr=False)
    _calls: dict[int, bool] = field(default_factory=dict, repr=False)

    def close(self) -> None:
        """Let go of it."""
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
    def mappings(self) -> tuple[Mapping, ...]:
        """All mappings by address; none where they cannot be read."""
        try:
            with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as for PTH115
                return tuple(_mapping(line) for line in file)
        except OSError:
            return ()

    def mapping(self, address: int) -> Mapping | None:
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

    def returns(self, pointer: int) -> tuple[tuple[str, int], ...] | None:
        """Return where the stack at `pointer` returns to: file and offset; None if unreadable.

        Innermost first. Every word that could be a return address counts: it points into code,
        behind a call. A place may be named that is not returned to any more, but none that is there
        is missed.
        """
        stack = self.mapping(pointer)
        if stack is None or stack.end - pointer > _MAX_STACK:
            return None
        pointer &= ~7
        data = self.read(pointer, stack.end - pointer)
        if data is None:
            return None
        return tuple((mapping.path, offset) for mapping, offset in self._returns(data))

    def is_return(self, pointer: int) -> bool:
        """Tell whether the word at `pointer` is a return address.

        It is in a wait that is made by libc's `syscall`, which keeps nothing else on the stack.
        """
        data = self.read(pointer, 8)
        return data is not None and any(self._returns(data))

    def _returns(self, stack: bytes) -> Iterator[tuple[Mapping, int]]:
        starts, mappings = self._code
        for word in array.array("Q", stack):
            address = word & _ADDRESS_BITS
            at = bisect.bisect(starts, address) - 1
            if at >= 0 and address < mappings[at].end and self._is_behind_call(address):
                yield mappings[at], address - mappings[at].start + mappings[at].offset

    def _is_behind_call(self, address: int) -> bool:
        """Tell whether a call ends at `address`; it may where that cannot be read."""
        if address not in self._calls:
            before = self.read(address - BYTES, BYTES)
            self._calls[address] = before is None or is_call(before, _MACHINE)
        return self._calls[address]

    @cached_property
    def _code(self) -> tuple[list[int], list[Mapping]]:
        mappings = [each for each in self.mappings if "x" in each.flags]
        return [each.start for each in mappings], mappings


def _mapping(line: str) -> Mapping:
    place, flags, offset, device, inode, *path = line.split(maxsplit=5)
    start, _, end = place.partition("-")
    name, file = "".join(path).rstrip("\n"), f"{device} {inode}"
    return Mapping(int(start, 16), int(end, 16), flags, file, name, int(offset, 16))
