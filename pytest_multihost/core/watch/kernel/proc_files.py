"""The files of /proc about threads, processes and file locks (proc(5)).

Each function returns None, or an empty result, for what has gone or may not be read: a process may
end at any time.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import ctypes
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pytest_multihost.core.model.operation import Scope
from pytest_multihost.core.proof.threads import CALLS, SystemCall

_TICKS = os.sysconf("SC_CLK_TCK")
_CALLS = CALLS.get(os.uname().machine, {})
_WORDS_OF_CALL = 9  # number, six arguments, stack pointer, program counter

# statx(2); glibc has it since 2.28
_libc = ctypes.CDLL(None)
_AT_FDCWD, _STATX_DONT_SYNC, _STATX_TYPE = -100, 0x4000, 1
_STATX_SIZE, _STATX_MODE_AT = 256, 28

# Of the words of stat behind the name: proc(5) counts from 1 and has the process id and the name
# before them.
_STATE, _PARENT, _SESSION, _USER_TIME, _SYSTEM_TIME, _STARTED = 0, 1, 3, 11, 12, 19


def read(path: str, *, is_line: bool = False) -> bytes | None:
    """Return a file's content, None where it cannot be read.

    A shallow snapshot reads five files of each rank four times a second.

    Args:
        path: The file.
        is_line: Whether it has but one line, so that no second read need see that there is no more.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = part = os.read(file, 1 << 16)
        while part and not is_line:
            part = os.read(file, 1 << 16)
            data += part
    except OSError:
        return None
    finally:
        os.close(file)
    return data


def link(path: str) -> str:
    """Return where a link leads, empty where that cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def file_mode(path: str) -> int | None:
    """Return type and permissions of a file, None where they cannot be read.

    As its kernel knows them: a server behind the file, which stat(2) would ask, may hang.
    """
    found = ctypes.create_string_buffer(_STATX_SIZE)
    asked = _libc.statx(_AT_FDCWD, os.fsencode(path), _STATX_DONT_SYNC, _STATX_TYPE, found)
    return (
        None if asked else int.from_bytes(found.raw[_STATX_MODE_AT : _STATX_MODE_AT + 2], "little")
    )


def entries(path: str) -> list[int] | None:
    """Return the entries of a directory that are numbers, ascending; None if unreadable."""
    try:
        return sorted(int(name) for name in os.listdir(path) if name.isdigit())
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Stat:
    """What ``stat`` says of a thread or process.

    Attributes:
        name: Its name: at most 15 characters, any of them, also blanks and parentheses.
        state: A letter: R running, S waiting, D waiting uninterruptibly, T stopped by a signal, t
            by a tracer, Z ended and not waited for, X gone.
        parent: Its parent, or the process that has inherited it since its parent ended.
        session: The process that began its session.
        started_s: When it began, on the monotonic clock, never too late.
        cpu_ns: Processor time, in steps of 10 ms.
    """

    name: str
    state: str
    parent: int
    session: int
    started_s: float
    cpu_ns: int


def read_stat(directory: str) -> Stat | None:
    """Return what `directory`/stat says; None for what is gone."""
    data = read(directory + "/stat", is_line=True)
    if not data:
        return None
    head, _, tail = data.rpartition(b")")
    words = tail.split()
    name = head.partition(b"(")[2].decode("utf-8", "backslashreplace")
    cpu_ns = (int(words[_USER_TIME]) + int(words[_SYSTEM_TIME])) * (1_000_000_000 // _TICKS)
    state, parent, session = words[_STATE].decode(), int(words[_PARENT]), int(words[_SESSION])
    # stat counts from boot and goes on while the machine is suspended; that clock does not.
    suspended = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    started_s = (int(words[_STARTED]) - 1) / _TICKS - suspended
    return Stat(name, state, parent, session, started_s, cpu_ns)


def read_runs(directory: str) -> tuple[int, int] | None:
    """Return processor time (ns) and number of runs of a thread; None where neither is to be had.

    schedstat has both: the number of runs is how often the thread was put on a processor, so that
    no wait that ends goes unseen. Where the kernel does not count there (CONFIG_SCHED_INFO), the
    context switches in status serve as well; their sum grows by one with each wait.
    """
    cpu_ns, _, runs = ((read(directory + "/schedstat", is_line=True) or b"0 0 0").split())[:3]
    if int(runs):
        return int(cpu_ns), int(runs)
    status = read_status(directory)
    switches = [status.get(f"{kind}_ctxt_switches") for kind in ("voluntary", "nonvoluntary")]
    return None if None in switches else (0, sum(int(each or 0) for each in switches))


def read_call(directory: str) -> tuple[SystemCall, int]:
    """Return the system call that a thread is blocked in, and its stack pointer.

    ``syscall`` says ``running`` of a thread that is on a processor or waits for one, and -1 of one
    that is blocked outside of any call, say for a page. Then, and where it may not be read, the
    call's name is empty. A call of an unknown number is named by it.
    """
    words = (read(directory + "/syscall", is_line=True) or b"").split()
    if words[:1] == [b"running"]:
        return SystemCall("running"), 0
    if len(words) != _WORDS_OF_CALL:
        return SystemCall(""), 0
    number, *values = words
    *args, pointer, _ = (int(each, 16) for each in values)
    name = _CALLS.get(int(number), f"call {int(number)}")
    return SystemCall(name, tuple(args)), pointer


def read_status(directory: str) -> Mapping[str, str]:
    """Return the lines of `directory`/status by name; nothing for what is gone."""
    text = (read(directory + "/status") or b"").decode("utf-8", "backslashreplace")
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def holders_of_lock(scope: Scope) -> tuple[int, ...]:
    """Return the processes that hold the lock of a file now.

    Args:
        scope: Which lock: ``flock`` or ``lockf``, and device and inode as in /proc/locks.
    """
    lines = [line.split() for line in (read("/proc/locks") or b"").decode().splitlines()]
    kinds = {"FLOCK"} if scope.kind == "flock" else {"POSIX", "OFDLCK"}
    found = {int(each[4]) for each in lines if each[1] in kinds and each[5] == scope.name}
    is_flock = scope.kind == "flock"
    return tuple(sorted(e for e in found if not is_flock or _has_lock(e, scope.name.encode())))


def holders_by_waiter() -> Mapping[int, tuple[int, ...]] | None:
    """Return, for each process that waits for a file lock, those that hold it; 0 for unknown ones.

    A line of /proc/locks is a number, ``->`` if the lock is waited for, its type (FLOCK, POSIX,
    OFDLCK, LEASE), mode, access, process, device and inode. Who waits has the number of the lock
    that is held.
    """
    data = read("/proc/locks")
    if data is None:
        return None
    lines = [line.split() for line in data.decode().splitlines()]
    held = {words[0]: words for words in lines if words[1] != "->"}
    waiting: dict[int, tuple[int, ...]] = {}
    for words in lines:
        if words[1] == "->":
            _, kind, _, _, pid, file, *_ = held.get(words[0], ["", "", "", "", "0", ""])
            is_holder = kind != "FLOCK" or _has_lock(int(pid), file.encode())
            holder = int(pid) if is_holder else 0
            waiting[int(words[5])] = (*waiting.get(int(words[5]), ()), holder)
    return waiting


def _has_lock(pid: int, file: bytes) -> bool:
    """Return whether a process still has a flock(2) lock that it took: that of an open file.

    It may have passed the descriptor to another process and closed its own.
    """
    place = f"/proc/{pid}/fdinfo"
    infos = (read(f"{place}/{fd}") or b"" for fd in entries(place) or ())
    lines = (line.split() for info in infos for line in info.splitlines())
    return any(line[:1] == [b"lock:"] and file in line for line in lines)


# Read the memory of another process without touching it: /proc/PID/mem and maps (proc(5)).
#
# The process goes on meanwhile, so that what is read may be of two instants; it counts only where
# the thread that it belongs to has not moved. It takes the permission to ptrace(2), which an
# ancestor of the same user has by default (Yama's ptrace_scope), but attaches to nothing.
#
# `ReturnAddresses` finds return addresses on the stack of a thread that goes on, without an
# unwinder. A stack is full of what ended frames have left there, and a new thread's stack often is
# an ended thread's. So a word counts as a return address only if it points into code, and the bytes
# before the place it points to are a call instruction: a return address lies behind the instruction
# that has called. Pointers to functions, and numbers that happen to point into code, pass that test
# in a few cases of a thousand. What comes out may name a place that is not returned to any more,
# but misses none that is. `proof/threads.py` says what that is good for.


@dataclass(frozen=True, slots=True)
class MemoryMapping:
    """One line of /proc/PID/maps.

    Attributes:
        start: Its first address.
        end: The address behind its last.
        flags: ``r``, ``w``, ``x``, and ``s`` for shared or ``p`` for private.
        device: The file's device, as it is written there.
        inode: The file's inode.
        path: The file's path, something in brackets, or empty for anonymous memory.
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
        """Device and inode, as they are written there: they identify the file."""
        return f"{self.device} {self.inode}"

    @property
    def is_shared(self) -> bool:
        """Whether other processes may share this memory, and wake waiters on a futex in it."""
        return self.flags.endswith("s")

    @property
    def is_removed(self) -> bool:
        """Whether the name by which its file was opened is gone; the file may have another."""
        return self.path.endswith(" (deleted)")


_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ([-a-z]+) ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) ([0-9]+) *(.*)$",
    re.MULTILINE,
)


def _mapping(line: tuple[bytes, ...]) -> MemoryMapping:
    start, end, flags, offset, device, inode, path = line
    return MemoryMapping(
        int(start, 16),
        int(end, 16),
        flags.decode(),
        device.decode(),
        int(inode),
        path.decode("utf-8", "replace"),
        int(offset, 16),
    )


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
        data = self.read_up_to(address, size)
        return data if len(data) == size else None

    def read_up_to(self, address: int, size: int) -> bytes:
        """Return at most `size` bytes at `address`, up to the first page that cannot be read."""
        if self._file is None:
            self._file = -1
            with contextlib.suppress(OSError):
                self._file = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        if self._file < 0 or not address:
            return b""
        try:
            return os.pread(self._file, size, address)
        except (OSError, OverflowError):
            return b""

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
    def _lines(self) -> list[tuple[bytes, ...]]:
        """The parts of each line of its maps, by address; none where they cannot be read."""
        return _LINE.findall(read(f"/proc/{self.pid}/maps") or b"")

    @cached_property
    def _starts(self) -> list[int]:
        return [int(each[0], 16) for each in self._lines]

    def mappings(self, flag: str) -> tuple[MemoryMapping, ...]:
        """Return all mappings with a flag by address; none where they cannot be read."""
        return tuple(_mapping(each) for each in self._lines if flag.encode() in each[2])

    def mapping(self, address: int) -> MemoryMapping | None:
        """Return the mapping in which `address` lies."""
        at = bisect.bisect(self._starts, address) - 1
        found = _mapping(self._lines[at]) if at >= 0 else None
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


# Return addresses

BYTES = 8
"""How many bytes before an address are needed to judge it."""

# Intel's manual, volume 2, CALL: E8 and a distance of four bytes, or FF with 2 in the middle bits
# of the next byte, of which the whole is two to seven bytes long.
_NEAR, _NEAR_SIZE = 0xE8, 5
_INDIRECT, _INDIRECT_SIZES = 0xFF, (2, 3, 4, 6, 7)

# Arm's manual, C6.2: BL; BLR, and its forms with a signed address.
_BRANCHES = ((0xFC000000, 0x94000000), (0xFFFFFC1F, 0xD63F0000), (0xFEFFF800, 0xD63F0800))


def is_call(before: bytes, machine: str) -> bool:
    """Return whether code that ends in these bytes ends in a call instruction.

    Args:
        before: The last `BYTES` of it.
        machine: As `os.uname` has it; of one that is not known, anything may be a call.
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
"""The rest of a pointer may carry its signature (aarch64)."""

_MAX_STACK = 1 << 19
_MACHINE = os.uname().machine


@dataclass
class ReturnAddresses:
    """Finds return addresses in the memory of one process.

    Attributes:
        memory: The memory.
    """

    memory: Memory
    _is_behind_call: dict[int, bool] = field(default_factory=dict, repr=False)

    def of_stack(self, pointer: int) -> tuple[tuple[str, int], ...] | None:
        """Return where the stack at `pointer` returns to, innermost first: file and offset.

        A stack ends with its mapping, or before: since glibc 2.42 its guard pages are of the same
        mapping (MADV_GUARD_INSTALL of madvise(2)), and the kernel joins the mappings of several
        stacks to one. Guard pages cannot be read.

        Returns:
            None where it cannot be read, or its end is not found.
        """
        stack = self.memory.mapping(pointer)
        pointer &= ~7
        data = (
            self.memory.read_up_to(pointer, min(stack.end - pointer, _MAX_STACK)) if stack else b""
        )
        return None if len(data) in {0, _MAX_STACK} else tuple(self._find(data))

    def is_at(self, pointer: int) -> bool:
        """Return whether the very word at `pointer` is a return address.

        It is in a wait that is made by libc's `syscall`, which keeps nothing else on the stack.
        """
        data = self.memory.read(pointer, 8)
        return data is not None and any(self._find(data))

    def _find(self, stack: bytes) -> Iterator[tuple[str, int]]:
        starts, mappings = self._code
        for word in array.array("Q", stack[: len(stack) & ~7]):
            address = word & _ADDRESS_BITS
            at = bisect.bisect(starts, address) - 1
            if at < 0 or address >= mappings[at].end:
                continue
            if address not in self._is_behind_call:
                before = self.memory.read(address - BYTES, BYTES)
                # What cannot be read may be a call.
                self._is_behind_call[address] = before is None or is_call(before, _MACHINE)
            if self._is_behind_call[address]:
                yield mappings[at].path, address - mappings[at].start + mappings[at].offset

    @cached_property
    def _code(self) -> tuple[list[int], tuple[MemoryMapping, ...]]:
        mappings = self.memory.mappings("x")
        return [each.start for each in mappings], mappings
