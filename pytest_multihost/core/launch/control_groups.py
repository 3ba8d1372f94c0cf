"""The room left on this machine and in this process's control groups, and the kills there.

A container, a Slurm job or a user's session is a control group (cgroups(7)) with limits of its own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory of this machine, or of a control group of this process.

    Attributes:
        available: Bytes that can still be used, without swapping.
        swap: Bytes that can still be swapped out.
    """

    available: int
    total: int
    swap: int = 0


@dataclass(frozen=True, slots=True)
class _GroupFiles:
    """The files of a control group, in one version of control groups.

    Attributes:
        controller: The folder with the groups, below that of all controllers.
        swap_limit: The most swap space; in version 1, the most memory and swap space together.
        swap_used: The part of `swap_limit` that is used.
        dropped: Entries of memory.stat, of the group with those below it: memory that the kernel
            drops when it is short.
    """

    controller: str
    limit: str
    used: str
    swap_limit: str
    swap_used: str
    dropped: tuple[str, ...]
    kills: str


_VERSIONS = (
    _GroupFiles(
        controller="",
        limit="memory.max",
        used="memory.current",
        swap_limit="memory.swap.max",
        swap_used="memory.swap.current",
        dropped=("active_file", "inactive_file", "slab_reclaimable"),
        kills="memory.events",
    ),
    _GroupFiles(
        controller="memory",
        limit="memory.limit_in_bytes",
        used="memory.usage_in_bytes",
        swap_limit="memory.memsw.limit_in_bytes",
        swap_used="memory.memsw.usage_in_bytes",
        dropped=("total_active_file", "total_inactive_file"),
        kills="memory.oom_control",
    ),
)
"""Version 2, and version 1."""


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The control groups of this process.

    Attributes:
        root: Where they are mounted: one tree, or in version 1 one for each controller.
        own: The file with this process's groups.
        free_swap: Returns the free bytes of the machine's swap space.
    """

    root: Path = Path("/sys/fs/cgroup")
    own: Path = Path("/proc/self/cgroup")
    free_swap: Callable[[], int] = lambda: int(psutil.swap_memory().free)

    def memory(self) -> FreeMemory:
        """Return the memory of the machine, or of the group that has least."""
        machine, swap = psutil.virtual_memory(), self.free_swap()
        limited = (
            _memory_of(folder, version, machine.total, swap)
            for version in _VERSIONS
            for folder in self._with_parents(version.controller)
        )
        found = (FreeMemory(machine.available, machine.total, swap), *filter(None, limited))
        return min(found, key=lambda each: each.available)

    def processes_left(self) -> int | None:
        """Return how many processes the groups can still start; None if they have no limit."""
        folders = (*self._with_parents(""), *self._with_parents("pids"))
        found = [each for each in map(_processes_left, folders) if each is not None]
        return min(found, default=None)

    def oom_kills(self) -> int:
        """Return how many processes of the group the kernel has killed for lack of memory.

        Without a group that says it, return those of the whole machine (proc_vmstat(5)).
        """
        paths = [self._with_parents(each.controller)[0] / each.kills for each in _VERSIONS]
        for path in (*paths, Path("/proc/vmstat")):
            with contextlib.suppress(OSError, KeyError, ValueError):
                return int(_entries(path)["oom_kill"])
        return 0

    def _with_parents(self, controller: str) -> tuple[Path, ...]:
        """Return the folders of this process's group and of the groups that contain it.

        Args:
            controller: That of version 1, or empty for the one tree of version 2.
        """
        own = self.own.read_text(errors="replace") if self.own.exists() else ""
        return _with_parents(self.root, controller, own)


@lru_cache  # each world asks several times, and the groups of a process seldom change
def _with_parents(mounted: Path, controller: str, own: str) -> tuple[Path, ...]:
    """Return the folders of a process's group and of the groups that contain it, up to the root.

    In a container the process's path is often that on the host. Then only the root is there.

    Args:
        own: The text of the file with the process's groups.
    """
    root = mounted / controller
    entries = [line.split(":", 2) for line in own.splitlines()]
    paths = [path for _, names, path in entries if controller in names.split(",")]
    folder = root / paths[0].lstrip("/") if paths else root
    found = [each for each in (folder, *folder.parents) if each != root and root in each.parents]
    return (*(each for each in found if each.is_dir()), root)


OWN_GROUPS = ControlGroups()
"""The control groups of this process, where Linux has them."""


def _memory_of(
    folder: Path, files: _GroupFiles, total: int, machine_swap: int
) -> FreeMemory | None:
    """Return the memory that a control group's limit leaves; None if the limit changes nothing.

    Args:
        total: The memory of the machine. A limit above it leaves more than the machine has, so no
            more files are read: each world asks.
    """
    try:
        limit = _number(folder / files.limit)
        if limit >= total:
            return None
        used = _number(folder / files.used)
        stat = _entries(folder / "memory.stat")
        dropped = sum(int(stat.get(name, 0)) for name in files.dropped)
    except (OSError, ValueError):  # the root group has no limits; a file may hold no number
        return None
    available = max(0, int(limit - used + dropped))
    swap = float(machine_swap)
    with contextlib.suppress(OSError, ValueError):  # swapped memory is not counted
        swap = _number(folder / files.swap_limit) - _number(folder / files.swap_used)
        swap -= max(0.0, limit - used) if files.controller else 0.0
    return FreeMemory(available, int(limit), int(min(machine_swap, max(0.0, swap))))


def _number(path: Path) -> float:
    """Return the number in a file, infinite for "max".

    Raises:
        OSError: It cannot be read.
        ValueError: It holds no number.
    """
    text = path.read_text(errors="replace").strip()
    return math.inf if text == "max" else float(int(text))


def _entries(path: Path) -> dict[str, str]:
    """Return the entries of a file with a name and a number in each line."""
    return dict(
        line.split(maxsplit=1)
        for line in path.read_text(errors="replace").splitlines()
        if " " in line
    )


def _processes_left(folder: Path) -> int | None:
    """Return how many processes a control group can still start; None if it has no limit."""
    try:
        most, now = _number(folder / "pids.max"), _number(folder / "pids.current")
    except (OSError, ValueError):
        return None
    return None if most == math.inf else max(0, int(most - now))
