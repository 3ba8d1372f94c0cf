"""Judges a dumped world by its wait-for graph, like any other world.

Ranks whose state at the instant of the others' dumps is unknown are not in that graph. Ranks
without a dump are considered only when no other culprit is found; the result is then uncertain.

Only one conclusion relies on times across hosts: whether ranks still moved while dumps were taken.
`clocks_ahead_s` estimates how far the hosts' clocks are apart. `remarks` notes for the reader
other facts in the dumps, and the facts they lack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median

from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.blame.partings import find_partings
from pytest_multihost.core.model.collectives import of_flight_name
from pytest_multihost.core.model.history import CallSite, History
from pytest_multihost.core.model.operation import (
    GroupKey,
    Operation,
    Operations,
    group_by_value,
    payload_text,
)
from pytest_multihost.core.model.origin import Known, Origin
from pytest_multihost.core.model.rank_names import PLAIN, Names
from pytest_multihost.core.model.result import (
    Activity,
    RankSnapshot,
    WorldResult,
    WorldSnapshot,
    utc_text,
)
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.model.verdict import Diagnosis
from pytest_multihost.core.outcome import Finding, RankFacts, Symptoms
from pytest_multihost.core.outcome.finding import suspected_hang
from pytest_multihost.extensions.flight.launched import Joined, Launched, join
from pytest_multihost.extensions.flight.progress import Progress, progress_of
from pytest_multihost.extensions.flight.recording import KNOWN_VERSION, DumpFolder, Recording

_KEPT_S = 86400.0
"""A file's time is taken as the time of its dump if it is at most this long after the dump's last
operation. A copied file may have any time."""


def _ground(seconds: float) -> str:
    # The times of copied dumps may be unknown.
    dumped = f", dumped {seconds:.1f} s after the last operation began" if seconds else ""
    return f"the ranks' flight recorders show it{dumped}"


_DUMPS = Origin(detected_by="dumps", ground=_ground, is_ordered=False)
"""Dumps of the ranks' flight recorders: each is of one instant, and the instants differ."""


def judge_dumps(folder: DumpFolder, name: str, context: SourceContext) -> Judgement:
    """Return the judgement of a world from its ranks' dumps.

    Args:
        name: The name of the dumps in the report.
    """
    told = [each for each in folder.recordings if not each.is_blank] or folder.recordings
    ahead_s = clocks_ahead_s(told)
    known = {each.rank for each in folder.recordings}
    members = (ranks for each in folder.recordings for ranks in each.members.values())
    joined = join(told, ahead_s, ranks=sorted(known.union(*members)))
    progress = progress_of(joined, ahead_s)
    old = frozenset(rank for rank, each in progress.items() if each.is_old)
    silent = _silent(joined, progress)
    may_be_lost = len(silent) > joined.size // 2  # the folder, it seems, was not copied in full
    finding = _finding(joined, progress)
    ranks = Known(
        unseen=old | silent if may_be_lost else old,
        silent=silent,
        unrecorded=_unrecorded(joined, progress),
    )
    result = replace(_result(joined, progress, name), known=ranks)
    judged = judge_world(result, Symptoms(), context, finding=finding)
    found = judged.diagnosis
    is_moving = found is not None and found.kind == "unknown" and bool(old)
    if found is None or is_moving or not any(each.waits_in for each in progress.values()):
        return replace(judged, diagnosis=None, finding=_nothing_open(finding, old, folder.problems))
    judged = replace(judged, finding=_with_culprits(judged.finding, found))
    gave_up = any(progress[rank].gave_up for rank in found.waiting if rank in progress)
    if (gave_up or not _times_are_kept(joined)) and found.confidence == "certain":
        found = replace(found, confidence="likely")
    notes = (*remarks(joined, progress, ahead_s), *folder.problems)
    return replace(judged, diagnosis=replace(found, notes=(*found.notes, *notes)))


def _silent(joined: Joined, progress: Mapping[int, Progress]) -> frozenset[int]:
    """Return the ranks of which nothing is known."""
    told = {rank for rank, each in progress.items() if not each.is_empty}
    return frozenset(range(joined.size)) - told


def _unrecorded(
    joined: Joined, progress: Mapping[int, Progress]
) -> Mapping[int, frozenset[tuple[GroupKey, int | None]]]:
    """Return by rank the operations that may lack a record."""
    none = frozenset[tuple[GroupKey, int | None]]()
    return {
        rank: joined.unrecorded.get(rank, none) | {(joined.groups[e], None) for e in each.untold}
        for rank, each in progress.items()
        if each.untold or rank in joined.unrecorded
    }


def _with_culprits(finding: Finding, found: Diagnosis) -> Finding:
    """Return the finding; of the ranks that wait in nothing, only culprits hang."""
    ranks = tuple(
        replace(each, outcome="hung") if each.facts.rank in found.culprits else each
        for each in finding.ranks
    )
    return replace(finding, ranks=ranks)


def _times_are_kept(joined: Joined) -> bool:
    """Return whether the files seem to have kept the times of their dumps."""
    lasts = [
        each.dumped_s - each.last_s
        for each in joined.recordings.values()
        if each.dumped_s is not None and each.last_s is not None
    ]
    return bool(lasts) and max(lasts) <= _KEPT_S


def _nothing_open(finding: Finding, old: Collection[int], problems: Sequence[str]) -> Finding:
    reason = "no rank waits in an operation that was recorded"
    if old:
        reason = "ranks still moved while the dumps were taken, so they prove nothing"
    ranks = tuple(replace(each, outcome="passed") for each in finding.ranks)
    return replace(
        finding,
        outcome="passed",
        status="passed",
        reason="; ".join((reason, *problems)),
        ranks=ranks,
    )


def _result(joined: Joined, progress: Mapping[int, Progress], name: str) -> WorldResult:
    """Return the world as it was when it was dumped."""
    lasts = [e.operation.since_s for theirs in joined.launched.values() for e in theirs]
    dumped = [
        each.dumped_s - joined.origin_s
        for each in (joined.recordings.values() if _times_are_kept(joined) else ())
        if each.dumped_s is not None
    ]
    last_s = max(lasts, default=0.0)
    end_s = max([last_s, *dumped])
    backends = {e.backend for each in joined.recordings.values() for e in each.entries}
    places = {e.place for each in progress.values() for e in each.waits_in}
    groups = joined.groups
    return WorldResult(
        spec=WorldSpec.of_job(name, joined.size, "+".join(sorted(backends)) or "torch"),
        launch="dumps",
        started_at=utc_text(datetime.fromtimestamp(joined.origin_s, tz=UTC)),
        started_s=0.0,
        ended_s=end_s,
        history=(),
        ending="unwatched",
        origin=_DUMPS,
        snapshots=(
            WorldSnapshot(
                at_s=end_s,
                reason="end",
                ranks=tuple(_snapshot(rank, progress, joined) for rank in range(joined.size)),
            ),
        ),
        operations=tuple(
            Operations(
                rank,
                tuple(_known(each, places, joined)),
                {groups[group]: count for group, count in each.entered.items()},
            )
            for rank, each in progress.items()
        ),
        partings=find_partings(_histories(joined, progress), ()),
        progress_s=last_s,
        detected_s=end_s,
    )


def _snapshot(rank: int, progress: Mapping[int, Progress], joined: Joined) -> RankSnapshot:
    one = progress.get(rank)
    if one is None:
        return RankSnapshot(rank=rank, activity=_activity(one, Names(joined.size)))
    return RankSnapshot(
        rank=rank,
        activity=_activity(one, Names(joined.size)),
        operations=tuple(each.operation for each in one.waits_in),
        entered=tuple((joined.groups[group], count) for group, count in one.entered.items()),
    )


def _activity(progress: Progress | None, names: Names) -> Activity:
    """Return the state of a rank, and its details; shown for ranks that wait in no operation."""
    if progress is None:
        return Activity("no dump", "its state is unknown")
    if progress.is_empty:
        return Activity("no dump", "its dump is empty, but the rank took part in operations")
    if progress.is_old:
        return Activity("moved", "after it was dumped")
    if progress.held_in is not None:
        return Activity(
            "held", f"has not completed {progress.held_in.describe(names)}, as others have"
        )
    if not progress.reached:
        return Activity("idle", "it is in no operation")
    last = progress.reached[-1].operation.describe(names)
    return Activity("idle", f"it is in no operation; its last one was {last}")


def _known(
    progress: Progress, places: Collection[tuple[int, int]], joined: Joined
) -> Iterator[Operation]:
    """Yield the known operations of a rank that others wait for, and its last ones.

    A group whose entries were overwritten gets one operation with the number of its last one.
    """
    lasts = {each.group: each for each in progress.reached if not each.is_transfer}
    waited = {group for group, _ in places}
    for group, count in progress.entered.items():
        if group not in lasts and count > 0 and group in waited:
            ranks, ordinal, scope = joined.groups[group]
            yield Operation(
                name="collective",
                kind="collective",
                group=ranks,
                ordinal=ordinal,
                scope=scope,
                group_title=joined.title(progress.rank, group),
                sequence=count,
                since_s=0.0,
                ended_s=0.0,
                source="flight-recorder",
            )
    for each in progress.reached:
        if each.is_transfer or each.place in places or lasts.get(each.group) is each:
            yield each.operation


def _finding(joined: Joined, progress: Mapping[int, Progress]) -> Finding:
    """Return that the ranks hang which wait in an operation; whom they wait for is judged later."""
    facts = [RankFacts(rank, phase="call") for rank in range(joined.size)]
    reason = f"{len(joined.recordings)} ranks were dumped"
    found = suspected_hang(facts, reason, summary="was dumped")
    ranks = tuple(
        each if rank in progress and progress[rank].waits_in else replace(each, outcome="passed")
        for rank, each in enumerate(found.ranks)
    )
    return replace(found, ranks=ranks)


def _histories(joined: Joined, progress: Mapping[int, Progress]) -> Sequence[History]:
    """Return the collectives that ranks have entered in each group that some rank waits in."""
    waited = {e.group for one in progress.values() for e in one.waits_in if not e.is_transfer}
    histories = [
        (group, _history(rank, joined.groups[group], one.entered[group], theirs.get(group, ())))
        for rank, one in progress.items()
        if not one.is_old and not waited.isdisjoint(one.entered)
        for theirs in (
            group_by_value((e.group, e) for e in joined.launched[rank] if not e.is_transfer),
        )
        for group in waited.intersection(one.entered)
    ]
    return [each for _, each in sorted(histories, key=lambda each: each[0])]


def _history(rank: int, key: GroupKey, last: int, launched: Sequence[Launched]) -> History:
    """Return the collectives of one group up to number `last`, beginning after the last gap."""
    found = {each.operation.sequence: each.operation for each in launched}
    first = last + 1
    while first - 1 in found:
        first -= 1
    known = [found[each] for each in range(first, last + 1)]
    sites = group_by_value((_site(each), each) for each in known)
    numbers = {site: number for number, site in enumerate(sites)}
    return History(
        rank,
        key,
        max(1, first),
        tuple(numbers),
        order=tuple(numbers[_site(each)] for each in known),
        times_s=tuple(each.since_s for each in known),
    )


def _site(operation: Operation) -> CallSite:
    collective = of_flight_name(operation.name)
    has_size = collective is not None and collective.has_one_size
    detail = payload_text(operation.payload) if has_size else ""
    frames = (operation.frame,) if operation.frame is not None else ()
    return CallSite(operation.name, None, detail, frames)


_LEAST = 5
"""Minimum number of common collectives for an estimate: ranks do not enter one at the same time."""

_MATTERS_S = 1.0


def clocks_ahead_s(recordings: Sequence[Recording]) -> Mapping[int, float]:
    """Return by rank how many seconds its clock is ahead of the first rank's; mostly 0.

    All ranks enter a collective at about the same time. If one rank's times are always seconds
    later, its clock is ahead.
    """
    times = {each.rank: _times_s(each) for each in recordings}
    found: dict[int, float] = {}
    first: dict[tuple[str, int], int] = {}  # the first rank that has this collective
    for rank, own in times.items():
        found[rank] = 0.0
        common = group_by_value((first[each], each) for each in own if each in first)
        other, shared = max(common.items(), key=lambda each: len(each[1]), default=(rank, []))
        if len(shared) >= _LEAST:
            apart_s = median(own[each] - times[other][each] for each in shared)
            found[rank] = found[other] + (apart_s if abs(apart_s) > _MATTERS_S else 0.0)
        for each in own:
            first.setdefault(each, rank)
    return found


def _times_s(recording: Recording) -> Mapping[tuple[str, int], float]:
    """Return when a rank entered the collectives that have ended, by group name and number."""
    return {
        (each.process_group[0], each.collective_seq_id): each.time_created_ns / 1e9
        for each in recording.entries
        if not each.is_p2p and (each.retired or each.state == "completed")
    }


_MAX_CULPRITS = 4
_CANNOT_TELL = (
    "dumps list collectives, sends and receives only, without roots: a rank's stack shows whether"
    " it is in a data loader, a lock, a store or a checkpoint"
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
            f"{PLAIN.of(held)} launched more operations after one that has completed on other ranks"
            " only: its device has stopped, or torch's thread that watches the device"
        )
    if gave_up := [rank for rank, each in progress.items() if each.gave_up]:
        yield (
            f"the operation in which {PLAIN.of(gave_up)} waited has ended without all members: by a"
            " timeout or another error"
        )
    old = [rank for rank, each in progress.items() if each.is_old]
    if old:
        yield f"{PLAIN.of(old)} moved after the first dumps or shortly before them: not judged"
    if silent := _silent(joined, progress):
        yield f"{PLAIN.of(silent)} left no dump that can be used"
    ahead = {rank: seconds for rank, seconds in ahead_s.items() if seconds}
    for rank, seconds in [*ahead.items()][:_MAX_CULPRITS]:
        than = "ahead" if seconds > 0 else "behind"
        yield f"the clock of rank {rank} is about {abs(seconds):.1f} s {than}"
    if any(not e.operation.has_members for theirs in joined.launched.values() for e in theirs):
        yield (
            "the dumps do not list the members of groups (gloo's never do): in any group but the"
            " default one, only a rank that had used the group before can be found missing"
        )
    versions = group_by_value((each.version, rank) for rank, each in joined.recordings.items())
    if len(versions) > 1:
        told = ", ".join(
            f"{'.'.join(map(str, each))} of {PLAIN.of(ranks)}" for each, ranks in versions.items()
        )
        yield f"the dumps are of several formats: {told}"
    elif max(versions, default=KNOWN_VERSION) > KNOWN_VERSION:
        newest = ".".join(map(str, KNOWN_VERSION))
        yield f"the dumps are of a format newer than {newest}, the newest that this version knows"
    yield _CANNOT_TELL
