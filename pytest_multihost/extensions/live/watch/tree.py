"""Reads the processes below another one, without reading all processes of the machine."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.procfs import children_of, stat_words

_STATE, _USER_TIME, _SYSTEM_TIME = 0, 11, 12
"""Places in `stat_words`."""

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


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
        try:
            words = stat_words(pid)
        except OSError:  # it is gone
            continue
        if not words or words[_STATE] in "XZ" or pid in parents:
            continue
        ran[pid] = (int(words[_USER_TIME]) + int(words[_SYSTEM_TIME])) * _TICK_NS
        parents[pid], queued[pid] = parent, _queued_ns(pid)
        todo += [(child, pid) for child in children_of(pid)]
    return Tree(parents, {pid: ran[pid] + queued[pid] for pid in parents}, ran)


def _queued_ns(pid: int) -> int:
    """Return how long the main thread has waited for a processor: then it is not idle."""
    try:
        words = Path(f"/proc/{pid}/schedstat").read_bytes().split()
    except OSError:  # it is gone, or this kernel does not count
        return 0
    return int(words[1]) if len(words) > 1 else 0
