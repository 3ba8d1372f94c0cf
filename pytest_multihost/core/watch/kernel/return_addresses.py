"""Find return addresses on the stack of a thread that goes on, without an unwinder.

A stack is full of remains of ended frames, and a new thread often reuses the stack of an ended
thread. So a word counts as a return address only if it points into code and the bytes before its
target are a call instruction, because a return address follows the call. Of the pointers to
functions, and of the numbers that happen to point into code, a few in a thousand pass that test.
The result may contain old return addresses, but misses no current one.
`core/proof/runtime_threads.py` uses it.
"""

from __future__ import annotations

import array
import bisect
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pytest_multihost.core.watch.kernel.memory import Memory, MemoryMapping
from pytest_multihost.core.watch.kernel.proc_files import link, root_of

BYTES = 8
"""How many bytes before an address are needed to decide."""

# Intel's manual, volume 2, CALL: E8 and a distance of four bytes; or FF with 2 in the middle bits
# of the next byte, an instruction of two to seven bytes.
_NEAR, _NEAR_SIZE = 0xE8, 5
_INDIRECT, _INDIRECT_SIZES = 0xFF, (2, 3, 4, 6, 7)

# Arm's manual, C6.2: BL; BLR, and its forms with a signed address.
_BRANCHES = ((0xFC000000, 0x94000000), (0xFFFFFC1F, 0xD63F0000), (0xFEFFF800, 0xD63F0800))


def is_call(before: bytes, machine: str) -> bool:
    """Return whether code that ends in these bytes ends in a call instruction.

    Args:
        before: The last `BYTES` of the code.
        machine: As in `os.uname`; on an unknown machine, anything may be a call.
    """
    if machine == "x86_64":
        return before[-_NEAR_SIZE] == _NEAR or any(
            before[-size] == _INDIRECT and before[1 - size] >> 3 & 7 == 2  # noqa: PLR2004 - above
            for size in _INDIRECT_SIZES
        )
    if machine == "aarch64":
        word = int.from_bytes(before[-4:], "little")
        return any(word & mask == value for mask, value in _BRANCHES)
    return True


_ADDRESS_BITS = (1 << 48) - 1
"""Mask of an address; the other bits of a pointer may hold its signature (aarch64)."""

_MAX_STACK = 1 << 19
_MACHINE = os.uname().machine


CodePlace = tuple[int, str, int]
"""Inode and device of a file, and an offset in it."""


@dataclass
class ReturnAddresses:
    """Finds return addresses in the memory of one process.

    Attributes:
        calls: Whether a call stands before a place in a file of code, by inode, device and offset.
            Processes of one world share it, because they run the same libraries.
    """

    memory: Memory
    calls: dict[CodePlace, bool] = field(default_factory=dict, repr=False)
    _unnamed: dict[int, bool] = field(default_factory=dict, repr=False)

    def of_stack(self, pointer: int) -> tuple[tuple[str, int], ...] | None:
        """Return the return addresses of the stack at `pointer`, innermost first.

        A stack ends with its mapping or earlier: since glibc 2.42 its guard pages are part of the
        same mapping (MADV_GUARD_INSTALL of madvise(2)), and the kernel joins the mappings of
        several stacks. Guard pages cannot be read.

        Returns:
            File and offset of each, files below the process's root; None if the stack cannot be
            read, or its end is not found.
        """
        stack = self.memory.mapping(pointer)
        pointer &= ~7
        data = (
            self.memory.read_up_to(pointer, min(stack.end - pointer, _MAX_STACK)) if stack else b""
        )
        return None if len(data) in {0, _MAX_STACK} else tuple(self._find(data))

    def is_at(self, pointer: int) -> bool:
        """Return whether the word at `pointer` itself is a return address.

        It is if the wait was made by libc's `syscall`, which keeps nothing else on the stack.
        """
        data = self.memory.read(pointer, 8)
        return data is not None and any(self._find(data))

    def _find(self, stack: bytes) -> Iterator[tuple[str, int]]:
        starts, mappings = self._code
        first, end = (starts[0], mappings[-1].end) if mappings else (0, 0)
        words = array.array("Q", stack[: len(stack) & ~7])
        # Most words are numbers, or addresses of data: few lie between the first code and the last.
        inside = [each for word in words if first <= (each := word & _ADDRESS_BITS) < end]
        for address in inside:
            at = bisect.bisect(starts, address) - 1
            if at < 0 or address >= mappings[at].end:
                continue
            if self._is_behind_call(address, mappings[at]):
                path, offset = mappings[at].path, address - mappings[at].start
                is_file = path.startswith("/")  # else [vdso], or nothing
                yield (
                    f"{self._root}{path}" if is_file else path,
                    offset + mappings[at].offset,
                )

    def _is_behind_call(self, address: int, code: MemoryMapping) -> bool:
        place = (code.inode, code.device, address - code.start + code.offset)
        # Code that the process has made itself, or may change, is its own.
        is_shared = code.inode > 0 and "w" not in code.flags
        found = self.calls.get(place) if is_shared else self._unnamed.get(address)
        if found is None:
            before = self.memory.read(address - BYTES, BYTES)
            # Unreadable code may be a call.
            found = before is None or is_call(before, _MACHINE)
            if is_shared and before is not None:
                self.calls[place] = found
            else:
                self._unnamed[address] = found
        return found

    @cached_property
    def _root(self) -> str:
        """The directory below which the files of the mappings are.

        The kernel names them as seen from here, or from the root of the process's own mounts.
        """
        here, there = (link(f"/proc/{each}/ns/mnt") for each in ("self", self.memory.pid))
        return "" if here == there else root_of(self.memory.pid)

    @cached_property
    def _code(self) -> tuple[list[int], tuple[MemoryMapping, ...]]:
        mappings = self.memory.mappings("x")
        return [each.start for each in mappings], mappings
