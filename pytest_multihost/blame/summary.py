"""What a cause is called in one line: who, and what they made the others wait in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_multihost.blame.causes import Cause
from pytest_multihost.blame.partition_blame import cut_words
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.verdict import Kind
from pytest_multihost.outcome import RankFinding
from pytest_multihost.outcome.faults import frozen_for_good


def summary(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    """Return one line: who, and what they made the others wait in."""
    if fault := planned_freeze(cause, result):
        verb = "is" if len(cause.culprits) == 1 else "are"
        who = rank_set(cause.culprits)
        return f"{who} {verb} frozen by {fault!r}{_wait_words(cause, result)}"
    return _SUMMARIES[cause.kind](cause, findings, result)


def planned_freeze(cause: Cause, result: WorldResult) -> Fault | None:
    """Return the fault that keeps the culprits frozen, if none of them is held by anything else."""
    frozen = frozen_for_good(result.spec.faults, result.history)
    is_planned = bool(cause.culprits) and frozen.keys() >= set(cause.culprits)
    return frozen[cause.culprits[0]] if is_planned and cause.kind in _OF_FROZEN else None


_OF_FROZEN = frozenset({"stopped", "straggler", "stuck"})

_Say = Callable[[Cause, Mapping[int, RankFinding], WorldResult], str]


def _wait_words(cause: Cause, result: WorldResult) -> str:
    """Say who waits in what, as in "ranks 1-3 wait for it in all_reduce #3 (world group)"."""
    if not cause.waiting:
        return ""
    them = "it" if len(cause.culprits) == 1 else "them"
    verb = "waits" if len(cause.waiting) == 1 else "wait"
    where = f" in {cause.operation.describe(result.spec.size)}" if cause.operation else ""
    return f"; {rank_set(cause.waiting)} {verb} for {them}{where}"


def _straggler(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    del findings
    who, operation = rank_set(cause.culprits), cause.operation
    if operation is None:
        return f"{rank_set(cause.waiting)} wait for a lock that {who} holds"
    words = operation.describe(result.spec.size)
    if operation.kind == "collective":
        return f"{who} never reached {words}"
    waiter = next((w.rank for w in cause.waits if w.operation is operation), cause.waiting[0])
    if operation.kind == "transfer":
        return f"{who} never did its part in {words} of rank {waiter}"
    verb = "waits" if len(cause.waiting) == 1 else "wait"
    return f"{rank_set(cause.waiting)} {verb} in {words} for something that {who} did not provide"


def _livelock(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    return f"{_straggler(cause, findings, result)}: it is busy, or waits again and again"


def _finished(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    del findings
    return f"{rank_set(cause.culprits)} returned from the test{_wait_words(cause, result)}"


def _raised(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    what = findings[cause.culprits[0]].summary
    return f"{rank_set(cause.culprits)} raised {what}{_wait_words(cause, result)}"


def _died(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    what = findings[cause.culprits[0]].summary
    return f"{rank_set(cause.culprits)} {what}{_wait_words(cause, result)}"


def _stopped(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    del findings
    verb = "is" if len(cause.culprits) == 1 else "are"
    who = rank_set(cause.culprits)
    return f"{who} {verb} stopped by somebody else{_wait_words(cause, result)}"


def _gil_held(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    del findings
    who = rank_set(cause.culprits)
    return f"native code in {who} holds the interpreter{_wait_words(cause, result)}"


def _mismatch(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    del findings
    sorts: dict[str, list[int]] = {}
    for wait in cause.waits:
        if wait.is_mismatch and wait.operation is not None:
            sorts.setdefault(_operation_and_root(wait.operation, result), []).append(wait.rank)
    ordered = sorted(sorts.items(), key=lambda each: (len(each[1]), each[1]))
    parts = [f"{rank_set(ranks)} in {words}" for words, ranks in ordered]
    return " where ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _operation_and_root(operation: Operation, result: WorldResult) -> str:
    words = operation.describe(result.spec.size)
    return words if operation.root is None else f"{words} from rank {operation.root}"


def _deadlock(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    del findings
    parts = []
    for rank in cause.cycle:
        ahead = cause.cycle[(cause.cycle.index(rank) + 1) % len(cause.cycle)]
        wait = next((w for w in cause.waits if w.rank == rank and ahead in w.missing), None)
        operation = wait.operation if wait is not None else None
        words = operation.describe(result.spec.size) if operation else "the lock of a file"
        parts.append(f"rank {rank} waits in {words} for rank {ahead}")
    who = rank_set(cause.cycle or cause.waiting)
    return f"{who} wait for each other: {', '.join(parts)}"


def _transport(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    del findings
    operation = cause.operation
    words = operation.describe(result.spec.size) if operation else "an operation"
    if cause.culprits:
        error = f"{rank_set(cause.culprits)} left {words} by {cause.error}"
        return f"{error}{_wait_words(replace(cause, operation=None), result)}"
    members = operation.group if operation is not None else ()
    inside = [rank for rank in cause.waiting if rank in members] or cause.waiting
    if cause.cut is not None:
        inside = sorted({w.rank for w in cause.waits if w.operation and w.rank in cause.waiting})
        verb = "has" if len(inside) == 1 else "have"
        return f"{rank_set(inside)} {verb} entered {words}, and {cut_words(cause.cut)}"
    return f"{rank_set(inside)} have entered {words}, and nothing moves"


def _stuck(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    verb = "is" if len(cause.culprits) == 1 else "are"
    phase = findings[cause.culprits[0]].facts.phase
    own = [w.operation for w in cause.waits if w.rank in cause.culprits and w.operation]
    where = f" in {own[0].describe(result.spec.size)}" if own else ""
    them = "it" if len(cause.culprits) == 1 else "them"
    who = rank_set(cause.culprits)
    return f"{who} {verb} stuck in {phase}{where}, and nobody waits for {them}"


def _unknown(cause: Cause, findings: Mapping[int, RankFinding], result: WorldResult) -> str:
    del cause
    late = [each.facts for each in findings.values() if each.outcome == "hung"]
    if not late:
        return result.reason or "the world did not end"
    return f"{rank_set(each.rank for each in late)} did not end; nothing tells who is waited for"


_SUMMARIES: Mapping[Kind, _Say] = {
    "straggler": _straggler,
    "livelock": _livelock,
    "finished": _finished,
    "raised": _raised,
    "died": _died,
    "stopped": _stopped,
    "gil_held": _gil_held,
    "mismatch": _mismatch,
    "deadlock": _deadlock,
    "transport": _transport,
    "stuck": _stuck,
    "unknown": _unknown,
}
