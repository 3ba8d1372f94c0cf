"""The places of a diagnosis: the lines of the user's code in which ranks are."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.blame.cause import Cause, first_waits
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States, broken_by
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import (
    Frame,
    SourceContext,
    called_in_threads,
    group_by_main_stack,
    innermost_user_frame,
    inside_the_test,
    is_library,
)
from pytest_multihost.core.model.verdict import Place, PlaceGroup, RankPlace, blamed_ranks
from pytest_multihost.core.outcome import Finding


def culprit_place(
    cause: Cause, states: States, result: WorldResult, finding: Finding, context: SourceContext
) -> RankPlace | None:
    """Return the first culprit's innermost frame in the user's own code.

    If the culprit has left the operation that the others wait in, return the line that began it.
    """
    blamed = blamed_ranks(cause.culprits, cause.cycle)
    if not blamed:
        return None
    rank = blamed[0]
    frame = _frame_of_child(cause, rank, result)
    frame = frame or _frame_of_side(cause, rank)
    frame = frame or _user_frame(rank, states[rank], result, finding)
    if cause.kind == "transport" and cause.operation is not None:
        left = broken_by(cause.operation, states[rank])
        frame = left.frame if left is not None else None
    # A rank that has returned from the test made its mistake before.
    if frame is None and cause.kind == "mismatch" and cause.operation in states[rank].known:
        frame = cause.operation.frame if cause.operation is not None else None
    return _place(rank, frame, context) if frame is not None else None


def _frame_of_side(cause: Cause, rank: int) -> Frame | None:
    """Return the user's line from which a rank entered an operation of its side."""
    return next((each.frame for each, ranks in cause.sides if rank in ranks), None)


def rank_places(
    cause: Cause, states: States, result: WorldResult, finding: Finding, context: SourceContext
) -> Iterator[RankPlace]:
    """Yield the user's line of each rank that waits or is waited for, as far as it has one.

    For a rank that waits in an operation, this is the line of the operation, because its main
    thread may be elsewhere.
    """
    waited = {rank: each.frame for each, ranks in cause.sides for rank in ranks}
    waited |= {wait.rank: wait.operation.frame for wait in first_waits(cause) if wait.operation}
    for rank in sorted({*cause.waiting, *cause.culprits, *cause.cycle}):
        frame = waited.get(rank) or _frame_of_child(cause, rank, result)
        frame = frame or _user_frame(rank, states[rank], result, finding)
        if frame is not None:
            yield _place(rank, frame, context)


def _frame_of_child(cause: Cause, rank: int, result: WorldResult) -> Frame | None:
    """Return the user's line in the child of a culprit that does not do its part."""
    if cause.child is None or rank not in cause.culprits:
        return None
    awaiting = [f for dump in result.dumps if dump.rank == rank for f in dump.awaiting]
    stacks = [each for dump in result.dumps if dump.rank == rank for each in dump.children]
    frames = (each.own_frames for each in stacks if each.pid == cause.child.pid)
    # On the stack of an event loop there is only the loop.
    return awaiting[0] if len(awaiting) == 1 else innermost_user_frame(next(frames, ()))


def _user_frame(rank: int, state: RankState, result: WorldResult, finding: Finding) -> Frame | None:
    """Return a rank's innermost frame in the user's own code, None if it returned from the test."""
    error = finding.ranks[rank].error
    if state.condition == "raised" and error is not None and error.file and error.line:
        return Frame(error.file, error.line, error.function or "")
    if state.condition == "finished":
        return None
    dump = next((each for each in result.dumps if each.rank == rank and each.main), None)
    thread = dump.main if dump is not None else None
    frames = inside_the_test(thread.frames) if thread is not None else []
    called = called_in_threads(dump) if dump is not None else ()
    if len(called) == 1:
        return called[0]
    if dump is not None and len(dump.awaiting) == 1:
        return dump.awaiting[0]  # on the stack there is only the event loop
    inside = state.pending
    if state.condition == "died":  # it is in its last operation
        inside = tuple(each for each in reversed(state.known) if each.is_open)
    pending = (each.frame for each in inside if each.frame is not None)
    return innermost_user_frame(frames) or next(pending, None)


def _place(rank: int, frame: Frame, context: SourceContext) -> RankPlace:
    at = context.place(frame)
    return RankPlace(rank, at.file, at.line, at.function, at.source)


def place_groups(result: WorldResult, context: SourceContext) -> Iterator[PlaceGroup]:
    """Yield where the ranks' threads were: the user's frames and the calls inside them."""
    for group in group_by_main_stack(result.dumps):
        inside = inside_the_test(group.frames)
        last_user = next((i for i, f in enumerate(inside) if not is_library(f.file)), 0)
        shown: tuple[Place, ...] = tuple(map(context.place, inside[max(0, last_user - 1) :]))
        yield PlaceGroup(group.ranks, shown)
