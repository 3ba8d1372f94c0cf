"""Compare two snapshots of a world: the activity of each rank, and the ranks that did not move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_multihost.core.model.operation import PROGRAM_START, Operation
from pytest_multihost.core.model.process import KernelSnapshot, Thread
from pytest_multihost.core.model.result import RankSnapshot
from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.proof.threads import main_labels


def rank_snapshots(before: Snapshot | None, now: Snapshot) -> tuple[RankSnapshot, ...]:
    """Return the activity of each rank, from a snapshot and its predecessor."""
    kernel = before.kernel if before is not None else None
    labels = main_labels(kernel, now.kernel)
    pairs = _main_threads(kernel, now.kernel) if kernel is not None else ()
    # even if it is waiting again
    ran = {rank for rank, was, main in pairs if (was.runs, was.cpu_ns) != (main.runs, main.cpu_ns)}
    found = []
    for each in now.operations:
        label, activity = labels.get(each.rank, (None, None))
        found.append(
            RankSnapshot(
                rank=each.rank,
                label=label,
                activity=activity,
                operations=_unmet([o for o in each.open if o.name != PROGRAM_START], now),
                entered=tuple(each.entered.items()),
                has_run=each.rank in ran,
            )
        )
    return tuple(found)


def _unmet(operations: Sequence[Operation], now: Snapshot) -> tuple[Operation, ...]:
    """Return open operations; a thread at several waits for the ones without a member.

    It has entered them one after the other, and the first ones may have ended since.
    """
    if not operations[1:]:  # there is no other one: nearly always
        return tuple(operations)
    operations = _shifted(operations, now)
    lack = [each for each in operations if each.waited_s is not None and now.lacking(each)]
    threads = {each.thread for each in lack}
    return tuple(
        replace(each, waited_s=None)
        if each.kind == "collective" and each.thread in threads and each not in lack
        else each
        for each in operations
    )


def _shifted(operations: Sequence[Operation], now: Snapshot) -> Sequence[Operation]:
    """Return open operations; of a rank's programs its thread waits for the first that cannot end.

    Programs run in the order of their start. A thread that waits for devices is recorded as waiting
    for the oldest program whose end it has not noticed, which may have ended.
    """
    waited = [each for each in operations if each.is_program and each.waited_s is not None]
    later = [each for each in operations if each.is_program and each.waited_s is None]
    stuck = next((each for each in later if now.lacking(each)), None)
    if len(waited) != 1 or stuck is None or now.lacking(waited[0]):
        return operations
    (first,) = waited
    new = {
        first: replace(first, waited_s=None),
        stuck: replace(stuck, waited_s=first.waited_s, thread=first.thread, frame=first.frame),
    }
    return [new.get(each, each) for each in operations]


def unmoved_ranks(before: KernelSnapshot, now: KernelSnapshot) -> frozenset[int]:
    """Return the ranks whose main thread is in the same wait in both snapshots."""
    return frozenset(
        rank
        for rank, was, main in _main_threads(before, now)
        if was.state == main.state == "S" and was.wait_key == main.wait_key
    )


def _main_threads(
    before: KernelSnapshot, now: KernelSnapshot
) -> Iterator[tuple[int, Thread, Thread]]:
    """Yield rank, earlier and later main thread of each rank that has one in both snapshots."""
    earlier = before.ranks
    for rank, process in now.ranks.items():
        was = earlier[rank].main if rank in earlier else None
        if was is not None and process.main is not None:
            yield rank, was, process.main
