"""A barrier on the coordination service before one replica broadcasts a checkpoint (orbax).

With orbax's `SingleReplicaArrayHandler` one replica reads a checkpoint and broadcasts it. The other
replicas enter the broadcast at once and wait in that collective until the reading is over.

Published: https://github.com/google/orbax/issues/3181 reports that the broadcast hangs for ever.
The report claims that the waiting ranks compile the broadcast, and that compiling needs the reading
rank. It asks for `multihost.sync_global_processes(name)` before the broadcast.

Measured (jax 0.10.2 on CPU, orbax 0.11.33 and 0.12.8): compiling is local and waits for no rank.
The collective's timeout expires, and the waiting ranks get an error:

* If the collective is the first between these devices, gloo's connection timeout of 30 s applies.
  No setting changes it.
* Otherwise `--xla_cpu_collective_timeout_seconds` applies, 1800 s unless set.

By default `sync_global_processes(name)` is a collective itself, so it fails in the same way after
the same time. A barrier on the coordination service is not a collective. Its caller sets the
timeout, and its error names the missing ranks. This module provides that barrier. It was not tested
on an accelerator, where the timeouts differ and the barrier is the same.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Literal

from pytest_multihost.fixes import Fix, refuse_unknown

Mesh = Any
"""A mesh of jax's, which the type checker does not see."""

Client = Any
"""The client of jax's coordination service."""


FIX = Fix(
    name="orbax_barrier",
    title="a coordination-service barrier before the single-replica broadcast",
    upstream="https://github.com/google/orbax/issues/3181",
    symptom="ranks that wait for the replica that reads fail in the broadcast, on CPU with "
    "'Gloo all-reduce failed' or 'Gloo context initialization failed'",
    affected=("orbax-checkpoint>=0.11.32",),
    tried=("orbax-checkpoint==0.11.33", "orbax-checkpoint==0.12.8", "jax==0.10.2"),
    differs="it is the collective's timeout and no deadlock of the compiler; the device barrier "
    "that the report asks for has the same timeout and fails in the same way",
)

Barrier = Literal["coordination", "device"]

_PREFIX = "pre_broadcast_barrier"
_KNOWN = ("0.11.32", "0.12.8")
_calls: Counter[str] = Counter()


class BarrierTimeoutError(TimeoutError):
    """Not all processes came to a barrier in time.

    Attributes:
        missing: The processes that had not arrived when this one's wait timed out, in order. Empty
            if all had arrived by then, the last (perhaps this one) too late.
        timeout_s: Seconds that the barrier was given.
    """

    def __init__(self, name: str, missing: tuple[int, ...], timeout_s: float) -> None:
        where = f"arrive at {name!r} within {timeout_s:g} s"
        names = f"process{'es' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        text = f"{names} did not {where}"
        too_late = f"not all did {where}, the last came after others gave up"
        super().__init__(f"Barrier timed out: {text if missing else too_late}")
        self.name = name
        self.missing = missing
        self.timeout_s = timeout_s


def pre_broadcast_barrier(
    name: str, *, timeout_s: float, processes: Collection[int] | None = None
) -> None:
    """Wait until all processes are here, outside of any collective.

    Call it on all processes between reading and broadcasting. It is a barrier of jax's coordination
    service: no device takes part, nothing is compiled, and no timeout of a collective runs. In
    a program of one process it does nothing. A name may be used again, as often on each process.

    Args:
        name: Says which barrier it is, the same on all processes.
        timeout_s: Seconds to wait. Must exceed the longest time that any of them may come late:
            the reading of the checkpoint on the slowest day.
        processes: The processes that take part, by their index; None for all.

    Raises:
        BarrierTimeoutError: Not all came in time. It names the missing ones.
        RuntimeError: `jax.distributed` is not initialised.
    """
    import jax

    all_processes = frozenset(range(jax.process_count()) if processes is None else processes)
    if all_processes <= {jax.process_index()}:
        return
    client = _client()
    members = zlib.crc32(repr(sorted(all_processes)).encode())
    key = f"{_PREFIX}/{name}/{members:08x}"
    _calls[key] += 1
    barrier_id = f"{key}/{_calls[key]}"  # belongs to these processes and to this call alone
    arrived = f"{barrier_id}/{jax.process_index()}"
    client.key_value_set(arrived, "")
    try:
        client.wait_at_barrier(barrier_id, max(1, round(timeout_s * 1000)), sorted(all_processes))
    except Exception as error:
        # jax has one type for all errors of a barrier.
        if not any(text in str(error) for text in ("DEADLINE_EXCEEDED", "Barrier timed out")):
            raise
        found = client.key_value_dir_get(f"{barrier_id}/")
        missing = all_processes - {int(each.rpartition("/")[2]) for each, _ in found}
        raise BarrierTimeoutError(name, tuple(sorted(missing)), timeout_s) from error
    client.key_value_delete(arrived)


def _client() -> Client:
    """Return the client of the coordination service; jax has no public way to it."""
    from jax._src.distributed import global_state

    if global_state.client is None:
        raise RuntimeError(
            "There is no coordination service to wait on: jax has several processes, but "
            "jax.distributed.initialize() was not called in this one."
        )
    return global_state.client


@contextlib.contextmanager
def patch_orbax_single_replica_restore(
    barrier: Barrier | None = "coordination", *, timeout_s: float = 1800.0
) -> Iterator[None]:
    """Have orbax's single-replica restore wait at a barrier before it broadcasts, in this block.

    Use it on all processes. It replaces `multislice.broadcast_one_replica_to_all`.

    Args:
        barrier: "coordination": `pre_broadcast_barrier`, the fix. "device": the report's request,
            which is not a fix. None: nothing.
        timeout_s: Seconds that the coordination barrier waits; see `pre_broadcast_barrier`.

    Raises:
        UnknownVersionError: This orbax is older than 0.11.32 or newer than 0.12.8.
        ValueError: There is no such barrier.
    """
    from orbax.checkpoint import version
    from orbax.checkpoint._src.multihost import multihost, multislice

    first, last = _KNOWN
    instead = "Call pre_broadcast_barrier between your own reading and broadcasting instead."
    refuse_unknown("orbax-checkpoint", version.__version__, first=first, last=last, instead=instead)
    if barrier not in {"coordination", "device", None}:
        raise ValueError(f"barrier must be 'coordination', 'device' or None, not {barrier!r}")
    original, numbers = multislice.broadcast_one_replica_to_all, itertools.count()

    @functools.wraps(original)
    def broadcast(in_tree: object, global_mesh: Mesh, *args: object, **kwargs: object) -> object:
        if barrier == "coordination":
            processes = {device.process_index for device in global_mesh.devices.flat}
            pre_broadcast_barrier("orbax restore", timeout_s=timeout_s, processes=processes)
        elif barrier == "device":
            multihost.sync_global_processes(f"{_PREFIX}/{next(numbers)}")
        return original(in_tree, global_mesh, *args, **kwargs)

    multislice.broadcast_one_replica_to_all = broadcast
    try:
        yield
    finally:
        multislice.broadcast_one_replica_to_all = original
