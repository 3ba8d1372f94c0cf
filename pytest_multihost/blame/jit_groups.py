"""Who takes part in a collective that only native frames have told of: a jitted function's.

The frames do not tell. But a rank notes on which processes the programs run that it starts from
Python, and from which line of the user's: the first call of each goes that way (jax 0.10.2, where
later ones stay in C++, and those of functions with side effects never do).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_multihost.blame.native_operations import OF_PROGRAMS
from pytest_multihost.model.operation import PROGRAM_SCOPE, Operation, program_scope
from pytest_multihost.model.snapshot import RankSnapshot
from pytest_multihost.model.stack import Frame
from pytest_multihost.model.user_code import innermost_user_frame

_STARTS = ("jax/_src/interpreters/pxla.py", "__call__")
"""File and function in which jax starts a program from Python."""


def with_members(seen: RankSnapshot, frames: Sequence[Frame]) -> RankSnapshot:
    """Return a rank's snapshot with the members of what native frames have told of, where known.

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
