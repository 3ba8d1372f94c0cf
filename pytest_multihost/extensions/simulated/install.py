"""Makes torch build its process groups and stores from the simulated ones, in this rank."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.cuda.nccl
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from pytest_multihost.core.rank.recorder.calls import replace_code
from pytest_multihost.core.torch_private import replace_groups, replace_rendezvous
from pytest_multihost.extensions.simulated.group import SimulatedGroup, SimulatedNcclGroup
from pytest_multihost.extensions.simulated.mesh import Mesh, write_mesh
from pytest_multihost.extensions.simulated.store import SimulatedStore

_NCCL_TIMEOUT = timedelta(minutes=10)
"""torch's own timeout of NCCL's groups; a torch without NCCL has none."""

_NO_NCCL = (0, 0, 0)


def install(*, size: int, folder: Path | None, nccl_has_timeouts: bool = False) -> None:
    """Replace torch's classes of gloo and NCCL, and the stores of its rendezvous.

    Programs then ask for "gloo" or "nccl", and get a simulated group.

    Args:
        folder: Where to write the program's first device mesh; None: nowhere.
        nccl_has_timeouts: Whether NCCL's groups have the timeout that torch gives them.
    """
    if nccl_has_timeouts:
        c10d.default_pg_nccl_timeout = _NCCL_TIMEOUT
    if not dist.is_nccl_available():
        # torch asks for it when a collective of NCCL raises, and would raise something else.
        torch.cuda.nccl.version = lambda: _NO_NCCL
    replace_groups(c10d, SimulatedGroup, SimulatedNcclGroup)
    replace_rendezvous(_store_at_address, _store_in_file)
    replace_code(c10d.batch_isend_irecv, _together)
    if folder is not None:
        _note_mesh(folder, size)
    for module in (c10d, dist):
        module.init_process_group = _once(c10d.init_process_group, size)


def _store_at_address(
    _host: str,
    port: int,
    _rank: int,
    _world_size: int,
    timeout: timedelta,
    *_: Any,  # noqa: ANN401 - torch's
    **__: Any,  # noqa: ANN401
) -> SimulatedStore:
    return SimulatedStore(f"port {port}", timeout)


def _store_in_file(path: str, *_: Any) -> SimulatedStore:  # noqa: ANN401 - torch's
    return SimulatedStore(f"file {path}")


def _note_mesh(folder: Path, size: int) -> None:
    """Write the first device mesh of all ranks that has names."""
    original = DeviceMesh.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - torch's
        original(self, *args, **kwargs)
        names, ranks = self.mesh_dim_names, self.mesh.flatten().tolist()
        if names and len(ranks) == size:
            DeviceMesh.__init__ = original
            write_mesh(folder, Mesh(tuple(names), tuple(self.mesh.shape), tuple(ranks)))

    DeviceMesh.__init__ = init


def _together(batch: Callable[..., Any]) -> Callable[..., Any]:
    """Return `batch_isend_irecv` such that NCCL's transfers start together; torch asks the type."""

    @wraps(batch)
    def batch_isend_irecv(p2p_op_list: list[Any]) -> Any:  # noqa: ANN401 - torch's
        group = (p2p_op_list[0].group if p2p_op_list else None) or c10d.group.WORLD
        if not (isinstance(group, SimulatedGroup) and group.supports_coalescing):
            return batch(p2p_op_list)
        group.begin_batch()
        try:
            return batch(p2p_op_list)
        finally:
            group.end_batch()

    return batch_isend_irecv


def _once(init: Callable[..., None], size: int) -> Callable[..., None]:
    """Return `init_process_group` such that a program may call it although the group exists.

    The harness has made the default group before the test; a test that makes it itself gets the
    same one.
    """

    @wraps(init)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,  # noqa: ANN401 - torch's
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        group = c10d.group.WORLD
        is_same = world_size in (-1, size) and group is not None and rank in (-1, group.rank())
        if not (isinstance(group, SimulatedGroup) and group.is_unused and is_same):
            init(backend, init_method, timeout, world_size, rank, *args, **kwargs)
            return
        group.become(backend, timeout, is_bound=kwargs.get("device_id") is not None)

    return init_process_group
