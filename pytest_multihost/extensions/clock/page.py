"""A clock that jumps, shared by the processes of one world.

`clock.c` is a library that is preloaded into ranks: it adds an offset to every clock that they
read, and says until when each of their threads waits. The page of a world's
clock is shared memory with how far it is ahead, and what waits for it.

Every process of the world maps the file. The preloaded library (clock.c) adds the offset to every
clock that a process reads, and notes in the slot of each thread until when it waits. The controller
alone makes the clock jump. The layout is that of `struct page` in clock.c.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import CLOCK_MONOTONIC, clock_gettime_ns
from typing import Literal

from pytest_multihost.core.preload import PreloadedLibrary

__all__ = [
    "THREAD_NAME",
    "ClockPage",
    "ClockWait",
    "attach_clock",
    "clock_page_path",
    "find_clock_library",
    "why_clock_missing",
]


LIBRARY = PreloadedLibrary(Path(__file__).with_name("clock.c"))

PAGE_VARIABLE = "PYTEST_MULTIHOST_CLOCK_PAGE"
"""Names the page that a process lives by from its exec on."""

THREAD_NAME = "multihost-clock"
"""A thread of each process: it wakes those that wait for condition variables, and nothing else."""

find_clock_library = LIBRARY.find
"""Returns the library, compiled now if it must be; None if there is no way."""

why_clock_missing = LIBRARY.why_missing
"""Returns why there is no library; empty if there is one."""


def clock_page_path(scratch: Path) -> Path:
    """Return where the page of a world's clock is, in the world's own directory."""
    return scratch / "service-clock"


def attach_clock(path: Path) -> None:
    """Live by the clock in the page at `path` from now on; so do processes that this one execs.

    Raises:
        RuntimeError: The library is not loaded: this process was exec'd without it.
        OSError: There is no such page.
    """
    try:
        attach = ctypes.CDLL(None).multihost_clock_attach
    except (AttributeError, OSError, TypeError):  # absent; Windows has no program to look in
        reason = why_clock_missing() or "it must be preloaded when the process is exec'd"
        raise RuntimeError(f"This process has no clock that jumps: {reason}.") from None
    attach.argtypes, attach.restype = [ctypes.c_char_p], ctypes.c_int
    if error := attach(os.fsencode(path)):
        raise OSError(error, os.strerror(error), os.fspath(path))
    os.environ[PAGE_VARIABLE] = os.fspath(path)


WaitKind = Literal[
    "sleep",
    "poll",
    "epoll",
    "semaphore",
    "condition",
    "futex",
    "mutex",
    "signal",
    "socket",
    "timer",
]
"""What a thread waits in until a time."""

MAX_SLOTS = 8192
SIGNAL = getattr(signal, "SIGRTMAX", 64) - 5
"""Interrupts a wait that is due. No runtime uses it; faulthandler's are at the other end."""

_KINDS: tuple[WaitKind, ...] = WaitKind.__args__  # type: ignore[attr-defined]
_MAGIC = b"MHCLOCK1"
_HEADER_SIZE = 4096
_SLOT = struct.Struct("=IIqqIIIIIIQQ")
_SIZE = _HEADER_SIZE + MAX_SLOTS * _SLOT.size
_TIMER, _HELPER = 10, 11
_LOOP, _IDLE = 1, 2
_NOT_BY_SIGNAL = frozenset({"condition", "mutex", "timer"})
_DOUBTS = (
    f"more than {MAX_SLOTS} threads wait at once",
    "a process has more than 64 timers of the kernel",
    "a socket with SO_RCVTIMEO or SO_SNDTIMEO is used by MSG_WAITALL or with more than 64 buffers",
)
_FUTEX_WAKE, _EVERYBODY = 1, (1 << 31) - 1
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, -1)
_SYS_TGKILL = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine, -1)


class _Header(ctypes.Structure):
    """The start of `struct page` in clock.c."""

    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("offset_ns", ctypes.c_int64),
        ("jumps", ctypes.c_uint32),
        ("is_jumping", ctypes.c_uint32),
        ("signal", ctypes.c_uint32),
        ("used", ctypes.c_uint32),
        ("doubts", ctypes.c_uint32),
        ("has_socket_timeouts", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class ClockWait:
    """A thread that waits until a time, or a timer of the kernel (kind ``timer``).

    Attributes:
        tid: Its id; of a timer, which belongs to no thread, a negative number of its own.
        due_s: When the wait ends by itself, in the world's monotonic time.
        timeout_s: How long it was to last.
        kind: In what it waits.
        serial: How many timed waits it has begun.
        rounds: How many like this one have timed out in a row, with none of another kind between.
        is_loop: Whether a runtime's loop waits, which looks again in a moment.
        is_idle: Whether a worker waits for work, which wakes it; at its timeout it does nothing.
    """

    pid: int
    tid: int
    due_s: float
    timeout_s: float
    kind: WaitKind
    serial: int
    rounds: int
    is_loop: bool
    is_idle: bool = False


@dataclass(slots=True)
class ClockPage:
    """The page of one world's clock, see `create` and `open`."""

    _map: mmap.mmap
    _header: _Header
    _libc: ctypes.CDLL

    @classmethod
    def create(cls, path: Path) -> ClockPage:
        """Create a page at `path`, which must not exist: a sparse file of half a megabyte."""
        with path.open("x+b") as file:
            file.truncate(_SIZE)
            file.write(_MAGIC)
            file.seek(_Header.is_jumping.offset)
            file.write(struct.pack("=II", 1, SIGNAL))  # and `signal`, which follows
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> ClockPage:
        """Map the page at `path`.

        Raises:
            OSError: There is none.
            ValueError: The file is no page of a clock.
        """
        with path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != _SIZE or file.read(8) != _MAGIC:
                raise ValueError(f"{path} is no page of a clock")
            shared = mmap.mmap(file.fileno(), _SIZE)
        return cls(shared, _Header.from_buffer(shared), ctypes.CDLL(None, use_errno=True))

    @property
    def offset_s(self) -> float:
        """How far the world's clock is ahead of the machine's."""
        return float(self._header.offset_ns) / 1e9

    @property
    def jumps(self) -> int:
        """How often it has jumped."""
        return int(self._header.jumps)

    @property
    def is_jumping(self) -> bool:
        """Whether it may jump now."""
        return bool(self._header.is_jumping)

    def set_jumping(self, value: bool) -> None:  # noqa: FBT001 - a setter
        """Note whether it may jump, for `world.clock` in the ranks."""
        self._header.is_jumping = int(value)

    def now(self) -> float:
        """Return the world's monotonic time in seconds, in a process that is not of the world."""
        return (clock_gettime_ns(CLOCK_MONOTONIC) + int(self._header.offset_ns)) / 1e9

    def waits(self) -> tuple[ClockWait, ...]:
        """Return the threads that wait until a time; of processes that have ended, too."""
        # One loop, and no keywords: the controller looks every millisecond.
        return tuple(
            [
                ClockWait(
                    pid,
                    -number if kind == _TIMER else tid,
                    due / 1e9,
                    timeout / 1e9,
                    _KINDS[kind - 1],
                    serial,
                    rounds,
                    flags & _LOOP != 0,
                    flags & _IDLE != 0,
                )
                for number, tid, pid, due, timeout, kind, serial, rounds, flags in self._waits()
            ]
        )

    def helpers(self) -> frozenset[int]:
        """Return the library's own threads, which run whenever the clock jumps."""
        return frozenset(each[0] for each in self._slots() if each[4] == _HELPER)

    def timerfds(self) -> frozenset[tuple[int, int]]:
        """Return the descriptors of timers that are set: by which process, and their numbers."""
        timers = (each for each in self._slots() if each[4] == _TIMER and each[2])
        return frozenset((each[1], each[10] - 1) for each in timers if each[10])

    def _waits(self) -> Iterator[tuple[int, ...]]:
        """Yield how the slots of those that wait begin, behind their numbers from 1."""
        for number, each in enumerate(self._slots(), start=1):
            if each[2] and each[0] and 0 < each[4] < _HELPER:
                yield number, *each[:8]

    def _slots(self) -> Iterator[tuple[int, ...]]:
        size = self._header.used * _SLOT.size
        return _SLOT.iter_unpack(self._map[_HEADER_SIZE : _HEADER_SIZE + size])

    def jump(self, to_s: float) -> None:
        """Let the clock jump to a time, and wake the threads whose waits are due then.

        It never goes back.
        """
        ahead_ns = round(to_s * 1e9) - clock_gettime_ns(CLOCK_MONOTONIC)
        self._header.offset_ns = max(self._header.offset_ns, ahead_ns)
        self._header.jumps += 1
        self.wake()

    def wake(self) -> int:
        """Wake the threads whose waits are due, and return how many there are.

        A thread that has just been about to fall asleep must be woken once more.
        """
        word = ctypes.addressof(self._header) + _Header.jumps.offset
        self._libc.syscall(
            _SYS_FUTEX, ctypes.c_void_p(word), _FUTEX_WAKE, _EVERYBODY, None, None, 0
        )
        now_ns = clock_gettime_ns(CLOCK_MONOTONIC) + self._header.offset_ns
        due = [each for each in self._waits() if each[3] <= now_ns]
        for _, tid, pid, _, _, kind, *_ in due:
            if _KINDS[kind - 1] not in _NOT_BY_SIGNAL:
                self._libc.syscall(_SYS_TGKILL, pid, tid, self._header.signal)
        return len(due)

    def doubts(self) -> tuple[str, ...]:
        """Return what processes have done that the page cannot follow, one sentence each."""
        return tuple(each for bit, each in enumerate(_DOUBTS) if self._header.doubts >> bit & 1)

    def close(self) -> None:
        """Unmap it here."""
        del self._header
        self._map.close()
