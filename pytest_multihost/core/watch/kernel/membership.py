"""Find the processes of a world: its ranks, their descendants, orphans of these, and parents."""

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
    """Return each process of the world with its rank, None if unknown, and whether it is a rank.

    Ranks come first.

    Args:
        is_same: Returns whether a process id still belongs to the rank.
        harness: The harness's own processes around the ranks.
    """
    family: dict[int, tuple[int | None, bool]]
    family = {pid: (rank, True) for rank, pid in sorted(ranks.items())}
    family |= {pid: (None, False) for pid in harness.parents if pid in stats and pid not in family}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    todo = sorted(
        pid
        for pid, (_, is_rank) in family.items()
        if pid in stats and (not is_rank or is_same(pid, stats[pid]))
    )
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
    return {*harness.servers, *harness.controllers, *harness.companions, *harness.idle}


def _orphans(
    stats: Mapping[int, Stat],
    children: Mapping[int, list[int]],
    sessions: Collection[int],
    spared: Collection[int],
    reaper: int | None,
) -> Iterator[int]:
    """Yield processes of the world whose parents have ended.

    The reaper adopts them (PR_SET_CHILD_SUBREAPER of prctl(2)). If it does not, the session that
    each rank has begun (setsid(2)) shows to which rank they belong.
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
    """Processes and files of the harness on this machine, which cannot end a wait of the test.

    Attributes:
        servers: Processes that hold descriptors without using them: the server, from which ranks
            inherit them. Only parents of ranks are accepted; a parent that a controller has started
            need not be named.
        controllers: Processes at the other end of the ranks' channels: the controller.
        paths: Files that only threads of the harness wait for, as patterns of the whole path; a
            star stands for part of one name.
        socket_tables: Netlink sockets that read the socket tables of the network namespaces of the
            world's hosts, by the namespace's name.
        is_sealed: Whether these namespaces connect only processes of the world.
        private: Directories of the world: nothing outside connects to unix sockets in them.
        companions: Other processes of the harness: children of the reaper that no rank has left
            behind.
        exchanges: Those of them through which ranks wait for each other: a rank that waits for one
            waits for another rank.
        idle: Processes that hold descriptors without using them, and that have nothing to do with
            the world: servers of others.
        parents: Processes that have started ranks and wait for them. They are not exempt: they and
            all their descendants belong to the world.
        reaper: The process that adopts the ranks' orphans. Its children, except servers and
            companions, are not part of the harness.
        title: Name of the controllers in messages.
    """

    servers: frozenset[int] = frozenset()
    controllers: frozenset[int] = frozenset()
    paths: tuple[str, ...] = ()
    socket_tables: Mapping[str, Table] = field(default_factory=dict)
    is_sealed: bool = False
    private: tuple[str, ...] = ()
    companions: frozenset[int] = frozenset()
    exchanges: frozenset[int] = frozenset()
    idle: frozenset[int] = frozenset()
    parents: frozenset[int] = frozenset()
    reaper: int | None = None
    title: str = "the process that has started the ranks"

    def owns(self, pids: Collection[int]) -> bool:
        """Return whether the processes that hold something are all of the harness.

        Objects that only companions hold are their own: they may use them.
        """
        unused = self.controllers | self.servers | self.idle
        return not unused.isdisjoint(pids) and (unused | self.companions).issuperset(pids)

    def is_private(self, path: str) -> bool:
        """Return whether a path is in a directory of the world."""
        return any(path.startswith(f"{each}/") for each in self.private) and "/../" not in path

    def is_path(self, path: str) -> bool:
        """Return whether only threads of the harness wait for the file at a path."""
        return any(
            fnmatch.fnmatchcase(path, pattern) and path.count("/") == pattern.count("/")
            for pattern in self.paths
        )
