"""Reads what runs below a process, without reading all processes of the machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pytest_multihost.core.procfs import children_of
from pytest_multihost.core.watch.kernel import read_stat
from pytest_multihost.core.watch.kernel.proc_files import read, read_runs


@dataclass(frozen=True, slots=True)
class Tree:
    """The living descendants of a process.

    Attributes:
        parents: By process id, the parent; that of the first process is 0.
        used_ns: By process id, how long it has run and how long it has waited for a processor.
        ran_ns: By process id, how long it has run.
    """

    parents: Mapping[int, int] = field(default_factory=dict)
    used_ns: Mapping[int, int] = field(default_factory=dict)
    ran_ns: Mapping[int, int] = field(default_factory=dict)

    def below(self, pid: int) -> frozenset[int]:
        """Return a process and its descendants."""
        found = {pid} if pid in self.parents else set[int]()
        for each, parent in self.parents.items():  # a parent comes before its children
            if parent in found:
                found.add(each)
        return frozenset(found)

    def used_since(self, before: Tree, pids: Collection[int]) -> int:
        """Return how long processes have run, or wanted to, since an earlier reading (in ns)."""
        return sum(self.used_ns[pid] - before.used_ns.get(pid, 0) for pid in pids)

    def ran_since(self, before: Tree, pids: Collection[int]) -> int:
        """Return how long processes have run since an earlier reading, in nanoseconds."""
        return sum(self.ran_ns[pid] - before.ran_ns.get(pid, 0) for pid in pids)


def read_tree(top: int) -> Tree:
    """Return the descendants of a process, and itself."""
    parents, ran, queued = dict[int, int](), dict[int, int](), dict[int, int]()
    todo = [(top, 0)]
    while todo:
        pid, parent = todo.pop(0)
        stat = read_stat(f"/proc/{pid}")
        if stat is None or stat.state in "XZ" or pid in parents:
            continue
        parents[pid], ran[pid], queued[pid] = parent, stat.cpu_ns, _queued_ns(pid)
        todo += [(child, pid) for child in children_of(pid)]
    return Tree(parents, {pid: ran[pid] + queued[pid] for pid in parents}, ran)


def _queued_ns(pid: int) -> int:
    """Return how long the main thread has waited for a processor: then it is not idle."""
    words = (read(f"/proc/{pid}/schedstat") or b"").split()
    return int(words[1]) if len(words) > 1 and read_runs(f"/proc/{pid}") else 0
