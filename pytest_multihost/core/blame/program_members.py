"""The members of a jitted program's collectives, inferred from the stack of a rank.

When a rank starts a program from Python, it records the program's processes and the user's line.
The first call of each program goes through Python (jax 0.10.2: later calls stay in C++, those of
functions with side effects never do). The stack dumped at the end shows which of these lines the
rank is in, and so which ranks take part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pytest_multihost.core.blame.inferred import OF_PROGRAMS
from pytest_multihost.core.jax_private import START_PROGRAM_FRAME
from pytest_multihost.core.model.operation import Operation, program_scope
from pytest_multihost.core.model.result import RankSnapshot, WorldSnapshot
from pytest_multihost.core.model.stack import Dump, Frame, innermost_user_frame


def with_stacks(
    snapshots: Sequence[WorldSnapshot], dumps: Sequence[Dump]
) -> tuple[WorldSnapshot, ...]:
    """Return the snapshots with the members of jitted collectives, and which ranks hold the GIL."""
    by_rank = {each.rank: each for each in dumps}

    def complete(seen: RankSnapshot, snapshot: WorldSnapshot) -> RankSnapshot:
        dump = by_rank.get(seen.rank)
        frames = dump.main.frames if dump is not None and dump.main is not None else ()
        # A main thread that computes in Python holds the GIL as well. It has been in native code
        # for long only if it ran no signal handler when its stack was requested.
        is_native = seen.label != "RUNNING" or (dump is not None and dump.is_deaf)
        seen = with_members(replace(seen, holds_gil=seen.holds_gil and is_native), frames)
        return with_unread_wait(seen, frames, size=len(snapshot.ranks), at_s=snapshot.at_s)

    return tuple(
        replace(each, ranks=tuple(complete(seen, each) for seen in each.ranks))
        for each in snapshots
    )


_IN_RUNTIME = re.compile(r"-packages/(jax|jaxlib|torch)/(?!utils/data/|multiprocessing/)")
"""Files of a runtime from which native code is called that may wait for other ranks."""


def with_unread_wait(
    seen: RankSnapshot, frames: Sequence[Frame], *, size: int, at_s: float
) -> RankSnapshot:
    """Return a rank's snapshot with the wait of a main thread that is inside of a runtime.

    Its native stack was not read, mostly because the extra `stacks` is not installed. So it is
    unknown which operation it is in, but it is not a rank that comes to none.

    Args:
        frames: Stack of its main thread, innermost first; empty if unknown.
    """
    match = _IN_RUNTIME.search(frames[0].file) if frames else None
    waits = [each for each in seen.operations if each.waited_s is not None and not each.is_of_one]
    if match is None or waits or seen.native or seen.label != "BLOCKED" or seen.holds_gil:
        return seen
    operation = Operation(
        name=f"an operation of {match[1]}",
        kind="collective",
        group=tuple(range(size)),
        has_members=False,
        sequence=0,
        since_s=at_s,
        waited_s=at_s,
        frame=innermost_user_frame(frames),
        source="python-frames",
    )
    return replace(seen, operations=(*seen.operations, operation))


def with_members(seen: RankSnapshot, frames: Sequence[Frame]) -> RankSnapshot:
    """Return a rank's snapshot with the line of its jitted collectives, and the members, if known.

    Args:
        frames: Stack of its main thread, innermost first; empty if unknown.
    """
    programs = [
        (last, group, scope) for (group, _, scope), last in seen.entered if scope.kind == "program"
    ]
    # If the stack shows that a program is being started, it is the last one. Else it is one of the
    # programs started from the user's line in the stack; if there are none, any program.
    file, function = START_PROGRAM_FRAME
    if any(each.function == function and each.file.endswith(file) for each in frames):
        programs = [max(programs, key=lambda each: each[0])] if programs else []
    user = innermost_user_frame(frames)
    scope = program_scope(user.file, user.line) if user is not None else None
    here = [each for each in programs if each[2] == scope]
    groups = {group for _, group, _ in here or programs}
    operations = tuple(
        each
        if each.has_members or each.group_size is not None or each.name not in OF_PROGRAMS
        else replace(
            each,
            frame=each.frame or user,
            group=min(groups) if len(groups) == 1 else each.group,
            has_members=len(groups) == 1,
        )
        for each in seen.operations
    )
    return replace(seen, operations=operations)
