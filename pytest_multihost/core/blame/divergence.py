"""Where ranks parted: the first collective of a group that they did not enter alike.

Libraries go on after that, so what ranks wait in at the end may be far from it. The histories of
each group are compared: all members count its collectives alike.

Names and roots that can never match are hard evidence. Different lines are not: ranks may come to
one collective from two branches, ``if rank == 0: broadcast(...) else: broadcast(...)``. They count
only if harder evidence parts the same ranks later, if one of these lines is used by both sides, and
if the sides do not agree again or one repeats from there on what the other has done. Of a rank that
finished they are told, too, if the sides did not agree again and each did only what was new to it:
in no loop of theirs had these lines met.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations

from pytest_multihost.core.blame.causes import Cause
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.collectives import family
from pytest_multihost.core.model.operation import (
    FLIGHT_SCOPE,
    CallSite,
    Evidence,
    History,
    Operation,
    Parting,
    Side,
    group_by_value,
    group_name,
    nth,
    rank_set,
)
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import (
    Frame,
    SourceContext,
    innermost_user_frame,
    inside_the_test,
    is_ours,
)
from pytest_multihost.core.model.verdict import Divergence, DivergenceSide, OperationName

_MAX_AHEAD = 64
"""How many operations more one side may have entered than the other."""

Parts = frozenset[frozenset[int]]
"""Ranks that did the same at one place, for each thing that was done."""


def find_partings(recorded: Iterable[History], flight: Iterable[History]) -> tuple[Parting, ...]:
    """Return for each group where its ranks parted, if they did.

    Args:
        recorded: From the slot pages.
        flight: From torch's flight recorders. They have stacks, and what only C++ code has called.
    """
    groups = group_by_value((each.group, each) for each in recorded)
    ranks = {each.rank for histories in groups.values() for each in histories}
    seen = group_by_value((each.group[:2], each) for each in flight)
    found: list[Parting] = []
    for (members, ordinal, scope), histories in groups.items():
        counted = () if scope.kind else seen.get((members, ordinal), ())
        unused = ranks.intersection(members).difference(each.rank for each in histories)
        empty = [History(rank, (members, ordinal, scope)) for rank in sorted(unused)]
        found += _partings(_compared(_of_one_source([*histories, *empty], counted)))
    return tuple(found)


def _of_one_source(recorded: Sequence[History], flight: Sequence[History]) -> Sequence[History]:
    """Return a group's histories as counted by the slot pages, if these have all collectives."""
    by_rank = {each.rank: each for each in flight}
    pairs = [(each, by_rank.get(each.rank)) for each in recorded]
    if any(seen is not None and seen.last > each.last for each, seen in pairs):
        return flight
    return [each if seen is None else _with_stacks(each, seen) for each, seen in pairs]


def _with_stacks(recorded: History, flight: History) -> History:
    if flight.last != recorded.last:
        return recorded
    places = range(recorded.first, recorded.last + 1)
    sites = {}
    for place, index in zip(places, recorded.order, strict=True):
        seen = flight.site(place)
        frames = seen.frames if seen is not None else ()
        sites[place] = index, frames
    known = {each: number for number, each in enumerate(dict.fromkeys(sites.values()))}
    return replace(
        recorded,
        sites=tuple(
            replace(recorded.sites[index], frames=frames or recorded.sites[index].frames)
            for index, frames in known
        ),
        order=tuple(known[each] for each in sites.values()),
    )


# One group


@dataclass(frozen=True, slots=True)
class _Group:
    """The histories of a group.

    Attributes:
        of: The history of each rank.
        calls: For each rank its calls as numbers, equal on all ranks for equal calls.
        first: The first place that is known of all ranks.
        last: The last place that any rank has entered.
    """

    of: Mapping[int, History]
    calls: Mapping[int, Sequence[int]]
    first: int
    last: int

    def call(self, rank: int, place: int) -> int:
        """Return which call a rank made at a place."""
        return self.calls[rank][place - self.of[rank].first]

    def entered(self, place: int) -> dict[int, CallSite]:
        """Return from where each rank has entered a place, of those that have."""
        sites = {rank: each.site(place) for rank, each in self.of.items()}
        return {rank: site for rank, site in sites.items() if site is not None}


def _compared(histories: Sequence[History]) -> _Group:
    known: dict[tuple[object, ...], int] = {}
    calls = {}
    for each in histories:
        has_stacks = each.group[2] == FLIGHT_SCOPE  # of all ranks; the user's line may be one
        keys = [
            (site.name, site.root, site.detail, site.frames if has_stacks else site.frame)
            for site in each.sites
        ]
        numbers = [known.setdefault(key, len(known)) for key in keys]
        calls[each.rank] = [numbers[index] for index in each.order]
    return _Group(
        of={each.rank: each for each in histories},
        calls=calls,
        first=max((each.first for each in histories), default=1),
        last=max((each.last for each in histories), default=0),
    )


def _partings(group: _Group) -> Iterator[Parting]:
    found = _first_evidence(group)
    if found is None or (found[1] <= group.first > 1):  # they parted before what is known
        return
    evidence, place, parts = found
    earlier = _earlier_lines(group, place, parts)
    if earlier is not None:
        place, parts = earlier
        evidence = "operations" if evidence == "operations" else "lines"
    yield _parting_at(group, evidence, place, parts)
    if evidence == "counts" and (lines := _new_lines_before(group, place, parts)) is not None:
        yield _parting_at(group, "lines", lines, parts)


def _parting_at(group: _Group, evidence: Evidence, place: int, parts: Parts) -> Parting:
    places = {each.last for each in group.of.values()} - {0, place}
    return Parting(
        group=next(iter(group.of.values())).group,
        common=place - 1,
        evidence=evidence,
        at_s=min(group.of[rank].time_s(place) for rank in group.entered(place)),
        sides=_sides(group, place, parts),
        lasts=tuple(side for each in sorted(places) for side in _sides_at(group, each)),
    )


def _first_evidence(group: _Group) -> tuple[Evidence, int, Parts] | None:
    """Return the first place at which ranks entered what cannot match, or some did not enter."""
    for place in range(group.first, group.last + 1):
        calls = {group.call(r, place) for r, each in group.of.items() if each.last >= place}
        if len(calls) > 1:
            parts = _parts(group.entered(place), _matched_by(group))
            if len(parts) > 1:
                return "operations", place, parts
    ranks = frozenset(group.of)
    shortest = min(each.last for each in group.of.values())
    if shortest < group.last:
        entered = frozenset(group.entered(shortest + 1))
        return "counts", shortest + 1, frozenset({entered, ranks - entered})
    parts = _parts(group.entered(group.last), lambda site: site.detail)
    return ("details", group.last, parts) if len(parts) > 1 else None


def _matched_by(group: _Group) -> Callable[[CallSite], object]:
    """Return what is equal for collectives that match; of the harness's own also their details."""
    is_ours = any(each.group[2].kind == "harness" for each in group.of.values())
    return lambda site: (family(site.name), site.root, site.detail if is_ours else "")


def _parts(entered: Mapping[int, CallSite], key: Callable[[CallSite], object]) -> Parts:
    alike = group_by_value((key(site), rank) for rank, site in entered.items())
    return frozenset(map(frozenset, alike.values()))


def _earlier_lines(group: _Group, end: int, parts: Parts) -> tuple[int, Parts] | None:
    """Return where different lines already show what parts the ranks at `end`."""
    ranks = sorted(frozenset[int]().union(*parts))
    used = {rank: set(group.calls[rank]) for rank in ranks}
    differing = [
        (place, calls)
        for place in range(group.first, end)
        if len(set(calls := tuple(group.call(rank, place) for rank in ranks))) > 1
    ]
    open_end = end  # from here on they never agreed
    for place, _ in reversed(differing):
        open_end = place if place == open_end - 1 else open_end
    innocent: set[tuple[int, ...]] = set()
    for place, calls in differing:
        alike = group_by_value(zip(calls, ranks, strict=True))
        here = frozenset(map(frozenset, alike.values()))
        is_shared = any(calls[i] in used[ranks[j]] for i, j in _pairs(calls))
        parts_alike = all(any(part <= each for each in here) for part in parts)
        may_be = is_shared and parts_alike and calls not in innocent
        if may_be and (place >= open_end or _is_repeated(group, place, end, calls, ranks)):
            return place, here
        innocent.add(calls)
    return None


def _new_lines_before(group: _Group, end: int, parts: Parts) -> int | None:
    """Return from where on the ranks came from lines of their own, all new to them, up to `end`.

    In a loop they would not be new. There a rank that lacks its last turn is what is told.
    """
    ranks = sorted(group.of)

    def differ(place: int) -> bool:
        return len({group.call(rank, place) for rank in ranks}) > 1

    start = end
    while start > group.first and differ(start - 1):
        start -= 1
    if start == end:
        return None
    alike = group_by_value((group.call(rank, start), rank) for rank in ranks)
    are_known = all(site.frame is not None for site in group.entered(start).values())
    are_new = all(
        len({*since}) == len(since) and not {*calls[:at]}.intersection(since)
        for rank, calls in group.calls.items()
        for at in (start - group.of[rank].first,)
        for since in (calls[at : at + end - start + 1],)
    )
    return (
        start
        if are_known and are_new and frozenset(map(frozenset, alike.values())) == parts
        else None
    )


def _pairs(calls: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the indices of each two calls that differ."""
    return ((i, j) for i, j in permutations(range(len(calls)), 2) if calls[i] != calls[j])


def _is_repeated(
    group: _Group, place: int, end: int, calls: Sequence[int], ranks: Sequence[int]
) -> bool:
    """Return whether one side entered more at `place`, and then what the other entered there."""
    pairs = {(calls[i], calls[j]): (ranks[i], ranks[j]) for i, j in _pairs(calls)}
    for one, other in pairs.values():
        ahead_of = group.calls[one][place - group.of[one].first :][: end - place]
        behind = group.calls[other][place - group.of[other].first :][: end - place]
        for ahead in range(1, min(_MAX_AHEAD, len(ahead_of) - 1) + 1):
            if ahead_of[ahead:] == behind[: len(ahead_of) - ahead]:
                return True
    return False


def _sides(group: _Group, place: int, parts: Parts) -> tuple[Side, ...]:
    """Return what ranks did at a place, the smallest side first."""
    entered = group.entered(place)
    ordered = sorted(map(sorted, parts), key=lambda ranks: (len(ranks), ranks))
    sites = [entered[ranks[0]] for ranks in ordered if ranks[0] in entered]
    throughs = dict(zip(sites, _differing_lines([each.frames for each in sites]), strict=True))
    sides = []
    for ranks in ordered:
        history, operation = group.of[ranks[0]], group.of[ranks[0]].operation(place)
        site = entered.get(ranks[0], sites[0])
        through = throughs[site]
        alike = partial(_is_alike, name=site.name, line=through or site.frame)
        where = (site.frame, through) if operation is not None else (None, None)
        sides.append(Side(tuple(ranks), operation, *where, history.count(place, alike)))
    return tuple(sides)


def _is_alike(site: CallSite, *, name: str, line: Frame | None) -> bool:
    return site.name == name and (line is None or line in site.frames)


def _differing_lines(stacks: Sequence[Sequence[Frame]]) -> Sequence[Frame | None]:
    """Return of each stack the outermost line that differs, if the users' lines do not differ."""
    lines = {innermost_user_frame(each) for each in stacks}
    if 1 < len(stacks) > len(lines):
        for frames in zip(*(each[::-1] for each in stacks), strict=False):
            if len(set(frames)) > 1:
                return frames
    return [None] * len(stacks)


def _sides_at(group: _Group, place: int) -> Iterator[Side]:
    for ranks in _parts(group.entered(place), _matched_by(group)):
        yield Side(tuple(sorted(ranks)), group.of[min(ranks)].operation(place))


# Of the world


def first_divergence(partings: Sequence[Parting], cause: Cause, states: States) -> Parting | None:
    """Return the first parting that explains more than the cause does.

    Args:
        partings: Of all groups.
        cause: Why the world hung, as the ranks stood at the end.
        states: How they stood.
    """
    explaining = [each for each in partings if _explains(each, cause, states)]
    counted = {each.group for each in partings if each.evidence == "counts"}
    # Of a group whose ranks parted by their counts, lines tell less.
    less = [each for each in explaining if each.evidence == "lines" and each.group in counted]
    for evidence in ("operations", "lines", "counts", "details"):
        found = [each for each in explaining if each.evidence == evidence and each not in less]
        if found:
            return min(found, key=lambda each: each.at_s)
    of_culprits = [each for each in less if cause.culprits in {side.ranks for side in each.sides}]
    if cause.kind != "finished":
        return None
    return min(of_culprits, key=lambda each: each.at_s, default=None)


def _explains(parting: Parting, cause: Cause, states: States) -> bool:
    """Return whether a parting is more than ranks that are late for, or lost to, an operation.

    What ranks do after an operation has failed in one of them may follow from that.
    """
    ended = [each for state in states.values() for each in state.known if each.failed]
    if any((each.ended_s or 0.0) < parting.at_s for each in ended):
        return False
    if parting.evidence == "operations":
        return True
    if parting.evidence == "details":
        return cause.kind == "transport" and cause.cut is None
    if cause.kind not in ("finished", "deadlock"):
        return False
    absent = [rank for side in parting.sides if side.operation is None for rank in side.ranks]
    entered = [side for side in parting.sides if side.operation is not None]
    there = {rank for side in entered for rank in side.ranks}
    is_awaited = parting.evidence == "lines" or any(
        side.operation is not None and side.operation.place == each.place
        for side in entered
        for rank in side.ranks
        for each in states[rank].pending
    )
    are_elsewhere = all(
        states[rank].condition == "finished" or _waits_for_all(states[rank], there)
        for rank in absent
    )
    is_loop = any(side.count for side in parting.sides if side.operation is None)
    return is_awaited and are_elsewhere and (is_loop or cause.kind == "deadlock" or not absent)


def _waits_for_all(state: RankState, others: Collection[int]) -> bool:
    """Return whether a rank waits in an operation of a group of all these ranks."""
    return any(each.has_members and {*each.group}.issuperset(others) for each in state.pending)


def followed(cause: Cause, parting: Parting | None) -> Cause:
    """Return a mismatch with the culprits that follow from where the ranks parted.

    If all have entered one operation, but others before that can never match, it is a mismatch.
    """
    if parting is None or parting.evidence != "operations" or cause.cut is not None:
        return cause
    is_late_mismatch = cause.kind == "transport" and not cause.culprits
    if not (cause.kind == "mismatch" or is_late_mismatch):
        return cause
    culprits = parting.minority
    waiting = {*cause.waiting, *cause.culprits} - {*culprits}
    return replace(cause, kind="mismatch", culprits=culprits, waiting=tuple(sorted(waiting)))


def described(
    parting: Parting, states: States, result: WorldResult, context: SourceContext
) -> Divergence:
    """Return a parting as it is shown to people and written to verdict.json."""
    size, group = result.spec.size, parting.group
    told = [
        _described(side, entered, through, parting, context, result.spec)
        for side, entered, through in _with_stacks_of_waits(parting, states, result)
    ]
    common = f"after {parting.common} operation{'s' * (parting.common != 1)} in common"
    lead = f"{common} ({group_name(group[0], size, group[1])})"
    sides = ", where ".join(f"{rank_set(each.ranks)} {each.text}" for each in told)
    return Divergence(
        common=parting.common,
        group=group[0],
        evidence=parting.evidence,
        minority=parting.minority,
        sides=tuple(told),
        lead=lead,
        summary=f"{lead}, {sides}",
    )


def _with_stacks_of_waits(
    parting: Parting, states: States, result: WorldResult
) -> Iterator[tuple[Side, Operation | None, Frame | None]]:
    """Yield each side, what it entered or waits in elsewhere, and the line that differs.

    If all sides are still in what they entered, at one line of the user's, their stacks show it.
    """
    pending = [states[each.ranks[0]].pending if each.ranks else () for each in parting.sides]
    entered = [
        each.operation or next(iter(waits), None)
        for each, waits in zip(parting.sides, pending, strict=True)
    ]
    throughs: Sequence[Frame | None] = [each.through for each in parting.sides]
    dumps = {each.rank: each.main.frames for each in result.dumps if each.main is not None}
    are_there = all(
        operation is not None and operation.place in {each.place for each in waits}
        for operation, waits in zip(entered, pending, strict=True)
    )
    if are_there and not any(throughs) and all(e.ranks[0] in dumps for e in parting.sides):
        stacks = [inside_the_test(dumps[each.ranks[0]]) for each in parting.sides]
        throughs = _differing_lines([[e for e in each if not is_ours(e.file)] for each in stacks])
    yield from zip(parting.sides, entered, throughs, strict=True)


def _described(
    side: Side,
    entered: Operation | None,
    through: Frame | None,
    parting: Parting,
    context: SourceContext,
    spec: WorldSpec,
) -> DivergenceSide:
    frame = side.frame or (entered.frame if entered is not None else None)
    place = context.place(frame) if frame is not None else None
    line = context.place(through) if through is not None else None
    name = None
    if entered is not None:
        name = OperationName(entered.name, entered.sequence, entered.group)
    at = f" from {place.function}(), {place.file}:{place.line}" if place is not None else ""
    if line is not None:
        at += f", through {line.function}(), {line.file}:{line.line}"
    return DivergenceSide(
        ranks=side.ranks,
        operation=name,
        file=place.file if place is not None else None,
        line=place.line if place is not None else None,
        function=place.function if place is not None else None,
        source=place.source if place is not None else None,
        through=line,
        count=side.count,
        text=_did(side, entered, parting, spec, at),
    )


def _did(side: Side, entered: Operation | None, parting: Parting, spec: WorldSpec, at: str) -> str:
    """Return what ranks did there, with the words for the line."""
    others = [each.operation for each in parting.sides if each.operation is not None]
    if side.operation is not None:
        alike = [each for each in others if each.name == side.operation.name]
        root, detail = side.operation.root, side.operation.detail
        more = f" (root {root})" if len({each.root for each in alike}) > 1 else ""
        more += f" {detail}" if len({each.detail for each in alike}) > 1 else ""
        time = f", for the {nth(side.count)} time" if side.count and side.count > 1 else ""
        return f"entered {side.operation.name}{more}{at}{time}"
    returned = f"returned from the {spec.subject}"
    did = f"went on to {entered.describe(spec.size)}{at}" if entered else returned
    times = f"{side.count} time{'s' * (side.count != 1)}"
    return f"{did}, having entered {others[0].name} {times}" if side.count and others else did
