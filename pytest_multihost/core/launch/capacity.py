"""Computes how many ranks fit on this machine, so that a world too large is refused at once.

Without this check the kernel ends the server after a minute, and the message speaks of a lost
server. What a user's limits refuse fails at once by itself; see `refusals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from pytest_multihost.core.model.errors import LaunchError

RANK_BYTES = 8 << 20
"""Memory that a forked rank takes at least. Measured after one barrier, in private pages: 9.4 MB
without a runtime, 11 MB with gloo, 16 MB with jax before its first program."""

CROWDED = 64
"""Ranks per core above which a user is warned: on two cores 150 ranks without a runtime pass in
8 s, and 1000 ranks take minutes."""

_FILES_2 = ("memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable"))
_FILES_1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)
"""Of a control group in version 2 and 1: the file with the limit, the file with the memory used,
and the entries of memory.stat with cached files and others that the kernel drops when memory is
short."""

_CGROUP, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this machine, or of a control group of this process.

    Attributes:
        available: Bytes that can still be used, without swapping.
        total: All bytes.
        swap: Free bytes of the machine's swap space; a control group may be allowed fewer.
    """

    available: int
    total: int
    swap: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """What ranks can still take of this machine.

    Attributes:
        memory: Available bytes.
        processes: Further processes; None: unlimited.
    """

    memory: int
    processes: int | None

    def problem(self, ranks: int) -> str:
        """Return why so many ranks do not fit, and how many do; empty if they fit."""
        most, why = self._most()
        return f"{why}: at most {most} ranks fit" if ranks > most else ""

    def warning(self, ranks: int, cores: int) -> str:
        """Return how many ranks fit, if so many take long on these cores; empty if they do not."""
        if ranks <= CROWDED * cores:
            return ""
        most, why = self._most()
        return (
            f"{ranks} ranks share {cores} cores, and a world can take minutes;"
            f" {why}: at most {most} ranks fit"
        )

    def _most(self) -> tuple[int, str]:
        """Return how many ranks fit, and which resource limits them."""
        memory = (
            f"{self.memory / 1e9:.1f} GB of memory are available, and a rank takes at least"
            f" {RANK_BYTES >> 20} MB"
        )
        limits = [(self.memory // RANK_BYTES, memory)]
        if self.processes is not None:
            limits.append((self.processes, f"{self.processes} processes can still be started"))
        return min(limits)


def require_room(ranks: int, room: Room | None = None) -> None:
    """Check that so many further ranks fit on this machine.

    Args:
        room: What the machine has left; None: look now.

    Raises:
        LaunchError: They do not fit.
    """
    if problem := (room or look()).problem(ranks):
        raise LaunchError(
            f"{ranks} ranks do not fit on this machine",
            seen=f"{problem[:1].upper()}{problem[1:]}.",
            remedy="Use fewer ranks, or raise that limit.",
        )


def look(groups: Path = _CGROUP, own: Path = _OWN_GROUPS) -> Room:
    """Return the room that this machine and this process's control groups leave.

    Args:
        groups: Where control groups are mounted: one tree, or in version 1 one for each controller.
        own: The file with this process's groups, as cgroups(7) describes it.
    """
    folders = [*_with_parents(groups, "", own), *_with_parents(groups, "pids", own)]
    processes = [each for each in map(_processes_left, folders) if each is not None]
    return Room(memory(groups, own).available, min(processes, default=None))


def memory(groups: Path = _CGROUP, own: Path = _OWN_GROUPS) -> Memory:
    """Return the memory of this machine, or of the control group of this process that has least.

    Args:
        groups: As for `look`.
        own: As for `look`.
    """
    machine = psutil.virtual_memory()
    in_groups = [
        *(_memory_of(each, _FILES_2) for each in _with_parents(groups, "", own)),
        *(_memory_of(each, _FILES_1) for each in _with_parents(groups, "memory", own)),
    ]
    found = (Memory(machine.available, machine.total), *filter(None, in_groups))
    least = min(found, key=lambda each: each.available)
    return replace(least, swap=psutil.swap_memory().free)


def _with_parents(groups: Path, controller: str, own: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and of those that contain it.

    In a container the process's path is often that on the host. Then only the root is there.

    Args:
        controller: That of version 1, or empty for the one tree of version 2.
    """
    root = groups / controller
    lines = own.read_text().splitlines() if own.exists() else []
    entries = [line.split(":", 2) for line in lines]
    paths = [path for _, names, path in entries if controller in names.split(",")]
    folder = root / paths[0].lstrip("/") if paths else root
    while folder != root and root in folder.parents:
        yield folder
        folder = folder.parent
    yield root


def _memory_of(folder: Path, files: tuple[str, str, Sequence[str]]) -> Memory | None:
    """Return what a control group's limit leaves; None if it has none."""
    limit, used, droppable = files
    try:
        most = (folder / limit).read_text().strip()
        used_bytes = int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # the root group has no limits
        return None
    if most == "max":
        return None
    used_bytes -= sum(int(stat.get(name, 0)) for name in droppable)
    return Memory(max(0, int(most) - used_bytes), int(most))


def _processes_left(folder: Path) -> int | None:
    """Return how many processes a control group can still start; None if it has no limit."""
    try:
        most, now = ((folder / name).read_text().strip() for name in ("pids.max", "pids.current"))
    except OSError:
        return None
    return None if most == "max" else max(0, int(most) - int(now))
