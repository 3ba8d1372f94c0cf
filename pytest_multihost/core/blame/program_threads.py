"""Threads of a rank that run jitted programs at once.

Their order is left to chance, so that it may differ between ranks of which each does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import PurePath

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.outcome import Finding

_RECENT = 8
"""The number of a rank's programs to compare, the last ones."""


def as_unordered(cause: Cause, states: States) -> Cause:
    """Return a mismatch without culprits if a rank of each side runs programs in two threads."""
    if cause.kind != "mismatch":
        return cause
    for side in (cause.culprits, cause.waiting):
        if not any(programs_at_once(states[each].known) for each in side if each in states):
            return cause
    waiting = tuple(sorted({*cause.culprits, *cause.waiting}))
    return replace(cause, confidence="likely", culprits=(), waiting=waiting)


def threads_notes(cause: Cause, states: States, finding: Finding, names: Names) -> Iterator[str]:
    """Yield which threads of a rank run programs at once, and where they have started these."""
    pids = {each.facts.rank: each.facts.pid for each in finding.ranks}
    for rank in sorted({*cause.culprits, *cause.waiting, *cause.cycle} & states.keys()):
        found = programs_at_once(states[rank].known)
        if found:
            *first, last = (_text(each, pids.get(rank)) for each in found)
            lead = f"{names.rank(rank)} runs programs of {len(found)} threads at once"
            yield f"{lead}: {', '.join(first)} and {last}"


def programs_at_once(known: Sequence[Operation]) -> list[Operation]:
    """Return the last program of each thread of a rank that runs programs beside another thread.

    Args:
        known: The operations of the rank, in their order.
    """
    recent = [each for each in known if each.is_program][-_RECENT:]
    together = {
        thread
        for one, two in combinations(recent, 2)
        if _overlap(one, two)
        for thread in (one.began.thread, two.began.thread)
    }
    last = {each.began.thread: each for each in recent if each.began.thread in together}
    return [*last.values()] if len(last) > 1 else []


def _overlap(one: Operation, two: Operation) -> bool:
    first, second = sorted((one, two), key=lambda each: each.since_s)
    is_open = first.ended_s is None or first.ended_s > second.since_s
    return is_open and one.began.thread != two.began.thread


def _text(program: Operation, pid: int | None) -> str:
    thread, frame = program.began.thread, program.began.frame
    of = "the main thread" if thread == pid else f"thread {thread}"
    at = f" at {PurePath(frame.file).name}:{frame.line}" if frame is not None else ""
    return f"{program.title} of {of}{at}"
