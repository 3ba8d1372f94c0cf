"""What the stacks of ranks add to what was seen of them from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_multihost.blame.jit_groups import with_members
from pytest_multihost.model.snapshot import RankSighting, Sighting
from pytest_multihost.model.stack import Dump


def with_stacks(sightings: Sequence[Sighting], dumps: Sequence[Dump]) -> tuple[Sighting, ...]:
    """Return the sightings with who takes part in jitted collectives, and who is in native code.

    Args:
        sightings: Of the world.
        dumps: Stacks of its ranks at the end.
    """
    by_rank = {each.rank: each for each in dumps}
    return tuple(
        replace(sighting, ranks=tuple(_with_stack(each, by_rank) for each in sighting.ranks))
        for sighting in sightings
    )


def _with_stack(seen: RankSighting, dumps: Mapping[int, Dump]) -> RankSighting:
    dump = dumps.get(seen.rank)
    frames = dump.main.frames if dump is not None and dump.main is not None else ()
    # A main thread that computes holds the interpreter in Python as well, from line to line.
    is_native = seen.label != "RUNNING" or (dump is not None and dump.is_deaf)
    return with_members(replace(seen, holds_gil=seen.holds_gil and is_native), frames)
