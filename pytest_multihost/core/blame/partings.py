"""Where ranks parted: the first collective of a group that they did not enter alike.

Libraries continue after a parting, so ranks may end up waiting in operations far from it. This
module compares the histories of each group; all members count its collectives alike.

Names and roots that can never match are hard evidence. Different lines are not, because ranks may
enter one collective from two branches: ``if rank == 0: broadcast(...) else: broadcast(...)``.
Different lines count only under three conditions:

* Harder evidence parts the same ranks later.
* Both sides use one of these lines.
* The sides never match again, or one of them then repeats the other's calls.

For a rank that finished, differing lines are reported only if the two sides never matched again and
neither repeated an earlier line (so no loop could have brought them together).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations

from pytest_multihost.core.model.collectives import family
from pytest_multihost.core.model.history import CallSite, Evidence, History, Parting, Side
from pytest_multihost.core.model.operation import (
    FLIGHT_SCOPE,
    HARNESS_SCOPE,
    PROGRAM_PREFIX,
    REQUEST_SCOPE,
    group_by_value,
)
from pytest_multihost.core.model.stack import Frame, innermost_user_frame

_MAX_AHEAD = 64
"""The most operations by which one side may be ahead of the other."""

Parts = frozenset[frozenset[int]]
"""The ranks at one place, grouped by their action there."""


def find_partings(recorded: Iterable[History], flight: Iterable[History]) -> tuple[Parting, ...]:
    """Return the partings of all groups whose ranks parted.

    Args:
        flight: Histories from torch's flight recorders, with stacks and with calls from C++ code.
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
    # Only C++ code has entered collectives of the other groups.
    of_python = {(members, ordinal) for members, ordinal, scope in groups if not scope.kind}
    for (members, ordinal), histories in seen.items():
        if (members, ordinal) not in of_python and any(each.last for each in histories):
            found += _partings(_compared(histories))
    return tuple(found)


def _of_one_source(recorded: Sequence[History], flight: Sequence[History]) -> Sequence[History]:
    """Return a group's histories: the recorded ones if they have all collectives, else `flight`."""
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


@dataclass(frozen=True, slots=True)
class _GroupHistories:
    """The histories of a group.

    Attributes:
        calls: For each rank its calls as numbers, equal on all ranks for equal calls.
        first: The first place that is known for all ranks.
        last: The last place that any rank has entered.
    """

    of: Mapping[int, History]
    calls: Mapping[int, Sequence[int]]
    first: int
    last: int

    @property
    def is_of_requests(self) -> bool:
        """Whether its collectives are requests of all ranks for groups of some of them."""
        return any(each.group[2] == REQUEST_SCOPE for each in self.of.values())

    def call(self, rank: int, place: int) -> int:
        """Return which call a rank made at a place."""
        return self.calls[rank][place - self.of[rank].first]

    def entered(self, place: int) -> dict[int, CallSite]:
        """Return the call site of each rank that entered a place."""
        sites = {rank: each.site(place) for rank, each in self.of.items()}
        return {rank: site for rank, site in sites.items() if site is not None}


def _compared(histories: Sequence[History]) -> _GroupHistories:
    known: dict[tuple[object, ...], int] = {}
    calls = {}
    for each in histories:
        has_stacks = each.group[2] == FLIGHT_SCOPE  # for all ranks; the user's line may be common
        keys = [
            (site.name, site.root, site.detail, site.frames if has_stacks else site.frame)
            for site in each.sites
        ]
        numbers = [known.setdefault(key, len(known)) for key in keys]
        calls[each.rank] = [numbers[index] for index in each.order]
    return _GroupHistories(
        of={each.rank: each for each in histories},
        calls=calls,
        first=max((each.first for each in histories), default=1),
        last=max((each.last for each in histories), default=0),
    )


def _partings(group: _GroupHistories) -> Iterator[Parting]:
    found = _first_evidence(group)
    if found is None or (found[1] <= group.first > 1):  # they parted before the known history
        return
    evidence, place, parts = found
    earlier = None if group.is_of_requests else _earlier_lines(group, place, parts)
    if earlier is not None:
        place, parts = earlier
        evidence = "operations" if evidence == "operations" else "lines"
    yield _parting_at(group, evidence, place, parts)
    if evidence == "counts" and (lines := _new_lines_before(group, place, parts)) is not None:
        yield _parting_at(group, "lines", lines, parts)


def _parting_at(group: _GroupHistories, evidence: Evidence, place: int, parts: Parts) -> Parting:
    places = {each.last for each in group.of.values()} - {0, place}
    return Parting(
        group=next(iter(group.of.values())).group,
        common=place - 1,
        evidence=evidence,
        at_s=min(group.of[rank].time_s(place) for rank in group.entered(place)),
        sides=_sides(group, place, parts),
        lasts=tuple(side for each in sorted(places) for side in _sides_at(group, each)),
    )


def _first_evidence(group: _GroupHistories) -> tuple[Evidence, int, Parts] | None:
    """Return the first place where ranks entered calls that cannot match, or some did not enter."""
    for place in range(group.first, group.last + 1):
        calls = {group.call(r, place) for r, each in group.of.items() if each.last >= place}
        if len(calls) > 1:
            parts = _parts(group.entered(place), _matched_by(group))
            if len(parts) > 1:
                return ("details" if group.is_of_requests else "operations"), place, parts
    ranks = frozenset(group.of)
    shortest = min(each.last for each in group.of.values())
    if shortest < group.last:
        entered = frozenset(group.entered(shortest + 1))
        return "counts", shortest + 1, frozenset({entered, ranks - entered})
    parts = _parts(group.entered(group.last), lambda site: site.detail)
    return ("details", group.last, parts) if len(parts) > 1 else None


def _matched_by(group: _GroupHistories) -> Callable[[CallSite], object]:
    """Return the key that matching collectives share.

    The harness's own also share details, and requests for groups the members of these.
    """
    is_ours = any(each.group[2] == HARNESS_SCOPE for each in group.of.values())
    has_details = is_ours or group.is_of_requests

    def key(site: CallSite) -> object:
        if site.name.startswith(PROGRAM_PREFIX):  # only its collectives must match
            return PROGRAM_PREFIX, site.detail
        return family(site.name), site.root, site.detail if has_details else ""

    return key


def _parts(entered: Mapping[int, CallSite], key: Callable[[CallSite], object]) -> Parts:
    alike = group_by_value((key(site), rank) for rank, site in entered.items())
    return frozenset(map(frozenset, alike.values()))


def _earlier_lines(group: _GroupHistories, end: int, parts: Parts) -> tuple[int, Parts] | None:
    """Return an earlier place where different lines already part the ranks as at `end`."""
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


def _new_lines_before(group: _GroupHistories, end: int, parts: Parts) -> int | None:
    """Return the place from which ranks used different lines up to `end`, each new to its rank.

    In a loop the lines would not be new; there, the report names a rank that lacks an iteration.
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
    """Yield the indices of each pair of calls that differ."""
    return ((i, j) for i, j in permutations(range(len(calls)), 2) if calls[i] != calls[j])


def _is_repeated(
    group: _GroupHistories, place: int, end: int, calls: Sequence[int], ranks: Sequence[int]
) -> bool:
    """Return whether one side made extra calls at `place`, and then the other side's calls."""
    pairs = {(calls[i], calls[j]): (ranks[i], ranks[j]) for i, j in _pairs(calls)}
    for one, other in pairs.values():
        ahead_of = group.calls[one][place - group.of[one].first :][: end - place]
        behind = group.calls[other][place - group.of[other].first :][: end - place]
        for ahead in range(1, min(_MAX_AHEAD, len(ahead_of) - 1) + 1):
            if ahead_of[ahead:] == behind[: len(ahead_of) - ahead]:
                return True
    return False


def _sides(group: _GroupHistories, place: int, parts: Parts) -> tuple[Side, ...]:
    """Return the operations of ranks at a place, the smallest side first."""
    entered = group.entered(place)
    ordered = sorted(map(sorted, parts), key=lambda ranks: (len(ranks), ranks))
    sites = [entered[ranks[0]] for ranks in ordered if ranks[0] in entered]
    throughs = dict(zip(sites, differing_lines([each.frames for each in sites]), strict=True))
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


def differing_lines(stacks: Sequence[Sequence[Frame]]) -> Sequence[Frame | None]:
    """Return each stack's outermost differing line; only None if the user's lines all differ."""
    lines = {innermost_user_frame(each) for each in stacks}
    if 1 < len(stacks) > len(lines):
        for frames in zip(*(each[::-1] for each in stacks), strict=False):
            if len(set(frames)) > 1:
                return frames
    return [None] * len(stacks)


def _sides_at(group: _GroupHistories, place: int) -> Iterator[Side]:
    for ranks in _parts(group.entered(place), _matched_by(group)):
        yield Side(tuple(sorted(ranks)), group.of[min(ranks)].operation(place))
