"""What a cause is called in one line: who, and what they made the others wait in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_multihost.blame.causes import Cause
from pytest_multihost.blame.partition_blame import describe_cut
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.verdict import Kind
from pytest_multihost.outcome import Finding
from pytest_multihost.outcome.faults import frozen_for_good

_OF_FROZEN = frozenset({"stopped", "straggler", "stuck"})


def summarize(cause: Cause, finding: Finding, result: WorldResult) -> str:
    """Return one line: who, and what they made the others wait in."""
    size = result.spec.size
    if fault := planned_freeze(cause, result):
        return f"{_who_is(cause)} frozen by {fault!r}{_waiters(cause, size)}"
    if cause.kind in _SENTENCES:
        what = finding.ranks[cause.culprits[0]].summary
        who = rank_set(cause.culprits)
        sentence = _SENTENCES[cause.kind].format(who=who, who_is=_who_is(cause), what=what)
        return f"{sentence}{_waiters(cause, size)}"
    return _SUMMARIES[cause.kind](cause, finding, result)


def planned_freeze(cause: Cause, result: WorldResult) -> Fault | None:
    """Return the fault that keeps the culprits frozen, if none of them is held by anything else."""
    frozen = frozen_for_good(result.spec.faults, result.history)
    is_planned = bool(cause.culprits) and frozen.keys() >= set(cause.culprits)
    return frozen[cause.culprits[0]] if is_planned and cause.kind in _OF_FROZEN else None


def _who_is(cause: Cause) -> str:
    return f"{rank_set(cause.culprits)} {'is' if len(cause.culprits) == 1 else 'are'}"


def _waiters(cause: Cause, size: int) -> str:
    """Say who waits in what, as in "; ranks 1-3 wait for it in all_reduce #3 (world group)"."""
    if not cause.waiting:
        return ""
    them = "it" if len(cause.culprits) == 1 else "them"
    where = f" in {cause.operation.describe(size)}" if cause.operation else ""
    return f"; {rank_set(cause.waiting)} {_wait(cause)} for {them}{where}"


def _wait(cause: Cause) -> str:
    return "waits" if len(cause.waiting) == 1 else "wait"


_SENTENCES: Mapping[Kind, str] = {
    "finished": "{who} returned from the test",
    "raised": "{who} raised {what}",
    "died": "{who} {what}",
    "stopped": "{who_is} stopped by somebody else",
    "gil_held": "native code in {who} holds the GIL",
}
"""Kinds in which the culprits did something by themselves; who waits for them follows."""


def _straggler(cause: Cause, _: Finding, result: WorldResult) -> str:
    who, operation = rank_set(cause.culprits), cause.operation
    if operation is None:
        return f"{rank_set(cause.waiting)} wait for a lock that {who} holds"
    words = operation.describe(result.spec.size)
    if operation.kind == "collective":
        return f"{who} never reached {words}"
    waiter = next((w.rank for w in cause.waits if w.operation is operation), cause.waiting[0])
    if operation.kind == "transfer":
        return f"{who} never did its part in {words} of rank {waiter}"
    waiting = f"{rank_set(cause.waiting)} {_wait(cause)}"
    return f"{waiting} in {words} for something that {who} did not provide"


def _livelock(cause: Cause, finding: Finding, result: WorldResult) -> str:
    return f"{_straggler(cause, finding, result)}: it is busy, or waits again and again"


def _mismatch(cause: Cause, _: Finding, result: WorldResult) -> str:
    ranks_in: dict[str, list[int]] = {}
    for wait in cause.waits:
        if wait.is_mismatch and wait.operation is not None:
            words = _with_root(wait.operation, result.spec.size)
            ranks_in.setdefault(words, []).append(wait.rank)
    ordered = sorted(ranks_in.items(), key=lambda each: (len(each[1]), each[1]))
    parts = [f"{rank_set(ranks)} in {words}" for words, ranks in ordered]
    return " where ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _with_root(operation: Operation, size: int) -> str:
    words = operation.describe(size)
    return words if operation.root is None else f"{words} from rank {operation.root}"


def _deadlock(cause: Cause, _: Finding, result: WorldResult) -> str:
    parts = []
    for rank, ahead in zip(cause.cycle, (*cause.cycle[1:], *cause.cycle[:1]), strict=True):
        wait = next((w for w in cause.waits if w.rank == rank and ahead in w.missing), None)
        operation = wait.operation if wait is not None else None
        words = operation.describe(result.spec.size) if operation else "the lock of a file"
        parts.append(f"rank {rank} waits in {words} for rank {ahead}")
    who = rank_set(cause.cycle or cause.waiting)
    return f"{who} wait for each other: {', '.join(parts)}"


def _transport(cause: Cause, _: Finding, result: WorldResult) -> str:
    operation, size = cause.operation, result.spec.size
    words = operation.describe(size) if operation else "an operation"
    if cause.culprits:
        error = f"{rank_set(cause.culprits)} left {words} by {cause.error}"
        return f"{error}{_waiters(replace(cause, operation=None), size)}"
    if cause.cut is not None:
        inside = {w.rank for w in cause.waits if w.operation and w.rank in cause.waiting}
        has = "has" if len(inside) == 1 else "have"
        return f"{rank_set(inside)} {has} entered {words}, and {describe_cut(cause.cut)}"
    members = operation.group if operation is not None else ()
    entered = [rank for rank in cause.waiting if rank in members] or cause.waiting
    return f"{rank_set(entered)} have entered {words}, and nothing moves"


def _stuck(cause: Cause, finding: Finding, result: WorldResult) -> str:
    phase = finding.ranks[cause.culprits[0]].facts.phase
    own = [w.operation for w in cause.waits if w.rank in cause.culprits and w.operation]
    where = f" in {own[0].describe(result.spec.size)}" if own else ""
    them = "it" if len(cause.culprits) == 1 else "them"
    return f"{_who_is(cause)} stuck in {phase}{where}, and nobody waits for {them}"


def _unknown(_: Cause, finding: Finding, result: WorldResult) -> str:
    late = [each.facts.rank for each in finding.ranks if each.outcome == "hung"]
    if not late:
        return result.reason or "the world did not end"
    return f"{rank_set(late)} did not end; nothing tells who is waited for"


_SUMMARIES: Mapping[Kind, Callable[[Cause, Finding, WorldResult], str]] = {
    "straggler": _straggler,
    "livelock": _livelock,
    "mismatch": _mismatch,
    "deadlock": _deadlock,
    "transport": _transport,
    "stuck": _stuck,
    "unknown": _unknown,
}
