"""Who waits for a file lock, and who holds it: /proc/locks (proc(5)).

A line is a number, ``->`` if the lock is waited for, its type (FLOCK, POSIX, OFDLCK, LEASE), mode,
access, process, device and inode. Who waits has the number of the lock that is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_multihost.watch.kernel import proc_files


def holders_by_waiter() -> Mapping[int, tuple[int, ...]] | None:
    """Return, for each process that waits for a file lock, those that hold it."""
    data = proc_files.read("/proc/locks")
    if data is None:
        return None
    lines = [line.split() for line in data.decode().splitlines()]
    held = {words[0]: words for words in lines if words[1] != "->"}
    waiting: dict[int, tuple[int, ...]] = {}
    for words in lines:
        if words[1] == "->":
            holder = _holder(held[words[0]]) if words[0] in held else 0
            waiting[int(words[5])] = (*waiting.get(int(words[5]), ()), holder)
    return waiting


def _holder(words: Sequence[str]) -> int:
    """Return who holds the lock of a line of /proc/locks; 0 where that is not known.

    A lock of flock(2) is its open file's: the line has who took it, which may have handed the
    descriptor to another process and closed its own.
    """
    pid, where = int(words[4]), words[5].encode()
    if words[1] != "FLOCK":
        return pid
    place = f"/proc/{pid}/fdinfo"
    infos = (proc_files.read(f"{place}/{fd}") or b"" for fd in proc_files.entries(place) or ())
    lines = (line.split() for info in infos for line in info.splitlines())
    return pid if any(line[:1] == [b"lock:"] and where in line for line in lines) else 0
