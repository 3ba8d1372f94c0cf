"""The headline of a diagnosis: the culprits, and what the other ranks wait for them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from pytest_multihost.core.blame.cause import Cause, first_waits
from pytest_multihost.core.blame.lock_cycles import lock_cycle
from pytest_multihost.core.blame.shared_failures import SMALLER
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.operation import (
    READY_SCOPE,
    REQUEST_SCOPE,
    Operation,
    group_by_value,
)
from pytest_multihost.core.model.rank_names import rank_name, rank_set
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import phase_name
from pytest_multihost.core.model.verdict import Kind, RankPlace, Sentence, Span, sentence
from pytest_multihost.core.outcome import Finding
from pytest_multihost.core.outcome.active_faults import frozen_for_good

_OF_FROZEN = frozenset({"stopped", "straggler", "stuck"})


def headline(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    """Return one line: the culprits, and the operation in which the other ranks wait for them."""
    if cause.parts:
        return _together(cause, finding, result)
    size, is_one = result.spec.size, len(cause.culprits) == 1
    if fault := planned_freeze(cause, result):
        frozen = f" {'is' if is_one else 'are'} frozen by {fault!r}"
        return sentence(_ranks(cause.culprits, cause), frozen, _waiters(cause, finding, size))
    if cause.kind in _SENTENCES:
        before, after = _SENTENCES[cause.kind]
        what = finding.ranks[cause.culprits[0]].summary
        be, subject = "is" if is_one else "are", result.spec.subject
        call, stopped = f" {cause.call}".rstrip(), _how_stopped(cause.culprits, result)
        after = after.format(what=what, be=be, subject=subject, call=call, stopped=stopped)
        return sentence(
            before, _ranks(cause.culprits, cause), after, _waiters(cause, finding, size)
        )
    return _HEADLINES[cause.kind](cause, finding, result)


_MAX_PARTS = 3


def _together(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    """Return the headlines of the first causes that one puts together, and the other culprits."""
    found: Sentence = ()
    for each in cause.parts[:_MAX_PARTS]:
        found = sentence(found, "; " if found else "", headline(each, finding, result))
    more = {rank for each in cause.parts[_MAX_PARTS:] for rank in each.culprits}
    if more:
        found = sentence(found, "; also ", (Span(rank_set(more), "culprit"),))
    return found


def planned_freeze(cause: Cause, result: WorldResult) -> Fault | None:
    """Return the fault that keeps the culprits frozen, if faults freeze all of them for good."""
    frozen = frozen_for_good(result.spec.faults, result.history)
    is_planned = bool(cause.culprits) and frozen.keys() >= set(cause.culprits)
    return frozen[cause.culprits[0]] if is_planned and cause.kind in _OF_FROZEN else None


def _ranks(ranks: Sequence[int], cause: Cause) -> Sentence:
    is_culprit = set(ranks) == set(cause.culprits)
    child = f" / {cause.child.title}" if is_culprit and cause.child is not None else ""
    return (Span(f"{rank_set(ranks)}{child}", "culprit" if is_culprit else ""),)


def _words(operation: Operation | None, size: int, otherwise: str = "") -> Sentence:
    """Return the text of an operation, or another one if there is none."""
    if operation is None:
        return sentence(otherwise)
    if group := operation.group_name(size):
        return sentence(f"{operation.title} ", (Span(f"({group})", "group"),))
    return sentence(operation.title)


def _waiters(cause: Cause, finding: Finding, size: int) -> Sentence:
    """Return the waiting ranks as in "; ranks 1-3 wait for it in all_reduce #3 (world group)".

    They waited if they no longer do, because the runtime has raised in all of them.
    """
    if not cause.waiting:
        return ()
    have_raised = all(finding.ranks[rank].facts.failure is not None for rank in cause.waiting)
    verb = "waited" if have_raised else _wait(cause.waiting)
    them = "it" if len(cause.culprits) == 1 else "them"
    lead = f"; {rank_set(cause.waiting)} {verb} for {them}"
    return _in_operations(cause, cause.waiting, sentence(lead), size)


_MAX_WAITS = 3
"""How many operations a headline names in which ranks wait; the page has all of them."""


def _in_operations(
    cause: Cause, ranks: Sequence[int], lead: Sentence, size: int, rest: Sentence = ()
) -> Sentence:
    """Return what some ranks do, and the operation in which each of them does it.

    One operation of all of them follows: "ranks 1-3 wait for it in A". Several are listed: "ranks
    1-3 wait for it: rank 1 in A, ranks 2,3 in B". A rank without an operation is not in the list.

    Args:
        lead: The beginning of the sentence, as in "ranks 1-3 wait".
        rest: What follows this and the one operation, as in " for rank 0".
    """
    own = {each.rank: each.operation for each in first_waits(cause) if each.rank in ranks}
    inside = _ranks_in([(rank, each) for rank, each in own.items() if each is not None], size)
    if not inside:
        return sentence(lead, rest)
    if {*inside[0][1]} == {*ranks}:
        return sentence(lead, " in ", inside[0][0], rest)
    found = sentence(lead, rest)
    for number, (words, those) in enumerate(inside[:_MAX_WAITS]):
        found = sentence(found, ", " if number else ": ", f"{rank_set(those)} in ", words)
    if others := [rank for _, those in inside[_MAX_WAITS:] for rank in those]:
        found = sentence(found, f", {rank_set(others)} in other operations")
    return found


def _ranks_in(
    operations: Sequence[tuple[int, Operation]], size: int
) -> Sequence[tuple[Sentence, Sequence[int]]]:
    """Return the texts of ranks' operations, and the ranks in each.

    Operations of several groups of the same size are one if there would be too many texts.
    """
    alone = group_by_value((_words(each, size), (rank, each)) for rank, each in operations)
    if len(alone) > _MAX_WAITS:
        alike = group_by_value(
            ((each.title, len(each.group)), (rank, each)) for rank, each in operations
        )
        alone = {
            _words_of_all([each for _, each in those], size): those for those in alike.values()
        }
    return [(words, sorted(rank for rank, _ in those)) for words, those in alone.items()]


def waiting_line(cause: Cause, places: Sequence[RankPlace]) -> str:
    """Return the line at which the others wait for a culprit that is gone and has no line."""
    if cause.kind not in ("finished", "died"):
        return ""
    waits = (each for each in cause.concerned_waits if each.operation is cause.operation)
    ranks = [wait.rank for wait in waits if wait.rank in cause.waiting][:1]
    at = next((each for each in places if each.rank in ranks), None)
    return f" at {at.file}:{at.line}" if at is not None else ""


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


_SENTENCES: Mapping[Kind, tuple[str, str]] = {
    "finished": ("", " returned from the {subject}"),
    "raised": ("", " raised {what}"),
    "died": ("", " {what}"),
    "stopped": ("", " {be} {stopped}"),
    "gil_held": ("native code in ", " holds the GIL{call}"),
}
"""The texts before and after the culprits, for kinds that their own state explains."""


def _how_stopped(ranks: Sequence[int], result: WorldResult) -> str:
    """Return how ranks are stopped; the kernel does not say who has done it."""
    seen = [result.last_seen.get(rank) for rank in ranks]
    if all(each and each.activity and each.activity.name == "held by a tracer" for each in seen):
        return "held by a debugger or another tracer"
    return "stopped by a signal such as SIGSTOP"


_TO_ROOT = frozenset({"reduce", "gather", "gather_object"})
"""Collectives whose root gets the data of the others."""


def _straggler(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    who, operation, size = _ranks(cause.culprits, cause), cause.operation, result.spec.size
    wait = f"{rank_set(cause.waiting)} {_wait(cause.waiting)}"
    if operation is None:
        direct = [w.rank for w in cause.concerned_waits if w.missing & {*cause.culprits}]
        waiters = sorted({*direct} & {*cause.waiting}) or cause.waiting
        waiting = f"{rank_set(waiters)} {_wait(waiters)} for a lock that "
        return sentence(waiting, who, f" {'holds' if len(cause.culprits) == 1 else 'hold'}")
    words = _words(operation, size)
    into = [w for w in cause.concerned_waits if w.operation and {*cause.culprits} & w.missing]
    if operation.scope == READY_SCOPE:
        return sentence(who, f" never became ready ({operation.detail}); {wait} for that")
    if cause.is_silent:
        nothing = sentence(" for ", who, ", of which nothing was recorded")
        return _in_operations(cause, cause.waiting, sentence(wait), size, nothing)
    if operation.kind == "collective":
        return sentence(who, " never reached ", words)
    waiter = next((w.rank for w in cause.waits if w.operation is operation), cause.waiting[0])
    if operation.kind == "transfer" and len(cause.culprits) > 1:
        of = rank_set(w.rank for w in into if w.operation and w.operation.kind == "transfer")
        return sentence(who, f" never did their part in transfers of {of}")
    if operation.kind == "transfer":
        return sentence(who, " never did its part in ", words, f" of {rank_name(waiter)}")
    lacking = sentence(" for something that ", who, " did not provide")
    return _in_operations(cause, cause.waiting, sentence(wait), size, lacking)


def _mismatch(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    """Return what each side waits in: the culprits' side first or, on a tie, the smallest."""
    if cause.sides:
        return _unlike_entries(cause, result)
    if cause.unmatched:
        return _unmatched(cause)
    if cause.passed:
        return _other_payload(cause, result)
    ranks_in: dict[Sentence, list[int]] = {}
    sides = list(_sides_of_mismatch(cause))
    if len({each.operation.group_key for each in sides if each.operation}) > _MAX_SIDES:
        return _wide_mismatch(sides, cause, result)
    for wait in sides:
        if wait.operation is not None:
            root, frame = wait.operation.root, wait.operation.frame
            to = "to" if wait.operation.name in _TO_ROOT else "from"
            from_root = f" {to} {rank_name(root)}" if root is not None else ""
            at = ""
            if frame is not None and wait.operation.source == "native-frames":
                at = f" at {PurePath(frame.file).name}:{frame.line}"
            words = sentence(_words(wait.operation, result.spec.size), from_root, at)
            ranks_in.setdefault(words, []).append(wait.rank)
    ordered = sorted(
        ranks_in.items(),
        key=lambda each: (not {*each[1]} & {*cause.culprits}, len(each[1]), each[1]),
    )
    found: Sentence = ()
    for number, (words, ranks) in enumerate(ordered):
        be = "is" if len(ranks) == 1 else "are"
        between = ", " if number else ""
        found = sentence(found, between, _ranks(ranks, cause), f" {be} in ", words)
    return found


def _unlike_entries(cause: Cause, result: WorldResult) -> Sentence:
    """Return what each side entered at one place of the group, the culprits' side first."""
    # The side whose operation is unknown comes last.
    (first, ranks), *others = sorted(cause.sides, key=lambda each: each[0].name == SMALLER)
    group = (Span(f"({first.group_name(result.spec.size)})", "group"),)
    found = sentence(_side(ranks, cause), f" entered {first.title}", _detail(first), " ", group)
    texts = {(each.name, each.detail) for each, _ in cause.sides}
    if len(texts) == 1:
        than = rank_set(rank for _, ranks in others for rank in ranks)
        return sentence(found, f" with another value than {than}")
    for each, theirs in others:
        name = f" {each.name}" if each.name != first.name else ""
        found = sentence(found, ", ", _side(theirs, cause), name, _detail(each))
    return found


def _detail(operation: Operation) -> str:
    return f" {operation.detail}" if operation.detail else ""


def _wide_mismatch(sides: Sequence[Wait], cause: Cause, result: WorldResult) -> Sentence:
    """Return the same for many groups that are alike: one side for each operation."""
    found: Sentence = ()
    alike = group_by_value(
        ((each.operation.title, len(each.operation.group)), each)
        for each in sides
        if each.operation
    )
    for number, each in enumerate(sorted(alike.values(), key=len)[:_MAX_SIDES]):
        words = _words_of_all([wait.operation for wait in each if wait.operation], result.spec.size)
        who = _ranks(sorted(wait.rank for wait in each), cause)
        found = sentence(found, ", " if number else "", who, " are in ", words)
    return found


def _other_payload(cause: Cause, result: WorldResult) -> Sentence:
    """Return what each side passed to the operation, the culprits' side first."""
    if cause.operation is not None and cause.operation.kind == "transfer":
        return _other_transfer(cause, cause.operation)
    if cause.operation is not None and cause.operation.scope == REQUEST_SCOPE:
        return _other_members(cause, cause.operation)
    found: Sentence = ()
    for payload, ranks in cause.passed:
        who = _side(ranks, cause)
        verb = "passes" if len(ranks) == 1 else "pass"
        to = f" {verb} {payload} to "
        if cause.operation is not None and cause.operation.is_program:
            to = f" {'runs' if len(ranks) == 1 else 'run'} {payload} in "
        words = sentence(to, _words(cause.operation, result.spec.size))
        found = sentence(found, ", ", who, f" {payload}") if found else sentence(who, words)
    return found


def _other_members(cause: Cause, request: Operation) -> Sentence:
    """Return which members each side names for a group, the culprits' side first."""
    found: Sentence = ()
    for members, ranks in cause.passed:
        name = "names" if len(ranks) == 1 else "name"
        named = f"the members {members} in new_group #{request.sequence}" if not found else members
        words = sentence(_side(ranks, cause), f" {name} {named}")
        found = sentence(found, ", ", words) if found else words
    return found


def _unmatched(cause: Cause) -> Sentence:
    """Return which transfer has no counterpart, and which other one lacks it."""
    found: Sentence = ()
    for rank, transfer in cause.unmatched:
        is_send = "send" in transfer.name
        words = "sends to" if is_send else "receives from"
        peer = rank_name(transfer.peer) if transfer.peer is not None else "any rank"
        lacks = f", which {'receives nothing from' if is_send else 'sends nothing to'} it"
        more = lacks if not found else ""
        found = sentence(
            found, ", while " if found else "", _side((rank,), cause), f" {words} {peer}{more}"
        )
    return found


def _side(ranks: Sequence[int], cause: Cause) -> Sentence:
    return (Span(rank_set(ranks), "culprit" if {*ranks} <= {*cause.culprits} else ""),)


def _other_transfer(cause: Cause, operation: Operation) -> Sentence:
    """Return what one rank sends to another, and what this one receives."""
    is_send = "send" in operation.name
    found: Sentence = ()
    for payload, ranks in sorted(
        cause.passed, key=lambda each: (operation.peer in each[1]) is is_send
    ):
        verb = "receives" if (operation.peer in ranks) is is_send else "sends"
        words = sentence(_side(ranks, cause), f" {verb} {payload}")
        found = sentence(found, ", ", words) if found else words
    return found


def _sides_of_mismatch(cause: Cause) -> Iterator[Wait]:
    """Yield one wait of each rank of all sides.

    A rank whose operation let it pass waits in a later one of that group.
    """
    group = cause.operation.group_key if cause.operation is not None else None
    is_told = any(wait.is_mismatch for wait in cause.waits)  # else the programs' lines differ
    waits = [wait for wait in cause.concerned_waits if wait.operation is not None]
    for rank, theirs in group_by_value((wait.rank, wait) for wait in waits).items():
        mismatched = [wait for wait in theirs if wait.is_mismatch]
        inside = [wait for wait in theirs if wait.operation and wait.operation.group_key == group]
        is_side = not is_told or rank in cause.culprits
        yield from (mismatched or inside or (theirs if is_side else []))[:1]


_LONG_CYCLE = 6
"""The headline describes a longer cycle by the operations, and not rank by rank."""

_MAX_SIDES = 4


def _deadlock(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    if len(cause.cycle) == 1:
        return _lock_cycle(cause, result)
    if len(cause.cycle) > _LONG_CYCLE:
        return _long_deadlock(cause, result)
    found = sentence(_ranks(cause.cycle or cause.waiting, cause), " wait for each other: ")
    for rank, ahead in zip(cause.cycle, (*cause.cycle[1:], *cause.cycle[:1]), strict=True):
        wait = next((w for w in cause.waits if w.rank == rank and ahead in w.missing), None)
        operation = wait.operation if wait is not None else None
        words = _words(operation, result.spec.size, otherwise="the lock of a file")
        between = "" if rank == cause.cycle[0] else ", "
        for_whom = f" for {rank_name(ahead)}"
        if wait is not None and operation is not None and not operation.has_members:
            is_shared = operation.kind == "collective" or operation.source == "proc"
            is_one = len(wait.missing) == 1 or not is_shared
            for_whom = for_whom if is_one else f" for some of {rank_set(sorted(wait.missing))}"
        found = sentence(found, f"{between}{rank_name(rank)} waits in ", words, for_whom)
    return found


def _long_deadlock(cause: Cause, result: WorldResult) -> Sentence:
    """Return what the ranks of a long cycle wait in; groups that are alike are one."""
    who = sentence(_ranks(cause.cycle, cause), " wait for each other")
    return _in_operations(cause, cause.cycle, who, result.spec.size)


def _words_of_all(operations: Sequence[Operation], size: int) -> Sentence:
    """Return the text of an operation that is open in several groups of the same size."""
    first, groups = operations[0], {each.group_key for each in operations}
    if len(groups) == 1:
        return _words(first, size)
    alike = f"{len(groups)} groups of {len(first.group)}"
    return sentence(f"{first.title} ", (Span(f"({alike})", "group"),))


def _lock_cycle(cause: Cause, result: WorldResult) -> Sentence:
    (rank,) = cause.cycle
    waits = lock_cycle(result.dumps, rank)
    if not waits and cause.operation is not None and cause.operation.child is not None:
        child = cause.operation.child.title
        inside = sentence(f"its child {child} in ", _words(cause.operation, result.spec.size))
        who = sentence(f"processes of {rank_name(rank)} wait for each other: ", inside)
        return sentence(who, ", and another one for a lock that one of them holds on a file")
    *names, last = [each.thread for each in waits]
    locks = sorted({each.lock for each in waits if each.lock})
    which = f" (lock{'s' * (len(locks) > 1)} {', '.join(locks)})"
    who = (Span(rank_name(rank), "culprit"),)
    threads = f"threads {', '.join(names)} and {last} of "
    found = sentence(threads, who, f" wait for each other{which}")
    others = [each for each in cause.waiting if each != rank]
    if not others:
        return found
    found = sentence(found, f"; {rank_set(others)} {_wait(others)} for {rank_name(rank)}")
    return _in_operations(cause, others, found, result.spec.size)


def _transport(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    operation, size = cause.operation, result.spec.size
    words = _words(operation, size, otherwise="an operation")
    if cause.culprits:
        are_told = {*_inside(cause)} >= {*cause.waiting}
        waiters = _waiters(replace(cause, waits=()) if are_told else cause, finding, size)
        who = _ranks(cause.culprits, cause)
        return sentence(who, " left ", words, f" by {cause.error}", waiters)
    entered = sorted({*(inside := _inside(cause)), *cause.begun})
    have = "has" if len(entered) == 1 else "have"
    if not entered:  # of the operation nothing is known
        waits = f"{rank_set(cause.waiting)} {_wait(cause.waiting)}"
        return sentence(waits, f", and {cause.cut.words if cause.cut else 'nothing moves'}")
    if cause.cut is not None:
        return sentence(f"{rank_set(entered)} {have} entered ", words, f", and {cause.cut.words}")
    lines = _lines_in_unknown_groups(cause)
    if operation is not None and len(lines) > 1:
        where = "; ".join(f"{rank_set(ranks)} at {line}" for line, ranks in lines.items())
        return sentence(
            f"{rank_set(entered)} wait in {operation.name} at different lines, of one group or of"
            f" several: {where}"
        )
    if cause.left:
        has = "has" if len(cause.left) == 1 else "have"
        found = sentence(f"{rank_set(inside)} {_wait(inside)} in ", words)
        found = sentence(found, f", which {rank_set(cause.left)} {has} left")
        waiting = {each.rank for each in first_waits(cause) if each.operation is not None}
        if gone := [rank for rank in cause.left if rank in waiting]:
            found = sentence(found, f"; {rank_set(gone)} now {_wait(gone)}")
            return _in_operations(cause, gone, found, size)
        return sentence(found, ", and nothing moves")
    return sentence(f"{rank_set(entered)} {have} entered ", words, ", and nothing moves")


def _inside(cause: Cause) -> Sequence[int]:
    """Return the ranks that wait in the operation of a cause; of a transfer, in its side of it."""
    operation = cause.operation
    if operation is None:
        return []
    waits = [each for each in cause.concerned_waits if each.operation is not None]
    its = [each for each in waits if each.operation and each.operation.is_same_as(operation)]
    if operation.kind == "transfer":  # other pairs of the group count theirs alike
        its = [wait for wait in its if wait.operation is operation]
    return sorted({wait.rank for wait in its})


def _lines_in_unknown_groups(cause: Cause) -> Mapping[str, Sequence[int]]:
    """Return the ranks at each line of a collective whose group frames alone do not show."""
    operation = cause.operation
    if operation is None or operation.has_members or operation.source != "python-frames":
        return {}
    return group_by_value(
        (f"{PurePath(each.frame.file).name}:{each.frame.line}", wait.rank)
        for wait in cause.concerned_waits
        if (each := wait.operation) is not None and each.is_same_as(operation) and each.frame
    )


def _stuck(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    ranks, subject = cause.culprits, result.spec.subject
    phases = group_by_value((finding.ranks[rank].facts.phase, rank) for rank in ranks)
    seen = [result.last_seen.get(rank) for rank in ranks]
    sleep = all(each is not None and each.label == "SLEEPING" for each in seen)
    be, them = ("is", "it") if len(ranks) == 1 else ("are", "them")
    state = f" {'sleeps' if be == 'is' else 'sleep'}" if sleep else f" {be} stuck"
    (first, *_), alone = phases, f", and no other rank waits for {them}"
    where = "" if len(phases) > 1 else f" in {phase_name(first, subject)}"
    who = sentence(_ranks(ranks, cause), f"{state}{where}")
    if len(phases) > 1:
        told = (f"{rank_set(each)} in {phase_name(it, subject)}" for it, each in phases.items())
        doing = sentence(who, f": {', '.join(told)}")
    else:
        doing = _in_operations(cause, ranks, who, result.spec.size)
    return sentence(doing, alone, _lost_children(cause))


def _lost_children(cause: Cause) -> str:
    """Return which children of the culprit signals have ended, to append to a sentence."""
    told = [f"its child {each.title} {each.ended}" for each in cause.lost[:_MAX_PARTS]]
    return f": {', '.join(told)}" if told else ""


def _unknown(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    if cause.operation is not None and cause.waiting:
        return _of_unknown_members(cause, cause.operation)
    late = [each.facts.rank for each in finding.ranks if each.outcome == "hung"]
    if not late:
        return sentence(result.reason or "the world did not end")
    return sentence(f"{rank_set(late)} did not end; it is unknown which rank is waited for")


def _of_unknown_members(cause: Cause, operation: Operation) -> Sentence:
    """Return which members of a group wait; the others are unknown."""
    inside = [
        wait.rank
        for wait in cause.concerned_waits
        if wait.operation is not None and wait.operation.is_same_as(operation)
    ]
    size = operation.group_size
    verb = "waits" if len(inside) == 1 else "wait"
    found = sentence(f"{rank_set(inside)} {verb} in {operation.title}")
    if operation.kind == "wait" or not size:
        return sentence(found, "; it is unknown for which rank")
    if operation.scope.kind == "creation" and operation.is_open:
        have = "has" if len(inside) == 1 else "have"
        return sentence(found, f": {len(inside)} of {size} members of the group {have} come")
    is_one = len(operation.group) == 1
    known = f"{rank_set(operation.group)} {'is' if is_one else 'are'} known"
    return sentence(found, f"; of the {size} members of the group, only {known}")


def _busy(cause: Cause) -> str:
    is_one = len(cause.culprits) == 1
    it_waits = "it is busy, or waits" if is_one else "they are busy, or wait"
    return f": {it_waits} again and again"


_HEADLINES: Mapping[Kind, Callable[[Cause, Finding, WorldResult], Sentence]] = {
    "straggler": lambda cause, *more: sentence(_straggler(cause, *more), _lost_children(cause)),
    "livelock": lambda cause, *more: sentence(_straggler(cause, *more), _busy(cause)),
    "mismatch": _mismatch,
    "deadlock": _deadlock,
    "transport": _transport,
    "stuck": _stuck,
    "unknown": _unknown,
}
