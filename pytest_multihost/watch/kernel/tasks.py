"""Read what /proc tells of one thread or process; every read may fail, for it may be gone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_multihost.proof.system_calls import CALLS

_TICKS = os.sysconf("SC_CLK_TCK")
_NAMES = CALLS.get(os.uname().machine, {})
_WORDS_OF_CALL = 9  # number, six arguments, stack pointer, program counter
_STARTED_AT = 19  # of the words of stat behind the name


def read(path: str) -> bytes | None:
    """Return a file's content, None where it cannot be read."""
    return _read(path, once=False)


def read_line(path: str) -> bytes | None:
    """Return the content of a file of one line, with the fewest system calls there are."""
    return _read(path, once=True)


def _read(path: str, *, once: bool) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = part = os.read(file, 1 << 16)
        while part and not once:
            part = os.read(file, 1 << 16)
            data += part
    except OSError:
        return None
    finally:
        os.close(file)
    return data


def maps(file: str, pid: int) -> bool:
    """Tell whether a process is seen to map a file, by device and inode."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as lines:  # noqa: PTH123 - as for PTH115
            return f" {file} ".encode() in lines.read()
    except OSError:  # gone, without memory of its own, or another user's
        return False


def link(path: str) -> str:
    """Return where a link leads, empty where that cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def entries(path: str) -> list[int] | None:
    """Return the entries of a directory that are numbers, ascending; None if unreadable."""
    try:
        return sorted(int(name) for name in os.listdir(path) if name.isdigit())
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Stat:
    """What ``stat`` says of a thread or process."""

    name: str
    state: str
    parent: int
    session: int
    started_s: float
    cpu_ns: int


def read_stat(directory: str) -> Stat | None:
    """Return what `directory`/stat says; None for what is gone."""
    data = read_line(directory + "/stat")
    if not data:
        return None
    head, _, tail = data.rpartition(b")")
    words = tail.split()
    ticks = int(words[_STARTED_AT])
    name = head.partition(b"(")[2].decode("utf-8", "backslashreplace")
    cpu_ns = (int(words[11]) + int(words[12])) * (1_000_000_000 // _TICKS)
    return Stat(name, words[0].decode(), int(words[1]), int(words[3]), _started(ticks), cpu_ns)


def _started(ticks: int) -> float:
    """Return a start on the monotonic clock, never too late: since boot time stands still in it."""
    suspended = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return (ticks - 1) / _TICKS - suspended


def read_runs(directory: str) -> tuple[int, int] | None:
    """Return processor time (ns) and number of runs of a thread, None where neither is told."""
    cpu_ns, _, runs = ((read_line(directory + "/schedstat") or b"0 0 0").split())[:3]
    if int(runs):
        return int(cpu_ns), int(runs)
    status = read_status(directory)
    switches = [status.get(f"{kind}_ctxt_switches") for kind in ("voluntary", "nonvoluntary")]
    return None if None in switches else (0, sum(int(each or 0) for each in switches))


def read_call(directory: str) -> tuple[str, tuple[int, ...], int]:
    """Return system call, arguments and stack pointer of a thread.

    The call is ``running`` on a processor, and empty where it is unknown, or the thread waits
    outside of any call, say for a page.
    """
    words = (read_line(directory + "/syscall") or b"").split()
    if words[:1] == [b"running"]:
        return "running", (), 0
    if len(words) != _WORDS_OF_CALL:
        return "", (), 0
    number, *values = words
    *args, pointer, _ = (int(each, 16) for each in values)
    return _NAMES.get(int(number), f"call {int(number)}"), tuple(args), pointer


def read_status(directory: str) -> Mapping[str, str]:
    """Return the lines of `directory`/status by name; nothing for what is gone."""
    text = (read(directory + "/status") or b"").decode("utf-8", "backslashreplace")
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}
