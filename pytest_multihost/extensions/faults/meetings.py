"""Find operations that end for a rank only after every rank of the world has entered them.

Everything that any rank does before such an operation happens before everything after it.
"""

from __future__ import annotations

from types import FrameType

from pytest_multihost.core.model.collectives import BY_NAME, of_function

_FRAMES = 20
"""How many frames out to search for torch's own function."""


def meets_all(frame: FrameType | None, name: str, size: int) -> bool:
    """Return whether an operation that is about to begin certainly waits for all ranks.

    Args:
        size: Number of ranks of the world.
    """
    collective = BY_NAME.get(name)
    if collective is None or not collective.meets_all:
        return False
    if collective.is_of_world and collective.is_synchronous:
        return True
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if of_function(frame.f_code.co_filename, frame.f_code.co_name) is collective:
            given = frame.f_locals
            is_async = given.get("async_op", not collective.is_synchronous)
            return not is_async and _is_whole(given.get("group"), size)
        frame = frame.f_back
    return False


def _is_whole(group: object, size: int) -> bool:
    """Return whether a process group of torch has all ranks; None stands for the default group."""
    if group is None:
        return True
    try:
        return bool(group.size() == size)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - the user may have passed any object
        return False
