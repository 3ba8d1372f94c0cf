"""The facts about processes in /proc, for the modules of all rooms.

The readers of snapshots, which read much more of each process, are in `watch.kernel`. No `Path`
here: it would cost each rank pages.
"""

from __future__ import annotations

import os

_PARENT = 1
"""Place in `stat_words`."""


def stat_words(pid: int) -> list[str]:
    """Return the words of /proc/PID/stat behind the program's name, which may have any characters.

    Raises:
        OSError: The process is gone.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - see above
        return file.read().rpartition(b")")[2].decode("ascii").split()


def command_of(pid: int) -> bytes:
    """Return the command line of a process of this program; empty if it is gone.

    Readers of foreign processes read only so many bytes.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - see above
            return file.read()
    except OSError:
        return b""


def process_ids() -> list[int]:
    """Return the processes of this machine, as far as this one may see them."""
    return [int(each) for each in os.listdir("/proc") if each.isdecimal()]


def children_of(pid: int) -> list[int]:
    """Return the children of a process, whichever of its threads has started them."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [child for each in tasks for child in _started_by(pid, each)]
    except OSError:  # it or a thread of it has ended, or this kernel has no such lists
        return [each for each in process_ids() if _parent_of(each) == pid]


def descendants_of(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    found, ahead = list[int](), [pid]
    while ahead:
        children = children_of(ahead.pop())
        found += children
        ahead += children
    return found


def _started_by(pid: int, task: str) -> list[int]:
    with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123 - see above
        return [int(each) for each in file.read().split()]


def _parent_of(pid: int) -> int | None:
    try:
        return int(stat_words(pid)[_PARENT])
    except OSError:
        return None
