"""Which operations are over for a rank only once every rank of the world has entered them.

What a rank has done before such an operation has happened before all that any rank does after it.
"""

from __future__ import annotations

from types import FrameType

_MATCHED = frozenset(
    {
        *("all_gather", "all_gather_into_tensor", "all_reduce", "barrier"),
        *("monitored_barrier", "reduce_scatter", "reduce_scatter_tensor"),
    }
)
"""Operations of torch's in which each member waits for every other, if they are synchronous."""

_ALWAYS = frozenset({"process_allgather", "sync_global_devices", "world.barrier", "world.gather"})
"""Operations that are synchronous, and all ranks' by definition."""

_FRAMES = 20
"""How far out torch's own function is looked for."""


def meets_all(frame: FrameType | None, name: str, size: int) -> bool:
    """Return whether an operation that is about to begin certainly waits for all ranks.

    Args:
        frame: The innermost frame.
        name: The operation.
        size: Ranks of the world.
    """
    if name in _ALWAYS or name not in _MATCHED:
        return name in _ALWAYS
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if "torch/distributed" in frame.f_code.co_filename and frame.f_code.co_name == name:
            given = frame.f_locals
            is_async = given.get("async_op", name != "monitored_barrier")
            return not is_async and _is_whole(given.get("group"), size)
        frame = frame.f_back
    return False


def _is_whole(group: object, size: int) -> bool:
    """Return whether a group of torch's has all ranks; None stands for the default one."""
    if group is None:
        return True
    try:
        return bool(group.size() == size)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - whatever the user has given
        return False
