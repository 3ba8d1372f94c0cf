"""The files of /proc about threads, processes and file locks (proc(5)).

Each function returns None, or an empty result, for what has gone or may not be read: a process may
end at any time.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_multihost.core.model.operation import Scope
from pytest_multihost.core.proof.system_calls import CALLS, SystemCall

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
