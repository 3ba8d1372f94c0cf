"""The rule `skipped`: a member of a group did not enter the last operation of the others."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.model.operation import RUNTIME_SCOPE, GroupKey, group_by_value
from pytest_multihost.extensions.hazards.model import Launch
from pytest_multihost.extensions.hazards.records import Records, collectives_by_group
from pytest_multihost.extensions.hazards.rule import Found, HazardRule, Occurrences


def _find(records: Records) -> Iterator[Found]:
    """Find members that did not enter the others' last collective, and unmatched transfers."""
    launched = {
        rank: collectives_by_group(each) for rank, each in records.items() if not each.is_truncated
    }
    for group in dict.fromkeys(group for each in launched.values() for group in each):
        members = [rank for rank in group[0] if rank in launched]
        of_ranks = {rank: launched[rank].get(group, []) for rank in members}
        has_failed = any(e.operation.failed for each in of_ranks.values() for e in each)
        if len(members) < len(group[0]) or has_failed:
            continue
        counts = {rank: len(each) for rank, each in of_ranks.items()}
        ahead, behind = max(members, key=counts.__getitem__), min(members, key=counts.__getitem__)
        missed = of_ranks[ahead][counts[behind] : counts[behind] + 1]
        if missed and _is_left_alone(missed[0]):
            sides = ((ahead, tuple(missed)), (behind, tuple(of_ranks[behind][-1:])))
            yield Found(sides, group[0])
    yield from _unmet(records)


def _is_left_alone(launch: Launch) -> bool:
    """Return whether no code of the rank saw the operation's end, where an error would show."""
    return launch.operation.waited_s is None and not launch.operation.is_handed_on


def _unmet(records: Records) -> Iterator[Found]:
    """Yield transfers that the peer did not match."""
    if any(each.is_truncated for each in records.values()):
        return
    transfers = [
        each
        for record in records.values()
        for each in record.launches
        if each.operation.kind == "transfer" and each.operation.scope == RUNTIME_SCOPE
    ]
    if any(each.operation.failed or each.operation.peer is None for each in transfers):
        return
    by_side = group_by_value((_side(each), each) for each in transfers)
    for (group, ends, tag, is_send), mine in by_side.items():
        theirs = by_side.get((group, ends, tag, not is_send), [])
        peer = mine[0].operation.peer
        is_less = len(theirs) < len(mine) and _is_left_alone(mine[len(theirs)])
        if is_less and peer is not None and peer in records:
            missed, last = (mine[len(theirs)],), tuple(theirs[-1:])
            yield Found(((mine[0].rank, missed), (peer, last)), group[0])


def _side(launch: Launch) -> tuple[GroupKey, tuple[int | None, ...], int, bool]:
    """Return the key shared by transfers of one side: group, sender and receiver, tag, is_send."""
    operation, rank = launch.operation, launch.rank
    is_send = operation.name == "send"
    ends = (rank, operation.peer) if is_send else (operation.peer, rank)
    return operation.group_key, ends, operation.tag, is_send


def _summarize(seen: Occurrences) -> str:
    (ahead, _), (behind, _) = seen.first.sides
    return (
        f"rank {behind} did not enter an operation that rank {ahead} launched in the {seen.group}"
    )


SKIPPED = HazardRule(
    name="skipped",
    find=_find,
    summarize=_summarize,
    when="With NCCL it hangs at the next synchronisation of the device: the operation ends on"
    " no rank before all have entered it.",
    is_default=True,
    judges_plain_runs=False,
)
