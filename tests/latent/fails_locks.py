"""A rank fails or dies while it holds or owes what others wait for, without any framework."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from expectation import POLLING_TIMEOUT_S, latent

from pytest_multihost import at, faults

TICK_S = 0.02
COMPILE_S = 0.3


class FileBaton:
    """A lock that is a file: whoever makes it has the baton, the others wait until it is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_mine(self) -> bool:
        """Try to take the baton."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def wait(self) -> None:
        """Wait until whoever has it gives it back."""
        while self.path.exists():  # <- waits
            time.sleep(TICK_S)  # <- waits

    def release(self) -> None:
        """Give it back."""
        self.path.unlink()  # <- latent


def compiled(folder: Path) -> None:
    """Write what the compiler is to do, and the library that it would have made."""
    (folder / "build.ninja").write_text("rule compile\n")  # <- latent
    time.sleep(COMPILE_S)
    (folder / "extension.so").write_bytes(b"ELF")  # <- latent


@latent(
    family="fails",
    ranks=3,
    backend="none",
    timeout=POLLING_TIMEOUT_S,
    by_hand=faults.fails(rank="first", at=at.io("*/build.ninja", call="open")),
)
def test_lock_is_kept_after_an_error(world, shared_tmp_path) -> None:
    """An interrupted build leaves its lock behind, and the others poll it for ever.

    Source: https://github.com/nandometzger/metal-gauss/issues/19
    """
    baton = FileBaton(shared_tmp_path / "lock")
    time.sleep(0.0 if world.is_primary else 0.1)
    if baton.is_mine():
        compiled(shared_tmp_path)
        baton.release()
    else:
        baton.wait()


@latent(
    family="fails",
    ranks=3,
    backend="none",
    timeout=POLLING_TIMEOUT_S,
    by_hand=faults.fails(rank=0, at=at.io("*/index.json", call="rename")),
)
def test_others_poll_for_a_download(world, shared_tmp_path) -> None:
    """A file that one rank was to download never appears.

    Source: https://github.com/mosaicml/streaming/pull/723
    """
    index = shared_tmp_path / "index.json"
    if world.is_primary:
        part = index.with_suffix(".part")
        part.write_text("{}")  # <- latent
        part.rename(index)  # <- latent
    while not index.exists():  # <- waits
        time.sleep(TICK_S)  # <- waits


@latent(
    family="fails",
    ranks=3,
    backend="none",
    timeout=POLLING_TIMEOUT_S,
    by_hand=faults.fails(rank=2, at=at.io("*/partial-2", call="write")),
)
def test_primary_collects_partial_results(world, shared_tmp_path) -> None:
    """The primary waits until there are as many partial results as ranks; one could not write its.

    Source: https://github.com/tier4/Diffusion-Planner/pull/336 (shards of each rank, merged by
    rank 0)
    """
    if not world.is_primary:
        (shared_tmp_path / f"partial-{world.rank}").write_text("1")  # <- latent
        (shared_tmp_path / f"complete-{world.rank}").touch()  # <- latent
        return
    while len(list(shared_tmp_path.glob("complete-*"))) < world.size - 1:  # <- waits
        time.sleep(TICK_S)  # <- waits


def connected(file: Path) -> socket.socket:
    """Return a connection to the port that the primary has told by then."""
    while not file.exists():
        time.sleep(TICK_S)
    return socket.create_connection(("127.0.0.1", int(file.read_text())))  # <- latent


@latent(
    family="fails",
    ranks=3,
    backend="none",
    timeout=POLLING_TIMEOUT_S,
    by_hand=faults.fails(rank=1, at=at.io("*/shard-1", call="open")),
)
def test_worker_cannot_read_before_it_connects(world, shared_tmp_path) -> None:
    """A scheduler accepts all its workers; one fails on its way to it.

    Source: https://github.com/birdnet-team/birdnet/issues/83 (a consumer without a limit, and a
    worker that is gone)
    """
    file = shared_tmp_path / "port"
    if world.is_primary:
        with socket.create_server(("127.0.0.1", 0)) as server:
            new = file.with_suffix(".new")
            new.write_text(str(server.getsockname()[1]))  # <- latent
            new.rename(file)  # <- latent
            for _ in range(world.size - 1):
                with server.accept()[0] as worker:  # <- waits
                    worker.recv(100)  # <- waits
    else:
        shard = shared_tmp_path / f"shard-{world.rank}"
        shard.write_bytes(b"rows")  # <- latent
        with connected(file) as scheduler:
            scheduler.sendall(shard.read_bytes())


@contextmanager
def turn_of(rank: int, folder: Path) -> Iterator[None]:
    """Let ranks write one after the other, each once the one before it has said so."""
    while rank and not (folder / f"turn-{rank - 1}").exists():  # <- waits
        time.sleep(TICK_S)  # <- waits
    yield
    (folder / f"turn-{rank}").touch()  # <- latent


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    timeout=POLLING_TIMEOUT_S,
    by_hand=faults.fails(rank=0, at=at.io("*/log.csv", call="open")),
)
def test_ranks_append_in_turns(world, shared_tmp_path) -> None:
    """Each rank appends to a file once its predecessor has; the first cannot.

    Source: https://github.com/dealii/dealii/pull/14356 (a collective lock, and an exception of the
    rank that holds it)
    """
    with (
        turn_of(world.rank, shared_tmp_path),
        (shared_tmp_path / "log.csv").open("a") as file,  # <- latent
    ):
        file.write(f"{world.rank}\n")  # <- latent
    dist.all_reduce(torch.ones(1))  # <- waits
