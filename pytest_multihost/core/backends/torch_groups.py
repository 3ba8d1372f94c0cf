"""Backends ``gloo`` (CPU) and ``nccl`` (GPUs): process groups of torch.distributed."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytest_multihost.core.backends.backend import Backend
from pytest_multihost.core.model.spec import RankSpec, WorldSpec
from pytest_multihost.core.trust import require_own_listener

_DRIVER = Path("/proc/driver/nvidia/gpus")

_TORCH_DEFAULT_S = 1800.0
"""torch's own timeout of gloo groups (torch.distributed.constants.default_pg_timeout)."""

_MARGIN_S = 60.0


def group_timeout_s(world: WorldSpec) -> float:
    """Return a group timeout, in seconds, that the test's own deadline always precedes.

    It is torch's own if runtimes keep theirs, because the test is about its effects.
    """
    if world.keeps_timeouts:
        return _TORCH_DEFAULT_S
    return max(_TORCH_DEFAULT_S, world.startup_timeout_s + world.timeout_s + _MARGIN_S)


def _start_gloo(spec: RankSpec) -> None:
    distributed = _import_torch().distributed
    timeout = timedelta(seconds=group_timeout_s(spec.world))
    if timeout.total_seconds() > _TORCH_DEFAULT_S:
        # new_group() does not inherit the timeout of init_process_group(); it takes this one.
        distributed.distributed_c10d.default_pg_timeout = timeout
    store = _new_store(distributed, spec)
    store.set_timeout(timeout)  # its default is 300 s
    distributed.init_process_group(
        "gloo", store=store, rank=spec.rank, world_size=spec.world.size, timeout=timeout
    )


def _new_store(distributed: Any, spec: RankSpec) -> Any:  # noqa: ANN401 - not seen by mypy
    """Return the store of the rendezvous.

    A FileStore, not TCP: no port to lose, no connect back-off, no reverse DNS look-ups (64 ranks:
    1.3 s instead of 11 s). Ranks on several real machines (attach) may share no file system,
    though; these get a TCPStore.
    """
    if spec.world.shares_files:
        return distributed.FileStore(str(Path(spec.scratch, "gloo-store")), spec.world.size)
    address, port = spec.world.host_of(0).address, spec.ports[1]
    # libuv would use io_uring, whose waits cannot be seen from outside: no hang could be proven.
    is_here = spec.host.address == address  # elsewhere, the port of that number is another one
    if is_here:
        require_own_listener(port)
    store = distributed.TCPStore(
        address, port, spec.world.size, is_master=spec.is_primary, use_libuv=False
    )
    if is_here:  # another user may have listened meanwhile, and stopped to while he was looked for
        require_own_listener(port)
    return store


def _import_torch() -> Any:  # noqa: ANN401 - torch is not seen by the type checker
    """Import torch with its distributed package, and return it. That starts no thread."""
    import torch
    import torch.distributed

    return torch


_NOISE = (
    r"DEBUG +c10d-NullHandler-default:",
    r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.",
)
"""Lines that torch and gloo print about their own connections."""

_HINTS = {
    "trying to initialize the default process group twice": "The backend has initialised the"
    " process group already: remove the call of init_process_group, or choose another backend"
    ' (backend="none" in the marker, --backend none of multihost run).'
}

GLOO = Backend(
    name="gloo",
    package="torch",
    extra="torch",
    start=_start_gloo,
    preload=_import_torch,
    devices=lambda: (_import_torch().device("cpu"),),
    may_run_jax=False,
    hints=_HINTS,
    noise=_NOISE,
    symptoms=(
        r"transport/tcp/\S+ (Connection closed by peer|.*reset by peer|Connect timeout)",
        r"transport/tcp/\S+ (Timed out waiting|.*Broken pipe|Application timeout)",
        r"transport/tcp/\S+ timed out connecting",
        r"Ranks? [\d, ]+ failed to pass monitoredBarrier",
        r"[Ww]ait timeout( after \d+ms|$)",
        r"Timeout waiting for key: .* after \d+ ms",
        r"Socket Timeout|The client socket has timed out",
        r"[Ff]ailed to recv, got 0 bytes|sendBytes failed",
        r"DistNetworkError: .*(Connection reset by peer|Broken pipe|Connection was likely closed)",
        r"^RuntimeError: Operation timed out!$",
        # After a timeout, gloo fails every operation of the group like this.
        r"^RuntimeError: Application timeout caused pair closure$",
    ),
)


def gpu_count() -> int:
    """Return the number of GPUs a rank may use, without opening the driver.

    A process that has initialized CUDA cannot be forked any more: its children cannot use the GPU.
    So the driver's listing in /proc is read instead, and CUDA_VISIBLE_DEVICES.
    """
    present = len(list(_DRIVER.iterdir())) if _DRIVER.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    named = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return min(present, len(named))


def _lacking(size: int) -> str | None:
    return None if gpu_count() else f"nccl needs a GPU: {size} ranks, no GPU here"


def _start_nccl(spec: RankSpec) -> None:
    torch = _import_torch()
    # Emulated hosts are on one machine, and have its GPUs together.
    here = range(spec.world.size) if spec.world.shares_files else spec.host.ranks
    gpus = torch.cuda.device_count()
    if gpus < len(here):
        # NCCL refuses two ranks of one host on one GPU. Ranks that each say that they are a host of
        # their own may share it, and connect by sockets.
        os.environ.setdefault("NCCL_HOSTID", f"rank-{spec.rank}")
    # The proof of a hang knows NCCL's threads by their names.
    os.environ.setdefault("NCCL_SET_THREAD_NAME", "1")
    device = (spec.rank - here.start) % gpus
    torch.cuda.set_device(device)
    store = _new_store(torch.distributed, spec)
    torch.distributed.init_process_group(
        "nccl",
        store=store,
        rank=spec.rank,
        world_size=spec.world.size,
        timeout=timedelta(seconds=group_timeout_s(spec.world)),
        device_id=torch.device("cuda", device),
    )


NCCL = Backend(
    name="nccl",
    package="torch",
    extra="torch",
    start=_start_nccl,
    preload=_import_torch,
    devices=lambda: (_import_torch().device("cuda", _import_torch().cuda.current_device()),),
    lacking=_lacking,
    may_run_jax=False,
    operation_error="torch.distributed:DistBackendError",
    symptoms=(
        *GLOO.symptoms,
        r"ncclRemoteError|NCCL.*(remote process exited|Connection closed by remote peer)",
        r"Watchdog caught collective operation timeout",
    ),
    fatal_symptoms=(r"Watchdog caught collective operation timeout",),
)
