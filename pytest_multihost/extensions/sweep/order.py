"""Finds collectives that the ranks of a group have entered in one place, and that cannot match.

The ranks of a group enter its collectives one after the other, so the third of each rank has to
match the third of every other. If kind, root, type or size differ, the operation hangs or corrupts
data on NCCL. gloo mostly ends it with an error, which looks like a failure that reached all ranks.

The collectives come from the histories that ranks keep in their slot pages. Nothing is concluded
from different numbers of collectives, nor from sizes that may differ, as those of an all_gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.model.collectives import BY_NAME, family
from pytest_multihost.core.model.history import CallSite, History
from pytest_multihost.core.model.operation import (
    RUNTIME_SCOPE,
    GroupKey,
    group_by_value,
    group_name,
    nth,
    tensor_size,
)
from pytest_multihost.core.model.rank_names import Names, rank_numbers
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.model.verdict import OperationName
from pytest_multihost.core.slots import read_histories, read_slots, slots_path

_LEAST_SIDES = 2


@dataclass(frozen=True, slots=True)
class ClashSide:
    """Ranks that entered the same collective.

    Attributes:
        words: The collective with its root and tensor: ``broadcast f32[4] with root 1``.
        at_s: When the last of these ranks entered it, on the monotonic clock.
        frame: The user's line; None if it is unknown.
    """

    ranks: tuple[int, ...]
    name: str
    words: str
    at_s: float
    frame: Frame | None = None


@dataclass(frozen=True, slots=True)
class Clash:
    """The first collectives of a group, in one place, that cannot match.

    Attributes:
        ordinal: How many groups of these ranks were made before.
        sequence: The place among the group's collectives; 1 is the first.
        at_s: When the first rank entered it, on the monotonic clock.
        sides: At least two, the smallest first.
    """

    group: tuple[int, ...]
    ordinal: int
    sequence: int
    at_s: float
    sides: tuple[ClashSide, ...]

    @property
    def key(self) -> str:
        """The identity of the group."""
        return f"{rank_numbers(self.group)}/{self.ordinal}"

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that have entered a collective there."""
        return frozenset(rank for side in self.sides for rank in side.ranks)

    def side_of(self, rank: int) -> ClashSide | None:
        """Return the side of a rank; None if it has entered nothing there."""
        return next((each for each in self.sides if rank in each.ranks), None)

    def operation(self, side: ClashSide) -> OperationName:
        """Return the operation that a side has entered."""
        return OperationName(side.name, self.sequence, self.group)

    def text(self, names: Names) -> str:
        """Return the operations of the sides, in one sentence."""
        sides = ", ".join(f"{names.of(each.ranks)} entered {each.words}" for each in self.sides)
        where = group_name(self.group, names, self.ordinal)
        return f"{sides} as {nth(self.sequence)} collective of the {where}"


def find_clashes(
    histories: Iterable[History], failed_s: Mapping[int, Sequence[float]] | None = None
) -> tuple[Clash, ...]:
    """Return the first clash of each group, the earliest first.

    Args:
        histories: The collectives of all ranks in all groups.
        failed_s: When operations of a rank have failed. An operation after a failure may
            follow from it, so it is not a clash.
    """
    groups = group_by_value((each.group, each) for each in histories)
    found = (
        _first_clash(key, {each.rank: each for each in of_group})
        for key, of_group in groups.items()
        if key[2] == RUNTIME_SCOPE and len(of_group) >= _LEAST_SIDES
    )
    clashes = (each for each in found if each is not None and not _follows(each, failed_s or {}))
    return tuple(sorted(clashes, key=lambda each: each.at_s))


def _follows(clash: Clash, failed_s: Mapping[int, Sequence[float]]) -> bool:
    return any(at_s < clash.at_s for rank in clash.ranks for at_s in failed_s.get(rank, ()))


def _first_clash(group: GroupKey, of: Mapping[int, History]) -> Clash | None:
    keys = {rank: _keys(each) for rank, each in of.items()}
    first = max(each.first for each in of.values())
    for place in range(first, max(each.last for each in of.values()) + 1):
        there = {
            rank: keys[rank][place - each.first] for rank, each in of.items() if each.last >= place
        }
        if len(set(there.values())) > 1 and len(_sorts(there)) > 1:
            return _clash(group, of, place, _sorts(there))
    return None


_Key = tuple[str, int | None, str, tuple[str, int] | None]
"""Family and root of a collective, its name, and its tensor if all ranks need the same."""


def _keys(history: History) -> Sequence[_Key]:
    keys = [_key(each) for each in history.sites]
    return [keys[index] for index in history.order]


def _key(site: CallSite) -> _Key:
    known = BY_NAME.get(site.name)
    has_one_size = known is not None and known.has_one_size
    size = tensor_size(site.detail) if has_one_size else None
    return family(site.name), site.root, site.name, size


def _sorts(there: Mapping[int, _Key]) -> Sequence[Sequence[int]]:
    """Return the ranks by their operation, so that only equal things can match.

    Tensors are compared only if those of all ranks are known, and the names are the same.
    """
    are_known = all(each[3] is not None for each in there.values())
    by_tensor = are_known and len({each[2] for each in there.values()}) == 1
    kinds = ((each if by_tensor else each[:2], rank) for rank, each in there.items())
    return list(group_by_value(kinds).values())


def _clash(
    group: GroupKey, of: Mapping[int, History], place: int, sorts: Iterable[Sequence[int]]
) -> Clash:
    sides = sorted((tuple(sorted(each)) for each in sorts), key=lambda each: (len(each), each))
    return Clash(
        group=group[0],
        ordinal=group[1],
        sequence=place,
        at_s=min(of[rank].time_s(place) for each in sides for rank in each),
        sides=tuple(_sides(of, place, sides)),
    )


def _sides(
    of: Mapping[int, History], place: int, sides: Iterable[tuple[int, ...]]
) -> Iterator[ClashSide]:
    for ranks in sides:
        site = of[ranks[0]].site(place)
        if site is not None:
            root = f" with root {site.root}" if site.root is not None else ""
            words = f"{site.name} {site.detail}".rstrip() + root
            at_s = max(of[rank].time_s(place) for rank in ranks)
            yield ClashSide(ranks, site.name, words, at_s, site.frame)


def read_clashes(scratch: Path, size: int) -> tuple[Clash, ...]:
    """Return the clashes of a world whose ranks have ended.

    Args:
        scratch: The world's own directory, with the slot pages of its ranks.
    """
    pages = {rank: slots_path(scratch, rank) for rank in range(size)}
    histories = [each for rank, page in pages.items() for each in read_histories(page, rank=rank)]
    if not find_clashes(histories):  # nearly always
        return ()
    failed_s = {
        rank: [
            each.ended_s
            for each in read_slots(page, rank=rank).recent
            if each.failed and each.ended_s is not None
        ]
        for rank, page in pages.items()
    }
    return find_clashes(histories, failed_s)
