"""Find the rank that holds the lock of a file for which other ranks keep trying.

Libraries that wait for a lock with a timeout of their own try, sleep, and try again. Between two
tries nothing in the kernel shows such a wait, but the rank has recorded its tries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pytest_multihost.core.model.operation import Operation, Operations, Scope
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import RankSnapshot, WorldSnapshot
from pytest_multihost.core.proof import holders_among, with_lock_holders

_LOCKS = frozenset({"flock", "lockf"})
_BETWEEN_TRIES = frozenset({"SLEEPING", "BLOCKED"})
_TORCHS = re.compile(r"/torch_extensions/(.*/)?lock$")
"""The lock of a folder in which `torch.utils.cpp_extension` builds, where it is by default."""
_MISSED = 3
"""The number of intervals without a try after which a rank has given up."""
_SLACK_S = 1.0
"""How late a try may be on a busy machine."""


def polled_lock(operations: Operations, at_s: float) -> Operation | None:
    """Return the tries of a rank for a lock; None if it is not trying any more.

    It is not if it has tried only once, has got the lock, has begun another operation since, or has
    not tried again when its next try was due.
    """
    tries = [each for each in operations.recent if each.scope.kind in _LOCKS]
    last = max(tries, key=lambda each: each.ended_s or 0.0, default=None)
    if last is None or last.ended_s is None or last.sequence < 2:  # noqa: PLR2004 - one try is not a wait
        return None
    interval_s = (last.ended_s - last.since_s) / (last.sequence - 1)
    has_given_up = at_s - last.ended_s > _MISSED * interval_s + _SLACK_S
    mine = (each for each in operations.recent if each.thread == last.thread)
    return None if has_given_up or any(each.since_s > last.ended_s for each in mine) else last


def with_polled_locks(
    snapshot: WorldSnapshot,
    kernel: KernelSnapshot,
    operations: Sequence[Operations],
    local: Collection[int],
    holders: Callable[[Scope], Sequence[int]],
    names: Names,
) -> WorldSnapshot:
    """Return the last snapshot of a world, with the holders of locks for which ranks keep trying.

    Args:
        kernel: The processes of the world at that instant.
        operations: The recorded operations of each rank.
        holders: Returns the processes that hold a lock now.
    """
    tries = {each.rank: polled_lock(each, snapshot.at_s) for each in operations}
    known = {each.pid for each in kernel.processes if not each.is_dead}
    ranks = list(snapshot.ranks)
    strangers: dict[str, list[int]] = {}
    for i, seen in enumerate(ranks):
        lock = tries.get(seen.rank)
        if lock is None or seen.rank not in local or seen.label not in _BETWEEN_TRIES:
            continue
        pids = holders(lock.scope)
        found = holders_among(pids, kernel).without(seen.rank)
        if found.ranks and not seen.lock_holders:
            ranks[i] = replace(with_lock_holders(seen, found, names), tries_lock=True)
        for pid in set(pids) - known:
            of_whom = f"process {pid}, which is not part of this world"
            held_by = f"the lock of {lock.detail}, held by {of_whom}"
            strangers.setdefault(held_by, []).append(seen.rank)
    notes = [_stranger(lock, waiting, names) for lock, waiting in strangers.items()]
    return _with_ranks(snapshot, ranks, notes)


def locks_left_behind(kernel: KernelSnapshot, names: Names) -> tuple[str, ...]:
    """Return a sentence for each lock of torch's that stays behind when the ranks are ended.

    torch builds an extension while it has a file open that it has made (FileBaton), and every other
    process waits until the file is gone.
    """
    found: dict[str, int] = {}
    for process in kernel.processes:
        for each in process.descriptors.values():
            if each.kind == "file" and process.rank is not None and _TORCHS.search(each.target):
                found.setdefault(each.target, process.rank)
    return tuple(
        f"{names.of([rank])} is ended while it holds the lock {path}: torch builds an extension"
        " there. The file stays behind, and the next build waits for it: remove it"
        for path, rank in found.items()
    )


def _stranger(lock: str, ranks: Sequence[int], names: Names) -> str:
    verb = "tries" if len(ranks) == 1 else "try"
    return f"{names.of(ranks)} {verb} again and again for {lock}"


def _with_ranks(
    snapshot: WorldSnapshot, ranks: Sequence[RankSnapshot], notes: Sequence[str]
) -> WorldSnapshot:
    return replace(snapshot, ranks=tuple(ranks), notes=(*snapshot.notes, *notes))
