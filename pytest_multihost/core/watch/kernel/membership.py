"""Which processes belong to a world: its ranks, what they started, and what was left behind."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pytest_multihost.core.watch.kernel.proc_files import Stat
from pytest_multihost.core.watch.kernel.sockets import Table


def find_family(
    stats: Mapping[int, Stat],
    ranks: Mapping[int, int],
    is_same: Callable[[int, Stat], bool],
    harness: HarnessProcesses,
) -> dict[int, tuple[int | None, bool]]:
    """Return whose each process of the world is, and whether it is a rank; ranks first.

    Args:
        stats: All processes of this machine.
        ranks: Process id of each rank.
        is_same: Whether a rank's process id has not been given to another process.
        harness: What belongs to the harness.
    """
    family: dict[int, tuple[int | None, bool]]
    family = {pid: (rank, True) for rank, pid in sorted(ranks.items())}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    todo = sorted(pid for pid in family if pid in stats and is_same(pid, stats[pid]))
    while todo:
        parent = todo.pop()
        new = [pid for pid in children.get(parent, []) if pid not in family]
        family |= dict.fromkeys(new, (family[parent][0], False))
        todo += new
    sessions = {pid: rank for rank, pid in ranks.items()}
    orphans = _orphans(stats, children, sessions, {*family, *_spared(harness)}, harness.reaper)
    family |= {pid: (sessions.get(stats[pid].session), False) for pid in orphans}
    return family


def _spared(harness: HarnessProcesses) -> Collection[int]:
    return {*harness.servers, *harness.controllers, *harness.companions}


def _orphans(
    stats: Mapping[int, Stat],
    children: Mapping[int, list[int]],
    sessions: Collection[int],
    spared: Collection[int],
    reaper: int | None,
) -> Iterator[int]:
    """Yield processes of the world whose parents have ended.

    The reaper inherits them (PR_SET_CHILD_SUBREAPER of prctl(2)); where it does not, the
    session that each rank has begun (setsid(2)) shows whose they are.
    """
    todo = list(children.get(reaper or -1, []))
    done: set[int] = set()
    while todo:
        pid = todo.pop()
        if pid not in spared and pid not in done:
            done.add(pid)
            todo += children.get(pid, [])
    for pid, stat in stats.items():
        if pid in done or (stat.session in sessions and pid not in spared):
            yield pid


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessProcesses:
    """Parts of this machine that belong to the harness and so cannot end a wait of the test.

    Attributes:
        servers: Processes that hold descriptors without using them: the server, from which ranks
            inherit them. Only parents of ranks are accepted as such; those that a controller has
            started need not be named.
        controllers: Processes at the other end of the ranks' channels: the controller.
        paths: Files that only threads of the harness wait for, as patterns of the whole path; a
            star stands for part of one name.
        socket_tables: Netlink sockets that read the socket tables of the network namespaces of the
            world's hosts, by the namespace's name.
        companions: Other processes of the harness: children of the reaper that no rank has left.
        reaper: The process that inherits the ranks' orphans; its other children are no part of the
            harness.
    """

    servers: frozenset[int] = frozenset()
    controllers: frozenset[int] = frozenset()
    paths: tuple[str, ...] = ()
    socket_tables: Mapping[str, Table] = field(default_factory=dict)
    companions: frozenset[int] = frozenset()
    reaper: int | None = None

    def is_path(self, path: str) -> bool:
        """Return whether a path is one that only threads of the harness wait for."""
        return any(
            fnmatch.fnmatchcase(path, pattern) and path.count("/") == pattern.count("/")
            for pattern in self.paths
        )
