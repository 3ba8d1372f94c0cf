"""Joins the lines of NCCL's watchdog to the collectives of each process group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.collectives import of_flight_name
from pytest_multihost.core.model.operation import (
    RUNTIME_SCOPE,
    GroupKey,
    Operation,
    Payload,
    Scope,
    group_by_value,
)
from pytest_multihost.extensions.logs.readers.mismatches import MESSAGE
from pytest_multihost.extensions.logs.readers.nccl_watchdog import DEFAULT
from pytest_multihost.extensions.logs.said import Counted, Waited

_UNKNOWN = "unknown"
_COALESCED = "coalesced"


@dataclass(frozen=True, slots=True)
class LogGroup:
    """The facts in the lines about one group.

    Attributes:
        key: See `Waited.group`.
        waits: The first collective that each rank waits in.
        counts: How far ranks have come that say so.
    """

    key: str
    waits: dict[int, Waited]
    counts: dict[int, Counted]

    @property
    def size(self) -> int | None:
        """How many members it has, as the sizes of tensors show; None if they do not."""
        found = {size for each in self.waits.values() if (size := _ratio(each)) is not None}
        return found.pop() if len(found) == 1 else None

    @property
    def idle(self) -> Mapping[int, int]:
        """The ranks that have nothing open here, with the number of their last collective."""
        return {
            rank: each.enqueued
            for rank, each in self.counts.items()
            if rank not in self.waits
            and each.enqueued is not None
            and each.enqueued == each.completed
        }

    @property
    def asked(self) -> frozenset[int]:
        """The ranks that only got the signal to dump, and do not say how far they have come."""
        return frozenset(
            rank
            for rank, each in self.counts.items()
            if rank not in self.waits and each.is_asked and each.enqueued is None
        )


def _ratio(waited: Waited) -> int | None:
    """Return the size of a group by the sizes that a member passes and gets, if they show it."""
    if not waited.sent or not waited.received or waited.sent == waited.received:
        return None
    found = of_flight_name(waited.name)
    is_wide = waited.name.lower() == _COALESCED or (
        found is not None and found.family in ("all_gather", "reduce_scatter")
    )
    more, less = max(waited.sent, waited.received), min(waited.sent, waited.received)
    return more // less if is_wide and more % less == 0 else None


def numbered(waits: Iterable[Waited]) -> tuple[list[Waited], list[Waited], list[Waited]]:
    """Return waits whose rank is known, those whose rank is taken as known, and the others.

    A line without a rank in its prefix names that of a group. Lines of torch 2.1 have neither a
    prefix nor the group: their ranks are taken as those of the world, unless one of them would wait
    in several collectives, or other lines have prefixes.
    """
    known = [each for each in waits if each.rank is not None]
    others = [each for each in waits if each.rank is None and each.inner is not None]
    at: dict[int | None, set[tuple[int, str]]] = {}
    for each in others:
        at.setdefault(each.inner, set()).add((each.sequence, each.name))
    is_one_each = all(len(each) == 1 for each in at.values())
    if known or not is_one_each or any(each.group is not None for each in others):
        return known, [], others
    return known, [replace(each, rank=each.inner) for each in others], []


def groups_of(waits: Iterable[Waited], counts: Iterable[Counted]) -> tuple[LogGroup, ...]:
    """Return the groups in which ranks wait or have counted.

    Lines of torch before 2.5 do not name the group. A rank's count names it: the rank waits in the
    collective that is the next one there. If that leaves one group, all such lines are of that one.
    """
    counted: dict[int, dict[str, Counted]] = {}
    for count in counts:
        theirs = counted.setdefault(count.rank, {})
        theirs[count.group] = _better(theirs.get(count.group), count)
    named: dict[int, dict[str, Waited]] = {}
    unnamed: dict[int, Waited] = {}
    for rank, wait in ((each.rank, each) for each in waits):
        if rank is None:
            continue
        at = (g for g, c in counted.get(rank, {}).items() if _is_at(c, wait))
        group = wait.group if wait.group is not None else next(at, None)
        if group is None:
            unnamed[rank] = _earlier(unnamed.get(rank), wait)
        else:
            own = named.setdefault(rank, {})
            own[group] = _earlier(own.get(group), wait)
    place = _place_of_unnamed(named, unnamed)
    for rank, wait in unnamed.items():
        own = named.setdefault(rank, {})
        if all(each.sequence != wait.sequence for each in own.values()):
            own.setdefault(place, wait)
    return _by_group(named, counted)


def _by_group(
    named: Mapping[int, Mapping[str, Waited]], counted: Mapping[int, Mapping[str, Counted]]
) -> tuple[LogGroup, ...]:
    found: dict[str, LogGroup] = {}
    for rank, waits in named.items():
        for key, wait in waits.items():
            found.setdefault(key, LogGroup(key, {}, {})).waits[rank] = wait
    for rank, counts in counted.items():
        for key, count in counts.items():
            found.setdefault(key, LogGroup(key, {}, {})).counts[rank] = count
    return tuple(found.values())


def _better(known: Counted | None, new: Counted) -> Counted:
    """Return the count that says more: with numbers, and of a rank's own timeout."""
    if known is None or (known.enqueued is None and new.enqueued is not None):
        return new
    return new if known.is_asked and not new.is_asked else known


def _earlier(known: Waited | None, new: Waited) -> Waited:
    return new if known is None or new.sequence < known.sequence else known


def _place_of_unnamed(
    named: Mapping[int, Mapping[str, Waited]], unnamed: Mapping[int, Waited]
) -> str:
    """Return the group of lines that name none: the only group named by others, or the default."""
    keys = {key for own in named.values() for key in own if not key.startswith(MESSAGE)}
    if len(keys) == 1:
        return keys.pop()
    is_rank_of_world = all(each.inner in (None, each.rank) for each in unnamed.values())
    return DEFAULT if not keys and is_rank_of_world else _UNKNOWN


def _is_at(counted: Counted, waited: Waited) -> bool:
    number = counted.working
    if number is None and counted.completed is not None and not counted.is_asked:
        number = counted.completed + 1
    return number == waited.sequence


@dataclass(frozen=True, slots=True)
class Placed:
    """The collectives of one group, as operations of ranks.

    Attributes:
        operations: The collective that each rank waits in.
        entered: By rank, the number of the last collective that it has entered.
        silent: Members of which no line says how far they have come.
        asked: Those of them that only got the signal to dump.
        held: Ranks whose collective has ended on other ranks: their devices hold it.
        parted: The operation of each side, at different numbers, if the ranks have parted earlier.
        all_joined: Whether every member waits in the same collective.
    """

    key: GroupKey
    operations: Mapping[int, Operation] = field(default_factory=dict)
    entered: Mapping[int, int] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    parted: tuple[tuple[Operation, tuple[int, ...]], ...] = ()
    all_joined: bool = False


def placed(group: LogGroup, size: int, ordinal: int) -> Placed:
    """Return the collectives of a group.

    Args:
        size: How many ranks the job is known to have.
        ordinal: Its number among groups with the same members.
    """
    waits = group.waits
    is_default, is_message = group.key == DEFAULT, group.key.startswith(MESSAGE)
    is_unnamed = is_message or group.key == _UNKNOWN
    sides = group_by_value(((each.sequence, _name(each)), rank) for rank, each in waits.items())
    numbers = {sequence for sequence, _ in sides}
    names = {name for _, name in sides}
    payloads = _payloads(waits)
    differ = len(names) > 1 or len({*payloads.values()} - {()}) > 1
    late = {rank: last for rank, last in group.idle.items() if numbers and last < min(numbers)}
    asked = frozenset(() if differ else group.asked)
    everyone = tuple(range(size)) if is_default else tuple(sorted({*waits, *late, *asked}))
    all_joined = not differ and len(numbers) == 1 and len(waits) == (group.size or -1)
    if all_joined or (differ and not is_default):
        everyone = tuple(sorted(waits))
    is_known = is_default or bool(late or asked) or differ or all_joined
    base = Operation(
        name="",
        kind="collective",
        group=everyone,
        sequence=0,
        since_s=0.0,
        waited_s=0.0,
        ordinal=0 if is_default else ordinal,
        group_title="" if is_default or is_unnamed else f"{group.key} of ranks",
        group_size=None if is_known else group.size or 0,
        scope=Scope("unnumbered", group.key) if is_unnamed else RUNTIME_SCOPE,
    )
    operations = {
        rank: replace(
            base,
            name=_name(each),
            sequence=each.sequence,
            payload=payloads.get(rank, ()),
            detail=_detail(each, payloads, is_message=is_message) if is_unnamed else "",
            source=each.at,
        )
        for rank, each in waits.items()
    }
    entered = {rank: each.sequence for rank, each in waits.items()}
    entered |= group.idle
    # Ranks that do not match explain the wait better than one without a line.
    silent = frozenset(() if differ else everyone) - waits.keys() - group.idle.keys()
    found = Placed(base.group_key, operations, entered, silent, asked, all_joined=all_joined)
    if len(numbers) == 1 or is_message:
        return found
    return _at_different_numbers(found, group, names)


def _at_different_numbers(found: Placed, group: LogGroup, names: set[str]) -> Placed:
    """Return the finding on ranks that wait at different numbers of one group.

    A rank that has launched all that the others wait in is late on its device alone. If ranks wait
    in different collectives, they have parted before the first of them.
    """
    low = min(each.sequence for each in group.waits.values())
    high = max(each.sequence for each in group.waits.values())
    behind = frozenset(rank for rank, each in group.waits.items() if each.sequence == low)
    launched = {rank: group.counts[rank].enqueued for rank in behind if rank in group.counts}
    are_launched = launched.keys() == behind and all((n or 0) >= high for n in launched.values())
    if len(names) > 1 and not are_launched:
        words = group_by_value((each, rank) for rank, each in found.operations.items())
        alike = group_by_value(
            ((each.name, each.sequence), (each, ranks)) for each, ranks in words.items()
        )
        parted = tuple(
            (one[0][0], tuple(sorted(rank for _, ranks in one for rank in ranks)))
            for one in alike.values()
        )
        return replace(found, parted=parted)
    kept = {rank: each for rank, each in found.operations.items() if rank not in behind}
    return replace(
        found,
        operations=kept,
        entered={r: n if r not in behind else low for r, n in found.entered.items()},
        held=behind,
    )


def _name(waited: Waited) -> str:
    found = of_flight_name(waited.name)
    return found.name if found is not None else waited.name.lower().lstrip("_")


def _detail(waited: Waited, payloads: Mapping[int, Payload], *, is_message: bool) -> str:
    if payloads:  # which names the shapes
        return f"#{waited.sequence - is_message}"
    return f"#{waited.sequence - is_message} {waited.shape}".strip()


def _payloads(waits: Mapping[int, Waited]) -> Mapping[int, Payload]:
    """Return the elements that ranks pass to a collective, where they must agree.

    Ranks may pass any sizes to all_to_all and gather, and to a batch of transfers.
    """
    found: dict[int, Payload] = {}
    is_wide = all(_ratio(each) is not None for each in waits.values())
    for rank, each in waits.items():
        known = of_flight_name(each.name)
        must_agree = known is not None and known.has_one_size
        must_agree = must_agree or (each.name.lower() == _COALESCED and is_wide)
        if each.sent and must_agree:
            found[rank] = (("NumelIn", each.sent),)
    shapes: Sequence[str] = [each.shape for each in waits.values() if each.shape]
    is_of_message = len(shapes) == len(waits) and len({*map(_name, waits.values())}) == 1
    if is_of_message and len({*shapes}) > 1:
        return {rank: ((f"a tensor {each.shape}", 0),) for rank, each in waits.items()}
    return found
