"""What lasted of a world's ranks: their phases, their operations, and how they were left."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_multihost.model.diagnosis import Diagnosis
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.user_code import relative_to
from pytest_multihost.outcome import RankFacts, describe_exit, fold_history

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something of a rank that lasted, in microseconds from the world's start."""

    name: str
    category: str
    start_us: int
    end_us: int
    args: Mapping[str, Any] = field(default_factory=dict)
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What all parts of a trace are made from."""

    result: WorldResult
    diagnosis: Diagnosis | None
    root: str

    def us(self, at_s: float) -> int:
        """Return a moment of the monotonic clock as the trace has it."""
        return max(0, round((at_s - self.result.started_s) * 1e6))

    @property
    def end_us(self) -> int:
        """When nothing was left of the world."""
        return self.us(self.result.ended_s)

    @property
    def judged_us(self) -> int:
        """When the hang was judged, or the world over by itself."""
        return self.us(self.result.detected_s or self.result.ended_s)


_members = functools.lru_cache(rank_set)
_relative = functools.lru_cache(relative_to)
"""Groups and files are few, and operations many."""


def lasted(told: Told) -> dict[int, list[Slice]]:
    """Return what lasted of each rank."""
    facts = fold_history(told.result.history, told.result.spec.size)
    return {each.rank: _slices(each, told) for each in facts}


def _slices(facts: RankFacts, told: Told) -> list[Slice]:
    """Return what lasted of one rank: its phases, its operations, and how it was left."""
    operations = [
        _operation_slice(each, facts, told) for each in _operations(facts.rank, told.result)
    ]
    found = [*_phases(facts, told), *operations]
    last = _last(facts, found, told)
    return found if last is None else [*found, last]


def _over_us(facts: RankFacts, told: Told) -> int:
    """When a rank could do no more."""
    return told.end_us if facts.exited_s is None else told.us(facts.exited_s)


def _phases(facts: RankFacts, told: Told) -> Iterator[Slice]:
    begun = sorted(_phase_starts(facts.rank, told))
    ends = [*(start_us for start_us, _ in begun[1:]), _over_us(facts, told)]
    for (start_us, name), end_us in zip(begun, ends, strict=False):
        # The news of a death can overtake what the rank told.
        yield Slice(name=name, category="phase", start_us=start_us, end_us=max(start_us, end_us))


def _phase_starts(rank: int, told: Told) -> Iterator[tuple[int, str]]:
    mine = [event for event in told.result.history if event.rank == rank]
    first = [told.us(event.at_s) for event in mine if event.kind in ("forked", "hello")]
    if first:
        yield min(first), "startup"
    for event in mine:
        if event.kind == "phase" and event.detail["phase"] != "shutdown":
            yield told.us(event.at_s), event.detail["phase"]
        elif event.kind == "done":
            yield told.us(event.at_s), "shutdown"


def _operations(rank: int, result: WorldResult) -> list[Operation]:
    """Return what is known of a rank's operations, also those that only stacks tell of."""
    recent = [each for page in result.operations if page.rank == rank for each in page.recent]
    last = result.snapshots[-1].ranks if result.snapshots else ()
    seen = [each for one in last if one.rank == rank for each in one.operations]
    return recent + [each for each in seen if not any(_is_same(each, old) for old in recent)]


def _is_same(one: Operation, other: Operation) -> bool:
    """Whether two looks at a rank saw one operation; it may have ended between them."""
    return (one.name, one.since_s, one.group_key) == (other.name, other.since_s, other.group_key)


def _operation_slice(operation: Operation, facts: RankFacts, told: Told) -> Slice:
    start_us = told.us(operation.since_s)
    is_open = operation.ended_s is None
    end_us = _over_us(facts, told) if operation.ended_s is None else told.us(operation.ended_s)
    return Slice(
        name=operation.describe(told.result.spec.size),
        category="open operation" if is_open else "operation",
        start_us=start_us,
        end_us=max(start_us, end_us),
        args=_operation_args(operation, told) | (_seen(facts.rank, told) if is_open else {}),
        operation=operation,
    )


def _operation_args(operation: Operation, told: Told) -> Json:
    frame = operation.frame
    place = f"{_relative(told.root, frame.file)}:{frame.line}" if frame else None
    found = {
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
    return {name: value for name, value in found.items() if value is not None}


def _seen(rank: int, told: Told) -> Json:
    """Return what a rank's main thread was seen to do at last."""
    last = told.result.snapshots[-1].ranks if told.result.snapshots else ()
    look = next((each for each in last if each.rank == rank and each.label), None)
    return {} if look is None else {"seen": f"{look.label} {look.activity or ''}".rstrip()}


def _last(facts: RankFacts, found: Sequence[Slice], told: Told) -> Slice | None:
    """Return how a rank was left: it is gone, or others wait for it and it is in no operation."""
    if facts.exit is not None and _over_us(facts, told) < told.end_us and not facts.was_ended:
        return _left(describe_exit(facts.exit), _over_us(facts, told), told.end_us)
    diagnosis = told.diagnosis
    if diagnosis is None or facts.rank not in diagnosis.culprits:
        return None
    if any(each.category == "open operation" for each in found):
        return None
    over_us = _over_us(facts, told)
    ended = [each.end_us for each in found if each.operation is not None]
    begun = [each.start_us for each in found]
    since_us = min(over_us, max([*begun, *ended, _trouble_us(facts, told)], default=0))
    left = _left(_verdict_words(facts.rank, diagnosis), since_us, over_us)
    return replace(left, args=_seen(facts.rank, told))


def _left(name: str, start_us: int, end_us: int) -> Slice:
    return Slice(name=name, category="culprit", start_us=start_us, end_us=max(start_us, end_us))


def _trouble_us(facts: RankFacts, told: Told) -> int:
    """When a rank raised or had done its part; 0 if neither."""
    raised_s = None if facts.failure is None else facts.failure.at_s
    return max((told.us(at_s) for at_s in (raised_s, facts.parked_s) if at_s), default=0)


def _verdict_words(rank: int, diagnosis: Diagnosis) -> str:
    where = diagnosis.where
    if where is None or where["rank"] != rank:
        return diagnosis.kind
    return f"{diagnosis.kind}: {where['file']}:{where['line']} {where['source']}".rstrip()
