"""Let each replica work on its own devices while a mesh over all devices is in context (orbax).

Within `jax.set_mesh(mesh)` every jitted function and every eager operation takes part in that mesh.
jax refuses a function on other devices with "Received incompatible devices for jitted computation".
Orbax's single-replica restore runs such functions in two places: `create_zeros`, where the
receiving replicas allocate memory, and `_globalize_single_replica_arrays`, which adds an axis to
each shard of the reader.

Published: https://github.com/google/orbax/issues/3184 names the first place and proposes to enter a
mesh of the replica's own devices there.

Measured (orbax 0.11.33; jax 0.8.2, 0.9.1 and 0.10.2): that change is necessary but not sufficient.
The receiving replicas then pass `create_zeros` and wait in the broadcast, while the reader still
fails in the second place, so an error on all ranks becomes a hang. The change also needs
`jax.set_mesh(local_mesh)`, because `with local_mesh:` has no effect. Orbax 0.11.40 fixes both
places.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, ParamSpec, TypeVar

from pytest_multihost.fixes import Fix, refuse_unknown

Mesh = Any
"""A mesh of jax's, which the type checker does not see."""

Namespace = Any
"""A module or class in which something is replaced."""


FIX = Fix(
    name="mesh_scope",
    title="a local mesh in context where a replica works alone",
    upstream="https://github.com/google/orbax/issues/3184",
    symptom="a single-replica restore within jax.set_mesh(mesh) fails with 'Received incompatible "
    "devices for jitted computation'; with half of the fix, it hangs",
    affected=("orbax-checkpoint>=0.11.32,<0.11.40",),
    tried=("orbax-checkpoint==0.11.33", "jax==0.8.2", "jax==0.9.1", "jax==0.10.2"),
    upstream_since="orbax-checkpoint>=0.11.40",
    differs="create_zeros is one of two places; fixed alone, the rank that reads still raises and "
    "all others wait for it in the broadcast",
)

Part = Literal["complete", "published"]
Call = Callable[..., Any]

_KNOWN = ("0.11.32", "0.11.39")
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_outer_mesh: contextvars.ContextVar[Mesh] = contextvars.ContextVar("outer_mesh", default=None)


@contextlib.contextmanager
def local_mesh_scope(mesh: Mesh) -> Iterator[None]:
    """Set `mesh` as the context mesh in this block; afterwards restore the earlier one.

    Around a computation of a process on its own devices while a mesh over all processes is in
    context. It holds for this thread alone, and cannot be used within `jax.jit`.

    Args:
        mesh: The devices that take part, a `jax.sharding.Mesh`; None for no mesh at all: each
            operation then runs where its arguments are.
    """
    import jax
    import numpy as np

    # The context without a mesh; jax before 0.10 does not take None for it.
    no_mesh = jax.sharding.Mesh(np.empty((), dtype=object), ())
    with jax.set_mesh(no_mesh if mesh is None else mesh):
        yield


def without_context_mesh(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Return a function that runs `call` in a thread without a context mesh.

    `without_context_mesh(checkpointer.restore)(path, args=args)` works with every version of orbax
    and jax: a context mesh belongs to a thread, and a new one has none. Context variables are
    those of the caller.
    """

    @functools.wraps(call)
    def alone(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        bound = functools.partial(call, *args, **kwargs)
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1, thread_name_prefix="without-context-mesh") as threads:
            return threads.submit(context.run, bound).result()

    return alone


@contextlib.contextmanager
def patch_orbax_mesh_scope(part: Part = "complete") -> Iterator[None]:
    """Have orbax's single-replica restore work within `jax.set_mesh(mesh)`, in this block.

    Use it on all processes. It replaces functions of orbax's `multislice` and
    `jax_array_handlers`.

    Args:
        part: "complete" for both places. "published" for `create_zeros` alone, as it was reported:
            to show that it makes an error a hang, and for no other use.

    Raises:
        UnknownVersionError: This orbax is older than 0.11.32 or newer than 0.11.39.
        ValueError: There is no such part.
    """
    from orbax.checkpoint import version
    from orbax.checkpoint._src.multihost import multislice
    from orbax.checkpoint._src.serialization import jax_array_handlers

    first, last = _KNOWN
    instead = "Orbax needs no patch since 0.11.40; for any version there is without_context_mesh."
    refuse_unknown("orbax-checkpoint", version.__version__, first=first, last=last, instead=instead)
    if part not in {"complete", "published"}:
        raise ValueError(f"part must be 'complete' or 'published', not {part!r}")
    replaced: list[tuple[Namespace, str, Call]] = [
        (jax_array_handlers, "_single_replica_deserialize_and_broadcast", _zeros_on_own_mesh),
        (multislice, "broadcast_one_replica_to_all", _on_outer_mesh),
        (multislice, "_globalize_single_replica_arrays", _on_no_mesh),
    ]
    with contextlib.ExitStack() as patches:
        for owner, name, wrap in replaced if part == "complete" else replaced[:-1]:
            original = getattr(owner, name)
            patches.callback(setattr, owner, name, original)
            bound = functools.partial(wrap, original)
            setattr(owner, name, functools.wraps(original)(bound))
        yield


async def _zeros_on_own_mesh(original: Call, /, *given: Any) -> object:  # noqa: ANN401 - orbax's
    """Restore with the replica's own mesh in context, where that begins with making zeros.

    Where it begins with reading, the context is kept: other coroutines of the thread run meanwhile.
    """
    import jax
    from orbax.checkpoint._src.multihost import multislice

    _, _, shardings, own_shardings, axis, primary_replica, *_ = given
    mesh = shardings[0].mesh
    _, readers = multislice.get_primary_replica_ids_and_pids(axis, mesh, primary_replica)
    if jax.process_index() in readers:
        return await original(*given)
    token = _outer_mesh.set(jax.sharding.get_mesh())
    try:
        with local_mesh_scope(own_shardings[0].mesh):
            return await original(*given)
    finally:
        _outer_mesh.reset(token)


def _on_outer_mesh(original: Call, /, *given: object, **named: object) -> object:
    """Broadcast with the mesh in context that the restore was called with: all take part in it."""
    mesh = _outer_mesh.get()  # None if it was never changed: this process's replica reads
    with local_mesh_scope(mesh) if mesh is not None else contextlib.nullcontext():
        return original(*given, **named)


def _on_no_mesh(original: Call, /, *given: object, **named: object) -> object:
    """Give each shard its axis on its own device; upstream enters a mesh of one device for each."""
    with local_mesh_scope(None):
        return original(*given, **named)
