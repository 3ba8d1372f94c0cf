"""What the stacks of ranks add to what was seen of them from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_multihost.blame.jit_groups import with_members
from pytest_multihost.model.snapshot import RankSnapshot, WorldSnapshot
from pytest_multihost.model.stack import Dump


def with_stacks(
    snapshots: Sequence[WorldSnapshot], dumps: Sequence[Dump]
) -> tuple[WorldSnapshot, ...]:
    """Return the snapshots with who takes part in jitted collectives, and who is in native code.

    Args:
        snapshots: Of the world.
        dumps: Stacks of its ranks at the end.
    """
    by_rank = {each.rank: each for each in dumps}
    return tuple(
        replace(snapshot, ranks=tuple(_with_stack(each, by_rank) for each in snapshot.ranks))
        for snapshot in snapshots
    )


def _with_stack(seen: RankSnapshot, dumps: Mapping[int, Dump]) -> RankSnapshot:
    dump = dumps.get(seen.rank)
    frames = dump.main.frames if dump is not None and dump.main is not None else ()
    # A main thread that computes holds the interpreter in Python as well, from line to line.
    is_native = seen.label != "RUNNING" or (dump is not None and dump.is_deaf)
    return with_members(replace(seen, holds_gil=seen.holds_gil and is_native), frames)
