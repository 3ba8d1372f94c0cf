"""Read the files of /proc about threads, processes and file locks (proc(5)).

A process may end at any time, so each function returns None or an empty result if a file is gone or
may not be read.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_multihost.core.model.operation import Scope
from pytest_multihost.core.proof.system_calls import (
    CALLS,
    RESTARTED,
    SystemCall,
    restarted_call,
)

_CLOCK_READINGS = 3
_TICKS = os.sysconf("SC_CLK_TCK")
_CALLS = CALLS.get(os.uname().machine, {})
_WORDS_OF_CALL = 9  # number, six arguments, stack pointer, program counter

# statx(2); glibc has it since 2.28
_libc = ctypes.CDLL(None)
_AT_FDCWD, _STATX_DONT_SYNC, _STATX_TYPE = -100, 0x4000, 1
_STATX_SIZE, _STATX_MODE_AT = 256, 28

# Positions among the words of stat after the name. proc(5) counts from 1, and also counts the
# process id and the name.
_STATE, _PARENT, _SESSION, _USER_TIME, _SYSTEM_TIME, _STARTED = 0, 1, 3, 11, 12, 19
_STATUS = 49
_FLAGS, _EXITING = 6, 0x4  # PF_EXITING of sched.h: set before the kernel closes its files


def read(path: str, *, is_line: bool = False) -> bytes | None:
    """Return a file's content, None if it cannot be read.

    It is fast, because a shallow snapshot reads five files of each rank four times a second.

    Args:
        is_line: Whether the file is one line, which a single read returns completely.
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
    """Return the target of a link, empty if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


_MAX_LINKS = 40


def root_of(pid: int) -> str:
    """Return the directory that is a process's root, empty if it is this process's as well.

    Of processes with the same root, as in one container, it is always the same directory, so that
    the facts about a file, kept by its name, hold for all of them.
    """
    theirs = _identity(f"/proc/{pid}/root/")
    if theirs is None or theirs == _identity("/proc/self/root/"):
        return ""
    if _identity(_roots.get(theirs, "")) != theirs:
        _roots[theirs] = f"/proc/{pid}/root"
    return _roots[theirs]


_roots: dict[tuple[int, int], str] = {}
"""Known root directories, by device and inode."""


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file, None if they cannot be read."""
    try:
        found = os.stat(path)  # noqa: PTH116 - as for PTH115
    except OSError:
        return None
    return found.st_dev, found.st_ino


def path_below(root: str, path: str) -> str:
    """Return where a file of a process with another root is; empty if its links form a circle.

    Links are followed as that process would: none of them leads out of its root.
    """
    ahead, found, links = path.split("/")[::-1], list[str](), 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            found = found[:-1]
        elif part not in {"", "."}:
            found.append(part)
            if target := link("/".join([root, *found])):
                links += 1
                found = [] if target.startswith("/") else found[:-1]
                ahead += target.split("/")[::-1]
        if links > _MAX_LINKS:
            return ""
    return "/".join([root, *found])


def file_mode(path: str) -> int | None:
    """Return type and permissions of a file, None if they cannot be read.

    They come from the kernel's cache: stat(2) would ask a server behind the file, which may hang.
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
    """The content of ``stat`` of a thread or process.

    Attributes:
        name: At most 15 characters, which may include blanks and parentheses.
        state: A letter: R running, S waiting, D waiting uninterruptibly, T stopped by a signal, t
            by a tracer, Z ended and not waited for, X ending or gone.
        parent: Its parent, or the process that has adopted it since its parent ended.
        session: The process that began its session.
        started_s: When it began, on the monotonic clock; rounded down.
        cpu_ns: Processor time, in steps of 10 ms.
        status: How it has ended, as wait(2) would tell; 0: regularly, or not at all.
    """

    name: str
    state: str
    parent: int
    session: int
    started_s: float
    cpu_ns: int
    status: int = 0


def read_stat(directory: str) -> Stat | None:
    """Return the content of `directory`/stat; None if it is gone."""
    data = read(directory + "/stat", is_line=True)
    if not data:
        return None
    head, _, tail = data.rpartition(b")")
    words = tail.split()
    name = head.partition(b"(")[2].decode("utf-8", "backslashreplace")
    cpu_ns = (int(words[_USER_TIME]) + int(words[_SYSTEM_TIME])) * (1_000_000_000 // _TICKS)
    state, parent, session = words[_STATE].decode(), int(words[_PARENT]), int(words[_SESSION])
    started_s = (int(words[_STARTED]) - 1) / _TICKS - _suspended_s()
    status = int(words[_STATUS]) if len(words) > _STATUS else 0
    if int(words[_FLAGS]) & _EXITING and state != "Z":
        state = "X"
    return Stat(name, state, parent, session, started_s, cpu_ns, status)


def _suspended_s() -> float:
    """Return how long the machine was suspended: stat counts that time, and monotonic() does not.

    On a busy machine this thread may lose the processor between the two clocks, so that the second
    one is late. Then a process would seem to have begun later, and to be another one.
    """
    boot = time.CLOCK_BOOTTIME
    return max(time.clock_gettime(boot) - time.monotonic() for _ in range(_CLOCK_READINGS))


def read_runs(directory: str) -> tuple[int, int] | None:
    """Return processor time (ns) and number of runs of a thread; None if both are unknown.

    schedstat has both. The number of runs is how often the thread was put on a processor, so it
    shows every wait that has ended. If the kernel does not count runs (CONFIG_SCHED_INFO), the
    context switches in status serve as well; their sum grows by one with each wait.
    """
    cpu_ns, _, runs = ((read(directory + "/schedstat", is_line=True) or b"0 0 0").split())[:3]
    if int(runs):
        return int(cpu_ns), int(runs)
    status = read_status(directory)
    switches = [status.get(f"{kind}_ctxt_switches") for kind in ("voluntary", "nonvoluntary")]
    return None if None in switches else (0, sum(int(each or 0) for each in switches))


def read_call(directory: str) -> tuple[SystemCall, int]:
    """Return the system call in which a thread is blocked, and its stack pointer.

    ``syscall`` shows ``running`` for a thread that is on a processor or waits for one, and -1 for a
    thread that is blocked outside of any call, for example for a page. For -1, or if the file may
    not be read, the call's name is empty. A call with an unknown number is named by the number, and
    a restarted call by its first name.
    """
    words = (read(directory + "/syscall", is_line=True) or b"").split()
    if words[:1] == [b"running"]:
        return SystemCall("running"), 0
    if len(words) != _WORDS_OF_CALL:
        return SystemCall(""), 0
    number, *values = words
    *args, pointer, _ = (int(each, 16) for each in values)
    name = _CALLS.get(int(number), f"call {int(number)}")
    if name != RESTARTED:
        return SystemCall(name, tuple(args)), pointer
    wchan = (read(directory + "/wchan", is_line=True) or b"").decode()
    return SystemCall(restarted_call(wchan, tuple(args)), tuple(args), is_restarted=True), pointer


def read_status(directory: str) -> Mapping[str, str]:
    """Return the lines of `directory`/status by name; none if it is gone."""
    text = (read(directory + "/status") or b"").decode("utf-8", "backslashreplace")
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def holders_of_lock(scope: Scope) -> tuple[int, ...]:
    """Return the processes that hold the lock of a file now.

    Args:
        scope: The lock: ``flock`` or ``lockf``, and device and inode as in /proc/locks.
    """
    lines = [line.split() for line in (read("/proc/locks") or b"").decode().splitlines()]
    kinds = {"FLOCK"} if scope.kind == "flock" else {"POSIX", "OFDLCK"}
    found = {int(each[4]) for each in lines if each[1] in kinds and each[5] == scope.name}
    is_flock = scope.kind == "flock"
    return tuple(sorted(e for e in found if not is_flock or _has_lock(e, scope.name.encode())))


def holders_by_waiter() -> Mapping[int, tuple[int, ...]] | None:
    """Return the holders of the lock for each process that waits for one; 0: unknown holder.

    A line of /proc/locks is a number, ``->`` if the process waits, the lock's type (FLOCK, POSIX,
    OFDLCK, LEASE), mode, access, process, device and inode. The line of a waiting process has the
    same number as the line of the holder.
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
    """Return whether a process still has the open file of a flock(2) lock that it took.

    It may have passed the descriptor to another process and closed its own.
    """
    place = f"/proc/{pid}/fdinfo"
    infos = (read(f"{place}/{fd}") or b"" for fd in entries(place) or ())
    lines = (line.split() for info in infos for line in info.splitlines())
    return any(line[:1] == [b"lock:"] and file in line for line in lines)
