"""Backend ``nccl``: a torch.distributed process group on GPUs, one rank per GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from pytest_multihost.backends.backend import Backend
from pytest_multihost.backends.gloo import GLOO, group_timeout_s, import_torch, new_store, preload
from pytest_multihost.model.spec import RankSpec

_DRIVER = Path("/proc/driver/nvidia/gpus")


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
    found = gpu_count()
    if found >= size:
        return None
    return f"nccl takes one GPU per rank: {size} ranks, {found} GPU{'s' if found != 1 else ''} here"


def _start(spec: RankSpec) -> None:
    torch = import_torch()
    device = spec.rank - spec.host.ranks.start
    torch.cuda.set_device(device)
    store = new_store(torch.distributed, spec)
    torch.distributed.init_process_group(
        "nccl",
        store=store,
        rank=spec.rank,
        world_size=spec.world.size,
        timeout=timedelta(seconds=group_timeout_s(spec.world)),
        device_id=torch.device("cuda", device),
    )


def _devices() -> Sequence[object]:
    torch = import_torch()
    return (torch.device("cuda", torch.cuda.current_device()),)


NCCL = Backend(
    name="nccl",
    package="torch",
    extra="torch",
    start=_start,
    preload=preload,
    devices=_devices,
    lacking=_lacking,
    symptoms=(
        *GLOO.symptoms,
        r"ncclRemoteError|NCCL.*(remote process exited|Connection closed by remote peer)",
        r"Watchdog caught collective operation timeout",
    ),
    fatal_symptoms=(r"Watchdog caught collective operation timeout",),
)
