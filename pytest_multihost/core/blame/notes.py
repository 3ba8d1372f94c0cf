"""The notes of a diagnosis: other causes, faults, and why it is not more precise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.headline import headline
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.left_programs import left_notes
from pytest_multihost.core.blame.program_threads import threads_notes
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.event import ProgramRestarted
from pytest_multihost.core.model.operation import KEY_WAITS, group_by_value
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import WorldResult, WorldSnapshot
from pytest_multihost.core.outcome import Finding
from pytest_multihost.core.outcome.fault_progress import fault_notes, unfired_faults

_UNPROVEN = ("overrun", "waited")
"""Endings at which time was up, with no proof of a hang."""

_PLURALS = {"waits": "wait", "polls": "poll", "opens": "open", "tries": "try", "has": "have"}

_MAX_BLOCKERS = 3
_LAST_RUNS = 8
"""A rank was not still if it ran in one of this many last snapshots, four a second."""

_MAX_KEYS = 3
_ALIKE = 0.6
"""How alike keys are that are shown, as `difflib` measures it."""

_DECLARE = (
    "the plugin did not record this wait: put `pytest_multihost.operation(...)` around a wait of"
    " your own to name the ranks that it waits for"
)


def notes(
    causes: Sequence[Cause], states: States, result: WorldResult, finding: Finding
) -> Iterator[str]:
    """Yield the notes, each a sentence without its full stop."""
    names = result.spec.names
    for cause in causes[1:]:
        words = "".join(span.text for span in headline(cause, finding, result))
        yield f"also {cause.kind}: {words}"
    yield from _owed(causes[0], states, names)
    for dump in result.dumps:
        yield from (f"{names.rank(dump.rank)}: task {each}" for each in dump.failed_tasks)
        yield from (f"{names.rank(dump.rank)}: {each.text}" for each in dump.failed_threads)
    yield from left_notes(causes[0], names)
    yield from _many_programs(causes[0], states, names)
    yield from threads_notes(causes[0], states, finding, names)
    yield from _restarts(result)
    yield from unfired_faults(result)
    yield from fault_notes(result)
    last = result.last_snapshot
    if last is not None:
        yield from _notes_of_snapshot(last, causes[0], result)
    is_unknown = causes[0].kind == "unknown" and result.ending in _UNPROVEN
    if is_unknown and last is not None and not last.unobserved:
        yield _DECLARE


def _owed(cause: Cause, states: States, names: Names) -> Iterator[str]:
    """Yield the awaited things that other ranks may provide; ranks with the same are together."""
    concerned = {*cause.culprits, *cause.waiting, *cause.cycle}
    found = group_by_value(
        (owed, rank)
        for rank, each in states.items()
        if (owed := each.owed if rank in cause.culprits else each.seen.owed)
        if rank in concerned or not concerned
    )
    for note, ranks in found.items():
        verb, _, rest = note.partition(" ")
        verb = verb if len(ranks) == 1 else _PLURALS.get(verb, verb)
        yield f"{names.of(ranks)} {verb} {rest}"


def keys_like(cause: Cause, there: Mapping[str, int], names: Names) -> Iterator[str]:
    """Yield the keys of jax's service that are most like those for which ranks wait.

    Args:
        there: The rank that has set each key.
    """
    waits = (wait.operation for wait in cause.waits)
    wanted = {each.detail for each in waits if each is not None and each.name in KEY_WAITS}
    for key in sorted(wanted - there.keys()):
        near = get_close_matches(key, there, n=_MAX_KEYS, cutoff=_ALIKE)
        shown = [f"{each} ({names.rank(there[each])})" for each in near]
        if shown:
            yield f"no rank has set the key {key}; there are keys like it: {', '.join(shown)}"


def _many_programs(cause: Cause, states: States, names: Names) -> Iterator[str]:
    """Yield how many programs of jax have not ended in each rank, if nothing moves in one."""
    operation = cause.operation
    if cause.kind != "transport" or operation is None or not operation.is_program:
        return
    for rank in sorted(cause.waiting):
        open_ones = [each for each in states[rank].known if each.is_program and each.is_open]
        if len(open_ones) > 1:
            which = f"{len(open_ones)} programs, {open_ones[0].title} to {open_ones[-1].title}"
            yield f"{names.rank(rank)} has started {which}, without a wait for their results"


def _restarts(result: WorldResult) -> Iterator[str]:
    """Yield the ends of programs that were started again."""
    for event in result.history:
        if isinstance(event.body, ProgramRestarted):
            number, allowed = event.body.number, event.body.allowed
            who = result.spec.names.rank(event.rank)
            yield f"{who}: its program {event.body.why}: restart {number} of {allowed}"


def _notes_of_snapshot(last: WorldSnapshot, cause: Cause, result: WorldResult) -> Iterator[str]:
    ending = result.ending
    if ending in _UNPROVEN and (
        found := last.blockers[:_MAX_BLOCKERS] or _moving(last, result.spec.names)
    ):
        limit = "before the deadline" if ending == "overrun" else "to hang"
        yield f"not proven {limit} because {'; '.join(found)}"
    if kind_of(cause.kind).is_vague:
        yield from last.unobserved
    yield from last.notes


def _moving(last: WorldSnapshot, names: Names) -> tuple[str, ...]:
    """Return a sentence about the ranks that ran to the end, so that no proof was begun."""
    ranks = [each.rank for each in last.ranks if any(each.recent_runs[-_LAST_RUNS:])]
    verb = "runs, or wakes up" if len(ranks) == 1 else "run, or wake up"
    return (f"{names.of(ranks)} {verb} again and again",) if ranks else ()
