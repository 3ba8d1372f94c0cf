"""What the stacks of ranks, dumped at the end, add to what was seen of them from outside.

Native frames do not say who takes part in a jitted function's collective. But a rank notes on which
processes the programs run that it starts from Python, and from which line of the user's: the first
call of each goes that way (jax 0.10.2, where later ones stay in C++, and those of functions with
side effects never do). The stack says which of these lines the rank is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_multihost.blame.inferred.native_frames import OF_PROGRAMS
from pytest_multihost.model.operation import PROGRAM_SCOPE, Operation, program_scope
from pytest_multihost.model.snapshot import RankSnapshot, WorldSnapshot
from pytest_multihost.model.stack import Dump, Frame, innermost_user_frame

_STARTS = ("jax/_src/interpreters/pxla.py", "__call__")
"""File and function in which jax starts a program from Python."""


def with_stacks(
    snapshots: Sequence[WorldSnapshot], dumps: Sequence[Dump]
) -> tuple[WorldSnapshot, ...]:
    """Return the snapshots with who takes part in jitted collectives, and who is in native code.

    Args:
        snapshots: Of the world.
        dumps: Stacks of its ranks at the end.
    """
    by_rank = {each.rank: each for each in dumps}
    return tuple(
        replace(snapshot, ranks=tuple(_with_stack(each, by_rank) for each in snapshot.ranks))
        for snapshot in snapshots
    )


def _with_stack(seen: RankSnapshot, dumps: Mapping[int, Dump]) -> RankSnapshot:
    dump = dumps.get(seen.rank)
    frames = dump.main.frames if dump is not None and dump.main is not None else ()
    # A main thread that computes holds the GIL in Python as well, from line to line. Only one that
    # did not run a signal handler when asked for its stack is in native code for long.
    is_native = seen.label != "RUNNING" or (dump is not None and dump.is_deaf)
    return with_members(replace(seen, holds_gil=seen.holds_gil and is_native), frames)


def with_members(seen: RankSnapshot, frames: Sequence[Frame]) -> RankSnapshot:
    """Return a rank's snapshot with the members of its jitted collectives, where known.

    Args:
        seen: The rank.
        frames: Stack of its main thread, innermost first; empty where that is not known.
    """
    if all(each.has_members for each in seen.operations):
        return seen
    group = _members(seen, frames)
    operations = tuple(_narrowed(each, group) for each in seen.operations)
    return replace(seen, operations=operations)


def _narrowed(operation: Operation, group: tuple[int, ...] | None) -> Operation:
    if operation.has_members or operation.name not in OF_PROGRAMS or group is None:
        return operation
    return replace(operation, group=group, has_members=True)


def _members(seen: RankSnapshot, frames: Sequence[Frame]) -> tuple[int, ...] | None:
    """Return the processes of the program that a rank is in; None where it may be several.

    That is the last one where the stack shows that a program is being started. Else it is one of
    those that were started from where the stack is now; or, where none was, any.
    """
    programs = sorted(
        (last, key[0], key[2]) for key, last in seen.entered if key[2].startswith(PROGRAM_SCOPE)
    )
    if any(each.function == _STARTS[1] and each.file.endswith(_STARTS[0]) for each in frames):
        programs = programs[-1:]
    user = innermost_user_frame(frames)
    scope = program_scope(user.file, user.line) if user is not None else ""
    here = [each for each in programs if each[2] == scope]
    groups = {group for _, group, _ in here or programs}
    return groups.pop() if len(groups) == 1 else None
