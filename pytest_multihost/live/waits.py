"""The operation that a rank's main thread is in, by its Python frames.

They show the function of torch or jax and the user's line. They show neither which call of it this
is nor the group, so what follows from them is never certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.model.operation import Operation, OperationKind
from pytest_multihost.model.stack import Frame, innermost_user_frame, is_library

_TORCH = "torch/distributed/distributed_c10d.py"
_MULTIHOST = "jax/experimental/multihost_utils.py"
_JAX = "jax/_src/distributed.py"

_COLLECTIVES: Mapping[str, str] = {
    _TORCH: (
        r"(all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|gather|scatter|reduce)\w*"
        r"|(monitored_)?barrier|new_group|init_process_group|split_group|destroy_process_group"
    ),
    _MULTIHOST: r"sync_global_devices|process_allgather|broadcast_one_to_all|assert_equal",
    _JAX: r"initialize|shutdown",
}
"""Functions in which a rank waits for the other members of a group, by the file they are in."""

_TRANSFERS = r"(send|recv)(_object_list)?|batch_isend_irecv"
_WAITED = re.compile(r"\.wait\(")
"""A call in the user's line that may wait for the end of work; C++ has no frame."""

_RUNTIMES = ("/torch/", "/jax/", "/jaxlib/")


@dataclass(frozen=True, slots=True)
class SeenWait:
    """What the frames of a main thread show.

    Attributes:
        operation: The operation that it is in, if any.
        is_unclear: Whether it may be in one that Python's frames do not show.
    """

    operation: Operation | None = None
    is_unclear: bool = False


def seen_wait(
    frames: Sequence[Frame], source: str, *, size: int, at_s: float, is_blocked: bool
) -> SeenWait:
    """Return what the frames of a rank's main thread show.

    Args:
        frames: Innermost first.
        source: The text of the innermost user's line, if it can be read.
        size: Ranks of the job.
        at_s: When the frames were read.
        is_blocked: Whether the thread waits, for something else than a timer.
    """
    user = innermost_user_frame(frames)

    def operation(name: str, kind: OperationKind) -> SeenWait:
        return SeenWait(
            Operation(
                name=name,
                kind=kind,
                group=tuple(range(size)),
                has_members=False,
                sequence=0,
                since_s=at_s,
                waited_s=at_s,
                frame=user,
                source="python-frames",
            )
        )

    for each in reversed(frames):  # the outermost: a barrier may be built of other collectives
        for file, names in _COLLECTIVES.items():
            if each.file.endswith(file) and re.fullmatch(names, each.function):
                return operation(each.function, "collective")
        if each.file.endswith(_TORCH) and re.fullmatch(_TRANSFERS, each.function):
            return operation(each.function, "transfer")
    if not frames or not is_blocked:
        return SeenWait(is_unclear=not frames)
    if not is_library(frames[0].file):
        is_waited = bool(_WAITED.search(source))
        return operation("work.wait", "collective") if is_waited else SeenWait()
    return SeenWait(is_unclear=any(each in frames[0].file for each in _RUNTIMES))
