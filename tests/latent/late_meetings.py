"""One rank is late where ranks find each other: stores, messages, sockets, folders."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from expectation import POLLING_TIMEOUT_S, latent
from torch.distributed.distributed_c10d import _get_default_store

from pytest_multihost import at, faults

BUILD_S = 0.3
"""What building a model takes here."""


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))  # <- waits


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.collective("store.set"), min_s=3),
)
def test_waits_for_the_key_of_a_run_only_shortly(world) -> None:
    """Who has not seen the key in time takes the run to be new and skips the restore.

    Source: https://github.com/pytorch/pytorch/issues/85775 (a key that comes too late)
    """
    store = _get_default_store()
    weights = torch.zeros(4)
    resumes = True
    if world.is_primary:
        store.set("resume-from", "step-7")  # <- latent
    else:
        try:
            store.wait(["resume-from"], timedelta(seconds=1))  # <- latent
        except RuntimeError:
            resumes = False
    if resumes:
        dist.broadcast(weights, src=0)  # <- waits
    meet()


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=1, at=at.collective("send")),
)
def test_results_are_expected_in_the_order_of_ranks(world) -> None:
    """The first result is taken from anybody, and believed to be that of rank 1.

    Source: https://github.com/hpc/mpifileutils/pull/26
    """
    if world.is_primary:
        rows = torch.zeros(1)
        dist.recv(rows)
        for rank in range(2, world.size):
            dist.recv(rows, src=rank)  # <- waits
    else:
        time.sleep(BUILD_S * world.rank)
        dist.send(torch.ones(1), dst=0)  # <- latent
        print("sent my rows")


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    timeout=POLLING_TIMEOUT_S,
    by_hand=faults.hold(rank=2, at=at.collective("store.add", nth=2)),
)
def test_counter_of_a_barrier_is_reset(world) -> None:
    """The primary resets the counter as soon as it has seen all; who polls late waits for ever.

    Source: modelled on the pattern of https://github.com/ai-dynamo/nixl/pull/1539
    """
    store = _get_default_store()
    store.add("arrived", 1)
    while store.add("arrived", 0) < world.size:  # <- latent
        time.sleep(0.01)  # <- latent
    if world.is_primary:
        time.sleep(BUILD_S)
        store.add("arrived", -world.size)
    meet()


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=2, at=at.collective("store.set")),
)
def test_members_are_who_has_registered_by_then(world) -> None:
    """Each rank takes those as members who have registered in a window; one comes after it.

    Source: modelled on the pattern of https://github.com/NVIDIA/nvidia-resiliency-ext/pull/325
    """
    store = _get_default_store()
    store.set(f"member-{world.rank}", "here")  # <- latent
    time.sleep(BUILD_S)
    members = [rank for rank in range(world.size) if store.check([f"member-{rank}"])]
    group = dist.new_group(members)  # <- waits
    if world.rank in members:
        dist.all_reduce(torch.ones(4), group=group)  # <- waits


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=1, at=at.io("*/rng_state_1.pt", call="open")),
)
def test_staging_folder_is_renamed_by_the_primary(world, shared_tmp_path) -> None:
    """All write into a folder that the primary renames once it has written its own part.

    Source: https://github.com/huggingface/transformers/issues/27925
    """
    staging = shared_tmp_path / "tmp-checkpoint-10"
    if world.is_primary:
        staging.mkdir()
    dist.barrier()
    with open(staging / f"rng_state_{world.rank}.pt", "wb") as file:  # <- latent  # noqa: PTH123
        file.write(b"state")
    if world.is_primary:
        time.sleep(BUILD_S)
        staging.rename(shared_tmp_path / "checkpoint-10")
    meet()


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.io("*/global_step", call="open")),
)
def test_each_rank_reads_the_step_from_a_file(world, shared_tmp_path) -> None:
    """The primary moves the step on between two collectives; who reads late does one step less.

    Source: https://github.com/allenai/OLMo/pull/234 (read before it is written)
    """
    step = shared_tmp_path / "global_step"
    if world.is_primary:
        step.write_text("2")  # <- latent
    else:
        time.sleep(BUILD_S)
    last = int(step.read_text()) if step.exists() else 0  # <- latent
    for _ in range(last, 5):
        meet()


def port_in(file: Path, tries: int = 25) -> int | None:
    """Return the port that a file tells within half a second, or None."""
    for _ in range(tries):
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(file.read_text())  # <- latent
        time.sleep(0.02)
    return None


@latent(
    family="late",
    ranks=3,
    backend="none",
    timeout=POLLING_TIMEOUT_S,
    by_hand=faults.hold(rank=0, at=at.io("*/port", call="open"), min_s=2),
)
def test_workers_go_on_alone_without_a_port(world, shared_tmp_path) -> None:
    """The primary accepts as many workers as there are, and these stop looking for its port.

    Source: https://github.com/mosaicml/streaming/pull/723 (files that are waited for, for a time)
    """
    file = shared_tmp_path / "port"
    if world.is_primary:
        with socket.create_server(("127.0.0.1", 0)) as server:
            file.write_text(str(server.getsockname()[1]))  # <- latent
            for _ in range(world.size - 1):
                server.accept()[0].close()  # <- waits
    elif port := port_in(file):
        socket.create_connection(("127.0.0.1", port)).close()
    else:
        print("no scheduler: I work alone")


@latent(
    family="late",
    ranks=3,
    backend="none",
    timeout=POLLING_TIMEOUT_S,
    by_hand=faults.hold(rank=1, at=at.io("*/arrived", call="listdir")),
)
def test_folder_of_a_barrier_is_removed(world, shared_tmp_path) -> None:
    """A barrier of files is cleaned up by the primary while another has not looked yet.

    Source: https://github.com/huggingface/transformers/issues/20988 (a folder removed by one rank
    while others use it)
    """
    arrived = shared_tmp_path / "arrived"
    arrived.mkdir(exist_ok=True)
    (arrived / str(world.rank)).touch()
    count = 0
    while count < world.size:
        with contextlib.suppress(FileNotFoundError):
            count = len(list(arrived.glob("*")))  # <- latent
        time.sleep(0.01)  # <- waits
    if world.is_primary:
        time.sleep(BUILD_S)
        shutil.rmtree(arrived)
