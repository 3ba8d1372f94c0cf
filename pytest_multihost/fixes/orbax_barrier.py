"""A barrier on the coordination service before one replica broadcasts what it has read (orbax).

With orbax's `SingleReplicaArrayHandler` one replica reads a checkpoint and broadcasts it. The
others enter the broadcast at once and wait in it, a collective, for as long as the reading takes.

Published: https://github.com/google/orbax/issues/3181 reports that it hangs for ever: the ranks
that wait are said to compile the broadcast, which is said to need the rank that reads. It asks for
`multihost.sync_global_processes(name)` before the broadcast.

Measured (jax 0.10.2 on CPU, orbax 0.11.33 and 0.12.8): compiling is local and waits for no rank.
What expires is the timeout of the collective, and the ranks that wait get an error:

* where the collective is the first between these devices, after gloo's 30 s for connecting them,
  which no setting changes;
* otherwise after `--xla_cpu_collective_timeout_seconds`, 1800 s unless set.

`sync_global_processes(name)` is by default a collective itself: it fails in the same way, after the
same time. A barrier on the coordination service is no collective, has a timeout that its caller
sets, and knows who is missing. It is what this module has. No accelerator was tried: there the
timeouts are others, and the barrier is the same.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal

from pytest_multihost.fixes.fix import Fix, refuse_unknown

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
        name: The barrier's.
        missing: The processes that had not arrived when this one's wait timed out, in order. Empty
            if all had arrived by then, the last (perhaps this one) too late.
        timeout_s: Seconds that the barrier was given.
    """

    def __init__(self, name: str, missing: tuple[int, ...], timeout_s: float) -> None:
        where = f"arrive at {name!r} within {timeout_s:g} s"
        super().__init__(
            f"Barrier timed out: {_named(missing)} did not {where}"
            if missing
            else f"Barrier timed out: not all did {where}, the last came after others gave up"
        )
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
        BarrierTimeoutError: Not all came in time. It names those that are missing.
        RuntimeError: `jax.distributed` is not initialised.
    """
    import jax

    all_processes = frozenset(range(jax.process_count()) if processes is None else processes)
    if all_processes <= {jax.process_index()}:
        return
    client = _client()
    barrier_id = _next_barrier_id(name, all_processes)
    arrived = f"{barrier_id}/{jax.process_index()}"
    client.key_value_set(arrived, "")
    try:
        client.wait_at_barrier(barrier_id, max(1, round(timeout_s * 1000)), sorted(all_processes))
    except Exception as error:
        if not _is_timeout(error):
            raise
        missing = tuple(sorted(all_processes - _arrived(client, barrier_id)))
        raise BarrierTimeoutError(name, missing, timeout_s) from error
    client.key_value_delete(arrived)


@contextlib.contextmanager
def patch_orbax_single_replica_restore(
    barrier: Barrier | None = "coordination", *, timeout_s: float = 1800.0
) -> Iterator[None]:
    """Have orbax's single-replica restore wait at a barrier before it broadcasts, in this block.

    Use it on all processes. It replaces `multislice.broadcast_one_replica_to_all`.

    Args:
        barrier: "coordination": `pre_broadcast_barrier`, the fix. "device": what the report asks
            for, which is not one. None: nothing.
        timeout_s: Seconds that the coordination barrier waits; see `pre_broadcast_barrier`.

    Raises:
        UnknownVersionError: This orbax is older than 0.11.32 or newer than 0.12.8.
        ValueError: There is no such barrier.
    """
    from orbax.checkpoint import version
    from orbax.checkpoint._src.multihost import multislice

    first, last = _KNOWN
    instead = "Call pre_broadcast_barrier between your own reading and broadcasting instead."
    refuse_unknown("orbax-checkpoint", version.__version__, first=first, last=last, instead=instead)
    wait = _barrier_call(barrier, timeout_s)
    original = multislice.broadcast_one_replica_to_all

    @functools.wraps(original)
    def broadcast(in_tree: object, global_mesh: Mesh, *args: object, **kwargs: object) -> object:
        wait(global_mesh)
        return original(in_tree, global_mesh, *args, **kwargs)

    multislice.broadcast_one_replica_to_all = broadcast
    try:
        yield
    finally:
        multislice.broadcast_one_replica_to_all = original


def _barrier_call(barrier: Barrier | None, timeout_s: float) -> Callable[[Mesh], None]:
    """Return a function that makes the processes of a mesh wait for each other."""
    if barrier is None:
        return lambda _: None
    if barrier == "coordination":
        return functools.partial(_wait_on_coordination_service, timeout_s=timeout_s)
    if barrier == "device":
        return functools.partial(_wait_on_devices, numbers=itertools.count())
    raise ValueError(f"barrier must be 'coordination', 'device' or None, not {barrier!r}")


def _wait_on_coordination_service(mesh: Mesh, *, timeout_s: float) -> None:
    processes = {device.process_index for device in mesh.devices.flat}
    pre_broadcast_barrier("orbax restore", timeout_s=timeout_s, processes=processes)


def _wait_on_devices(_: object, *, numbers: Iterator[int]) -> None:
    from orbax.checkpoint._src.multihost import multihost

    multihost.sync_global_processes(f"{_PREFIX}/{next(numbers)}")


def _client() -> Client:
    """Return the client of the coordination service; jax has no public way to it."""
    from jax._src.distributed import global_state

    if global_state.client is None:
        raise RuntimeError(
            "There is no coordination service to wait on: jax has several processes, but "
            "jax.distributed.initialize() was not called in this one."
        )
    return global_state.client


def _next_barrier_id(name: str, all_processes: frozenset[int]) -> str:
    """Return an id that belongs to these processes and to this call alone."""
    members = zlib.crc32(repr(sorted(all_processes)).encode())
    key = f"{_PREFIX}/{name}/{members:08x}"
    _calls[key] += 1
    return f"{key}/{_calls[key]}"


def _arrived(client: Client, barrier_id: str) -> set[int]:
    return {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get(f"{barrier_id}/")}


def _is_timeout(error: Exception) -> bool:
    """Whether a barrier's error says that it took too long; jax has one type for all of them."""
    return "DEADLINE_EXCEEDED" in str(error) or "Barrier timed out" in str(error)


def _named(processes: tuple[int, ...]) -> str:
    plural = "es" if len(processes) > 1 else ""
    return f"process{plural} {', '.join(map(str, processes))}"
