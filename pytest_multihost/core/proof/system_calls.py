"""System calls by number, and how a wait in them can end, derived from their arguments.

/proc/PID/task/TID/syscall (proc(5)) has the number of the call that a thread is blocked in and its
six argument registers; section 2 of the manual describes the arguments of each call. To read it
waits until the thread is off its processor, so it never shows a thread that still runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_X86_64 = """
    read 0 write 1 open 2 stat 4 fstat 5 lstat 6 poll 7 ioctl 16 pread64 17 pwrite64 18 readv 19
    writev 20 access 21 select 23 msync 26 pause 34 nanosleep 35 sendfile 40 connect 42 accept 43
    sendto 44 recvfrom 45 sendmsg 46 recvmsg 47 clone 56 fork 57 vfork 58 wait4 61 semop 65
    msgsnd 69 msgrcv 70 fcntl 72 flock 73 fsync 74 fdatasync 75 truncate 76 ftruncate 77
    getdents 78 rename 82 mkdir 83 rmdir 84 unlink 87 rt_sigtimedwait 128 rt_sigsuspend 130
    sync 162 futex 202 io_getevents 208 getdents64 217 restart_syscall 219 semtimedop 220
    clock_nanosleep 230 epoll_wait 232 mq_timedsend 242 mq_timedreceive 243 waitid 247 openat 257
    mkdirat 258 newfstatat 262 unlinkat 263 renameat 264 pselect6 270 ppoll 271 splice 275
    sync_file_range 277 epoll_pwait 281 fallocate 285 accept4 288 preadv 295 pwritev 296
    recvmmsg 299 syncfs 306 sendmmsg 307 renameat2 316 copy_file_range 326 statx 332
    io_uring_enter 426 clone3 435 openat2 437 epoll_pwait2 441 futex_waitv 449 futex_wait 455
"""
_AARCH64 = """
    io_getevents 4 epoll_pwait 22 fcntl 25 ioctl 29 flock 32 mkdirat 34 unlinkat 35 renameat 38
    truncate 45 ftruncate 46 fallocate 47 openat 56 getdents64 61 read 63 write 64 readv 65
    writev 66 pread64 67 pwrite64 68 preadv 69 pwritev 70 sendfile 71 pselect6 72 ppoll 73 splice 76
    newfstatat 79 fstat 80 sync 81 fsync 82 fdatasync 83 sync_file_range 84 waitid 95 futex 98
    nanosleep 101 clock_nanosleep 115 restart_syscall 128 rt_sigsuspend 133 rt_sigtimedwait 137
    mq_timedsend 182 mq_timedreceive 183 msgrcv 188 msgsnd 189 semtimedop 192 semop 193 accept 202
    connect 203 sendto 206 recvfrom 207 sendmsg 211 recvmsg 212 clone 220 msync 227 accept4 242
    recvmmsg 243 wait4 260 syncfs 267 sendmmsg 269 renameat2 276 copy_file_range 285 statx 291
    io_uring_enter 426 clone3 435 openat2 437 epoll_pwait2 441 futex_waitv 449 futex_wait 455
"""


RESTARTED = "restart_syscall"
"""The call in which a thread is whose wait with a timeout was interrupted by a stop (signal(7)).

The kernel keeps the time at which the wait ends, and leaves the registers with the arguments of the
first call; only its number is gone."""

_MAX_CLOCK = 4096
"""More than any clock's number, and less than any address."""


def restarted_call(wchan: str, args: tuple[int, ...]) -> str:
    """Return the name of the call that `RESTARTED` goes on with.

    Only waits for a futex, for descriptors in poll(2) and for a timer are restarted so.

    Args:
        wchan: The kernel's function in which the thread waits, as in /proc/PID/task/TID/wchan.
        args: The thread's six registers for arguments.
    """
    if wchan.startswith("futex_"):
        return "futex"
    if wchan.startswith(("poll_schedule_timeout", "do_sys_poll", "do_poll")):
        return "poll"
    if wchan.startswith(("hrtimer_nanosleep", "do_nanosleep")) and args:
        return "clock_nanosleep" if args[0] < _MAX_CLOCK else "nanosleep"
    return RESTARTED


def _numbers(text: str) -> Mapping[int, str]:
    words = text.split()
    return {int(number): name for name, number in zip(words[::2], words[1::2], strict=True)}


CALLS: Mapping[str, Mapping[int, str]] = {
    "x86_64": _numbers(_X86_64),
    "aarch64": _numbers(_AARCH64),
}
"""Names of system calls by machine (as in `os.uname`) and number."""


SLEEPS = frozenset({"clock_nanosleep", "nanosleep"})
POLLS = frozenset({"poll", "ppoll", "select", "pselect6"})
EPOLLS = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2"})
FUTEXES = frozenset({"futex", "futex_waitv", "futex_wait"})
SIGNALS = frozenset({"pause", "rt_sigsuspend", "rt_sigtimedwait"})
CHILDREN = frozenset({"wait4", "waitid"})
LOCKS = frozenset({"flock", "fcntl"})
ENDED_BY_STOPS = EPOLLS | {"semop", "semtimedop", "rt_sigtimedwait", "io_getevents"}
"""Calls that fail once a stop of their thread is over, as by ptrace(2): signal(7), at the end."""
ENDED_BY_SIGNALS = ENDED_BY_STOPS | POLLS | SLEEPS | {"msgrcv", "msgsnd", "pause", "rt_sigsuspend"}
"""Calls that fail once a handler of a signal has run, even a handler that asks for a restart. Timed
waits for a futex and on a socket fail likewise, but libc and Python wait again."""
_SOCKETS = "accept accept4 connect recvfrom recvmsg recvmmsg sendto sendmsg sendmmsg"
SOCKETS = frozenset(_SOCKETS.split())
STREAMS = frozenset(["read", "write", "readv", "writev"])
"""Calls that wait for a file, a pipe, a terminal or a socket, depending on their descriptor."""
_FILES = """
    open openat openat2 stat fstat lstat newfstatat statx access pread64 pwrite64 preadv pwritev
    sendfile splice copy_file_range msync fsync fdatasync sync syncfs sync_file_range fallocate
    truncate ftruncate getdents getdents64 rename renameat renameat2 mkdir mkdirat rmdir unlink
    unlinkat
"""
FILES = frozenset(_FILES.split())
BY_DESCRIPTOR = SOCKETS | STREAMS | LOCKS | {"pread64", "pwrite64", "preadv", "pwritev", "ioctl"}
BY_DESCRIPTOR |= {"fsync", "fdatasync", "getdents64", "ftruncate", "fallocate", "sync_file_range"}
"""Calls whose first argument is the descriptor that they use."""

PATHS: Mapping[str, int] = {"open": 0, "stat": 0, "lstat": 0, "access": 0, "unlink": 0, "rename": 0}
PATHS = {**PATHS, "openat": 1, "openat2": 1, "newfstatat": 1, "statx": 1, "unlinkat": 1}
"""Calls with a path: the index of the argument that points to it."""

_ARGUMENTS = 6
_PRIVATE, _REALTIME = 128, 256
_WAIT, _LOCK_PI, _WAIT_BITSET, _WAIT_REQUEUE_PI, _LOCK_PI2 = 0, 6, 9, 11, 13
_FUTEX_WAITS = {_WAIT, _LOCK_PI, _WAIT_BITSET, _WAIT_REQUEUE_PI, _LOCK_PI2}
"""Commands of futex(2) that wait. FUTEX_WAIT has a relative timeout, the others an absolute one."""
_OFD_SETLKW, _SETLKW = 38, 7
_P_PID = 1
_TIMER_ABSTIME = 1
_CLOCKS: Mapping[int, Literal["monotonic", "realtime"]] = {0: "realtime", 1: "monotonic"}


@dataclass(frozen=True, slots=True)
class Timeout:
    """The location of the timeout of a wait.

    Attributes:
        kind: The clock of an absolute time; "relative" to the start of the wait; "none"; "unknown".
        milliseconds: The timeout itself, if it is an argument.
        address: Its address in memory, if the argument points to it.
        unit: How many units of the second word there make a second: nano- or microseconds.
    """

    kind: Literal["none", "relative", "monotonic", "realtime", "unknown"]
    milliseconds: int | None = None
    address: int = 0
    unit: float = 1e9


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A system call that a thread is in.

    Attributes:
        name: Its name; ``running`` on a processor; empty if unknown.
        args: Its six arguments; empty if unknown.
        is_restarted: Whether the kernel has restarted it after the thread was stopped.
    """

    name: str
    args: tuple[int, ...] = ()
    is_restarted: bool = False

    @property
    def is_private_futex(self) -> bool:
        """Whether it waits for a futex that no other process can wake: FUTEX_PRIVATE_FLAG."""
        return self.name == "futex" and bool(self.args[1] & _PRIVATE)

    @property
    def is_file_lock(self) -> bool:
        """Whether it waits for a file lock: flock(2), or fcntl(2) with F_(OFD_)SETLKW."""
        is_set = self.name == "fcntl" and self.args[1] in {_SETLKW, _OFD_SETLKW}
        return is_set or self.name == "flock"

    @property
    def descriptor(self) -> int | None:
        """The descriptor that it uses; None if it uses none, or several."""
        is_about_one = self.name in BY_DESCRIPTOR or self.name in EPOLLS
        return self.args[0] & 0xFFFFFFFF if is_about_one else None

    @property
    def path_address(self) -> int | None:
        """The address of its path argument in memory; None if it has none."""
        return self.args[PATHS[self.name]] if self.name in PATHS else None

    @property
    def child(self) -> int:
        """The process that it waits for: an id, -1 for any child, 0 for none."""
        if self.name == "wait4":
            pid = self.args[0] & 0xFFFFFFFF
            return pid if 0 < pid < 1 << 31 else -1
        if self.name == "waitid":
            return self.args[1] if self.args[0] == _P_PID else -1  # else several processes
        return 0

    @property
    def timeout(self) -> Timeout:
        """The location of the timeout of a wait in it.

        A socket's own SO_RCVTIMEO is not in the arguments, so it is not visible here.
        """
        call, args = self.name, self.args
        if len(args) < _ARGUMENTS:
            return _UNKNOWN
        if call in _MILLISECONDS:
            low = args[_MILLISECONDS[call]] & 0xFFFFFFFF
            return _NONE if low >> 31 else Timeout("relative", milliseconds=low)
        if call in _RELATIVE:
            return _by_address("relative", args[_RELATIVE[call]])
        if call == "select":
            return Timeout("relative", address=args[4], unit=1e6) if args[4] else _NONE
        if call == "nanosleep" or (call == "clock_nanosleep" and not args[1] & _TIMER_ABSTIME):
            return Timeout("relative", address=args[0 if call == "nanosleep" else 2])
        if call == "clock_nanosleep":
            return Timeout(_CLOCKS[args[0]], address=args[2]) if args[0] in _CLOCKS else _UNKNOWN
        if call == "futex":
            return _futex_timeout(args[1], args[3])
        if call in FUTEXES:
            at, clock = args[3:5] if call == "futex_waitv" else args[4:6]
            return _by_address("monotonic" if clock == 1 else "realtime", at)
        return _NONE if call in _UNTIMED else _UNKNOWN


_NONE, _UNKNOWN = Timeout("none"), Timeout("unknown")
_UNTIMED = CHILDREN | SIGNALS | LOCKS | SOCKETS | STREAMS
_RELATIVE = {"ppoll": 2, "pselect6": 4, "epoll_pwait2": 3, "rt_sigtimedwait": 2, "recvmmsg": 4}
_MILLISECONDS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}


def _by_address(clock: Literal["relative", "monotonic", "realtime"], address: int) -> Timeout:
    return Timeout(clock, address=address) if address else _NONE


def _futex_timeout(flags: int, address: int) -> Timeout:
    command = flags & 127
    if command not in _FUTEX_WAITS:
        return _UNKNOWN
    if command == _WAIT:
        return _by_address("relative", address)
    is_real = command == _LOCK_PI or flags & _REALTIME
    return _by_address("realtime" if is_real else "monotonic", address)
