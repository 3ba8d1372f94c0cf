"""What dumps show besides who waits for whom, and what they cannot show: notes for the reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_multihost.flight.launched import Joined
from pytest_multihost.flight.progress import Progress
from pytest_multihost.flight.recording import KNOWN_VERSION
from pytest_multihost.model.operation import group_by_value, rank_set

_MAX_CULPRITS = 4
_CANNOT_TELL = (
    "dumps tell of collectives, sends and receives only, and not of roots: what a rank does outside"
    " of these - a data loader, a lock, a store, a checkpoint - its stack shows"
)


def remarks(
    joined: Joined,
    progress: Mapping[int, Progress],
    ahead_s: Mapping[int, float],
) -> Iterator[str]:
    """Yield notes on a world that was judged from dumps, one sentence each."""
    held = [rank for rank, each in progress.items() if each.held_in is not None]
    if held:
        yield (
            f"{rank_set(held)} went on to launch operations behind one whose end others have seen:"
            " its device has stopped, or the thread that watches it"
        )
    if gave_up := [rank for rank, each in progress.items() if each.gave_up]:
        yield (
            f"what {rank_set(gave_up)} waited in has ended without all members, so by a timeout or"
            " another error"
        )
    old = [rank for rank, each in progress.items() if each.is_old]
    if old:
        yield f"{rank_set(old)} moved after the first dumps, or just before: not judged"
    if silent := set(range(joined.size)) - joined.recordings.keys():
        yield f"{rank_set(silent)} left no dump that can be used"
    ahead = {rank: seconds for rank, seconds in ahead_s.items() if seconds}
    for rank, seconds in [*ahead.items()][:_MAX_CULPRITS]:
        than = "ahead" if seconds > 0 else "behind"
        yield f"the clock of rank {rank} is about {abs(seconds):.1f} s {than}"
    if any(not e.operation.has_members for theirs in joined.launched.values() for e in theirs):
        yield (
            "the dumps do not list the members of groups, as gloo's do not: of all but the default"
            " group only ranks that had used it before can be found missing"
        )
    versions = group_by_value((each.version, rank) for rank, each in joined.recordings.items())
    if len(versions) > 1:
        told = ", ".join(f"{each} of {rank_set(ranks)}" for each, ranks in versions.items())
        yield f"the dumps are of several formats: {told}"
    elif any(int(each.rpartition(".")[2]) > KNOWN_VERSION[1] for each in versions):
        newest = ".".join(map(str, KNOWN_VERSION))
        yield f"the dumps are of a format newer than {newest}, the last that is known here"
    yield _CANNOT_TELL
