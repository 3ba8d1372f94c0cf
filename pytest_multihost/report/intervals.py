"""What each rank did over time, as intervals: its phases, its operations, how it was left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pytest_multihost.model.event import Done, Forked, Hello, PhaseEntered
from pytest_multihost.model.operation import Operation, rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.stack import relative_to
from pytest_multihost.model.verdict import Diagnosis
from pytest_multihost.outcome import RankFacts, describe_exit, fold_history

Args = dict[str, object]

# A world has few groups and files, and many operations.
_members = lru_cache(rank_set)
_relative = lru_cache(relative_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Something that lasted, in microseconds from the world's start.

    Attributes:
        name: What it was.
        category: ``phase``, ``operation``, ``open operation``, ``culprit`` or ``awaited``.
        start_us: When it began.
        end_us: When it ended; for an operation that has not, when its rank did.
        args: More about it, for the reader.
        operation: The operation, if it is one.
    """

    name: str
    category: str
    start_us: int
    end_us: int
    args: Mapping[str, object] = field(default_factory=dict)
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class JudgedWorld:
    """A world, what was found out about it, and its clock.

    Attributes:
        result: What was observed.
        diagnosis: Who waits for whom, where that is known.
        root: pytest's rootdir; files below it are named relative to it.
    """

    result: WorldResult
    diagnosis: Diagnosis | None
    root: str

    def us(self, at_s: float) -> int:
        """Convert a time of the monotonic clock to microseconds from the world's start."""
        return max(0, round((at_s - self.result.started_s) * 1e6))

    @property
    def end_us(self) -> int:
        """When nothing was left of the world."""
        return self.us(self.result.ended_s)

    @property
    def judged_us(self) -> int:
        """When the hang was judged, or the world over by itself."""
        return self.us(self.result.detected_s or self.result.ended_s)


def intervals_of(world: JudgedWorld) -> dict[int, list[Interval]]:
    """Return the intervals of each rank."""
    facts = fold_history(world.result.history, world.result.spec.size)
    return {each.rank: _of_rank(each, world) for each in facts}


def _of_rank(facts: RankFacts, world: JudgedWorld) -> list[Interval]:
    operations = [
        _operation_interval(each, facts, world) for each in operations_of(facts.rank, world.result)
    ]
    found = [*_phases(facts, world), *operations]
    return [*found, *_how_left(facts, found, world)]


def _gone_us(facts: RankFacts, world: JudgedWorld) -> int:
    """Return when a rank could do no more."""
    return world.end_us if facts.exited_s is None else world.us(facts.exited_s)


def _phases(facts: RankFacts, world: JudgedWorld) -> Iterator[Interval]:
    begun = sorted(_phase_starts(facts.rank, world))
    ends = [*(start_us for start_us, _ in begun[1:]), _gone_us(facts, world)]
    for (start_us, name), end_us in zip(begun, ends, strict=False):
        # The news of a death can overtake the rank's last events.
        yield Interval(name=name, category="phase", start_us=start_us, end_us=max(start_us, end_us))


def _phase_starts(rank: int, world: JudgedWorld) -> Iterator[tuple[int, str]]:
    events = [event for event in world.result.history if event.rank == rank]
    first = [world.us(event.at_s) for event in events if isinstance(event.body, Forked | Hello)]
    if first:
        yield min(first), "startup"
    for event in events:
        match event.body:
            case PhaseEntered(phase) if phase != "shutdown":
                yield world.us(event.at_s), phase
            case Done():  # the rank leaves when it may, which is later than its own "shutdown"
                yield world.us(event.at_s), "shutdown"


def operations_of(rank: int, result: WorldResult) -> list[Operation]:
    """Return what is known of a rank's operations: its records, and what was seen besides."""
    recorded = [each for page in result.operations if page.rank == rank for each in page.recent]
    seen = result.last_seen[rank].operations if rank in result.last_seen else ()
    return recorded + [each for each in seen if not any(_is_same(each, old) for old in recorded)]


def _is_same(one: Operation, other: Operation) -> bool:
    """Whether two observations are of one operation; it may have ended between them."""
    return (one.name, one.since_s, one.group_key) == (other.name, other.since_s, other.group_key)


def _operation_interval(operation: Operation, facts: RankFacts, world: JudgedWorld) -> Interval:
    start_us = world.us(operation.since_s)
    is_open = operation.ended_s is None
    end_us = _gone_us(facts, world) if operation.ended_s is None else world.us(operation.ended_s)
    return Interval(
        name=operation.describe(world.result.spec.size),
        category="open operation" if is_open else "operation",
        start_us=start_us,
        end_us=max(start_us, end_us),
        args=_operation_args(operation, world) | (_last_seen(facts.rank, world) if is_open else {}),
        operation=operation,
    )


def _operation_args(operation: Operation, world: JudgedWorld) -> Args:
    frame = operation.frame
    place = f"{_relative(world.root, frame.file)}:{frame.line}" if frame else None
    args = {
        "kind": operation.kind,
        "group": _members(operation.group),
        "sequence": operation.sequence or None,
        "peer": operation.peer,
        "root": operation.root,
        "detail": operation.detail or None,
        "scope": operation.scope or None,
        "place": place,
        "function": frame.function if frame else None,
        "waits": operation.waited_s is not None,
        "ended": "never" if operation.is_open else "by an exception" if operation.failed else None,
        "source": operation.source,
    }
    return {name: value for name, value in args.items() if value is not None}


def _last_seen(rank: int, world: JudgedWorld) -> Args:
    """Return what a rank's main thread was seen to do last."""
    seen = world.result.last_seen.get(rank)
    if seen is None or not seen.label:
        return {}
    return {"seen": f"{seen.label} {seen.activity or ''}".rstrip()}


def _how_left(
    facts: RankFacts, found: Sequence[Interval], world: JudgedWorld
) -> Iterator[Interval]:
    """Yield how a rank was left: it is gone, or others wait for it and it is in no operation."""
    gone_us, diagnosis = _gone_us(facts, world), world.diagnosis
    if facts.exit is not None and gone_us < world.end_us and not facts.was_ended:
        yield _culprit(describe_exit(facts.exit), gone_us, world.end_us)
    elif diagnosis is not None and facts.rank in diagnosis.culprits:
        if any(each.category == "open operation" for each in found):
            return
        raised_s = facts.failed_s
        trouble = [world.us(at_s) for at_s in (raised_s, facts.parked_s) if at_s]
        begun = [each.start_us for each in found]
        ended = [each.end_us for each in found if each.operation is not None]
        since_us = min(gone_us, max([*begun, *ended, *trouble], default=0))
        args = _last_seen(facts.rank, world)
        yield _culprit(_accusation(facts.rank, diagnosis), since_us, gone_us, args)


def _culprit(name: str, start_us: int, end_us: int, args: Args | None = None) -> Interval:
    return Interval(
        name=name,
        category="culprit",
        start_us=start_us,
        end_us=max(start_us, end_us),
        args=args or {},
    )


def _accusation(rank: int, diagnosis: Diagnosis) -> str:
    where = diagnosis.where
    if where is None or where.rank != rank:
        return diagnosis.kind
    return f"{diagnosis.kind}: {where.file}:{where.line} {where.source}".rstrip()
