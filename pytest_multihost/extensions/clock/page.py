"""The page of a world's clock: shared memory with the clock's offset and the threads' timed waits.

Every process of the world maps the file. The preloaded library (clock.c) adds the offset to every
clock that a process reads, and stores in the slot of each thread until when it waits. Only the
controller makes the clock jump. The layout is that of `struct page` in clock.c.
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
"""Environment variable with the path of the page that a process uses from its exec on."""

THREAD_NAME = "multihost-clock"
"""A thread in each process that only wakes threads waiting for condition variables."""

find_clock_library = LIBRARY.find
"""Returns the path of the library, compiled now if necessary; None if that is impossible."""

why_clock_missing = LIBRARY.why_missing
"""Returns why the library is missing; empty if it is not."""


def clock_page_path(scratch: Path) -> Path:
    """Return the path of the page of a world's clock, in the world's own directory."""
    return scratch / "service-clock"


def attach_clock(path: Path) -> None:
    """Make this process, and programs that it execs, use the clock in the page at `path`.

    Raises:
        RuntimeError: The library is not loaded, because this process was exec'd without it.
        OSError: There is no such page.
    """
    try:
        attach = ctypes.CDLL(None).multihost_clock_attach
    except (AttributeError, OSError, TypeError):  # absent; OSError and TypeError are for Windows
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
"""The kind of a timed wait."""

MAX_SLOTS = 8192
SIGNAL = getattr(signal, "SIGRTMAX", 64) - 5
"""The signal that interrupts a due wait. No runtime uses it; faulthandler uses the lowest ones."""

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
    """A timed wait of a thread, or a timer of the kernel (kind ``timer``).

    Attributes:
        tid: The thread's id; a unique negative number for a timer, which has no thread.
        due_s: When the wait ends by itself, in the world's monotonic time.
        timeout_s: The requested length of the wait.
        serial: How many timed waits the thread has begun.
        rounds: How many waits like this one have timed out in a row, without any other between.
        is_loop: Whether a runtime's loop waits, which polls again soon.
        is_idle: Whether a worker waits for work, which would wake it; it ignores its timeout.
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
    """The page of one world's clock; see `create` and `open`."""

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
            OSError: There is no such file.
            ValueError: The file is not a page of a clock.
        """
        with path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != _SIZE or file.read(8) != _MAGIC:
                raise ValueError(f"{path} is not a page of a clock")
            shared = mmap.mmap(file.fileno(), _SIZE)
        return cls(shared, _Header.from_buffer(shared), ctypes.CDLL(None, use_errno=True))

    @property
    def offset_s(self) -> float:
        """How far the world's clock is ahead of the machine's."""
        return float(self._header.offset_ns) / 1e9

    @property
    def jumps(self) -> int:
        """How often the clock has jumped."""
        return int(self._header.jumps)

    @property
    def is_jumping(self) -> bool:
        """Whether the clock may jump now."""
        return bool(self._header.is_jumping)

    def set_jumping(self, value: bool) -> None:  # noqa: FBT001 - a setter
        """Store whether the clock may jump, for `world.clock` in the ranks."""
        self._header.is_jumping = int(value)

    def now(self) -> float:
        """Return the world's monotonic time in seconds; call it only outside the world."""
        return (clock_gettime_ns(CLOCK_MONOTONIC) + int(self._header.offset_ns)) / 1e9

    def waits(self) -> tuple[ClockWait, ...]:
        """Return all timed waits, including those of processes that have ended."""
        # One loop without keywords, because the controller calls this every millisecond.
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
        """Return the descriptors of armed timers, as process and number."""
        timers = (each for each in self._slots() if each[4] == _TIMER and each[2])
        return frozenset((each[1], each[10] - 1) for each in timers if each[10])

    def _waits(self) -> Iterator[tuple[int, ...]]:
        """Yield each slot in use by a wait: its number, from 1, and its first fields."""
        for number, each in enumerate(self._slots(), start=1):
            if each[2] and each[0] and 0 < each[4] < _HELPER:
                yield number, *each[:8]

    def _slots(self) -> Iterator[tuple[int, ...]]:
        size = min(self._header.used, MAX_SLOTS) * _SLOT.size
        return _SLOT.iter_unpack(self._map[_HEADER_SIZE : _HEADER_SIZE + size])

    def jump(self, to_s: float) -> None:
        """Make the clock jump to a time, and wake the threads whose waits are due then.

        The clock never goes back.
        """
        ahead_ns = round(to_s * 1e9) - clock_gettime_ns(CLOCK_MONOTONIC)
        self._header.offset_ns = max(self._header.offset_ns, ahead_ns)
        self._header.jumps += 1
        self.wake()

    def wake(self) -> int:
        """Wake the threads whose waits are due, and return their number.

        Call it again if a thread stays due: it may have fallen asleep only after the signal.
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
        """Return the actions of processes that the page cannot represent, one sentence each."""
        return tuple(each for bit, each in enumerate(_DOUBTS) if self._header.doubts >> bit & 1)

    def close(self) -> None:
        """Unmap the page in this process."""
        del self._header
        self._map.close()
