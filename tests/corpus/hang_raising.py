"""A rank raises while others wait for it."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed.distributed_c10d import _get_default_store

BY_RAISE = ("raise",)


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang(
    "raised", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], by=BY_RAISE, where="raise"
)
def test_raises_before_the_first_collective(world) -> None:
    """One rank finds a bad shard, the others are in the all_reduce for ever.

    Source: https://github.com/firedrakeproject/mpi-pytest/issues/12
    """
    if world.rank == 1:
        raise ValueError("bad shard")
    meet()


@hang("raised", ranks=4, backend="gloo", culprits=[1], waiting=[0, 2, 3], by=BY_RAISE)
def test_raises_while_others_are_in_different_collectives(world) -> None:
    """The one that raises is named, although two others can never match either.

    Source: field report class: an error on one rank sends another one down another branch
    """
    if world.rank == 1:
        raise ValueError("bad shard")
    if world.rank == 2:
        dist.barrier()
    meet()


@hang("raised", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_RAISE)
def test_raises_inside_a_collective(world) -> None:
    """One rank passes a list of the wrong length and gets the error alone.

    Source: https://github.com/NVIDIA/Fuser/issues/3092
    """
    found = [torch.ones(4) for _ in range(2 if world.rank == 2 else 3)]
    dist.all_gather(found, torch.ones(4))


@hang("raised", ranks=4, backend="gloo", culprits=[0], waiting=[1, 2, 3], by=BY_RAISE)
def test_primary_asserts_after_a_collective(world) -> None:
    """The primary checks the sum and fails, the others are at the next collective.

    Source: rocm-systems#10862 (a fatal assertion on one rank deadlocks the other)
    """
    total = torch.ones(4)
    dist.all_reduce(total)
    if world.is_primary:
        assert total[0] == 5
    meet()


@hang("raised", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_RAISE)
def test_end_of_a_chain_raises(world) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which has raised.

    Source: https://github.com/HDFGroup/hdf5/pull/1183 (failure skips past collectives)
    """
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    if world.rank == 2:
        raise OSError("no space left on the shard's device")
    if world.rank == 1:
        meet(second)
    meet(first)


@hang("raised", ranks=3, backend="none", culprits=[0], waiting=[1, 2], by=BY_RAISE, where="raise")
def test_raises_before_the_file_that_others_poll_for(world, shared_tmp_path) -> None:
    """The primary cannot prepare the data; the others look for them again and again.

    Source: https://github.com/mosaicml/llm-foundry/pull/716 (ranks poll for a file of rank 0)
    """
    if world.is_primary:
        raise OSError("no space left on device")
    while not (shared_tmp_path / "prepared").exists():
        time.sleep(0.05)


@hang("raised", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_RAISE)
def test_exits_the_interpreter(world) -> None:
    """A rank calls sys.exit in the middle of a step.

    Source: field report class: a fatal configuration error ends one rank with sys.exit
    """
    meet()
    if world.rank == 1:
        sys.exit(3)
    meet()


@hang("raised", ranks=2, backend="gloo", culprits=[1], waiting=[0], by=BY_RAISE)
def test_out_of_address_space(world) -> None:
    """One rank cannot allocate its buffer, the other waits in the collective that follows.

    Source: https://github.com/bigscience-workshop/Megatron-DeepSpeed/pull/48
    """
    meet()
    if world.rank == 1:
        soft = 4 << 30
        resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
        bytearray(soft)
    meet()


@hang("raised", ranks=2, backend="gloo", culprits=[0], waiting=[1], by=BY_RAISE)
def test_raises_while_it_handles_an_expected_timeout(world) -> None:
    """All try a key that may be missing; the primary cannot do without it and raises.

    Source: field report class: an error of its own, raised while an expected one is handled
    """
    try:
        _get_default_store().wait(["latest"], timedelta(seconds=1))
    except RuntimeError:
        if world.is_primary:
            raise ValueError("no checkpoint to start from")  # noqa: B904 - as programs do
    meet()


@pytest.fixture
def loaded_by_all(world) -> None:
    """Load a checkpoint on all ranks; the primary finds it broken."""
    if world.is_primary:
        raise ValueError("broken checkpoint")
    dist.barrier()


@hang(
    "raised",
    ranks=3,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2],
    by=BY_RAISE,
    outcome=("error", "failed"),
)
def test_fixture_raises_in_setup(world, loaded_by_all) -> None:
    """A fixture raises on the primary while the others are in its barrier.

    Source: https://github.com/NVIDIA/Megatron-LM/issues/7572
    """


@pytest.fixture
def saved_by_all(world) -> object:
    """Save on all ranks afterwards; one of them cannot."""
    yield
    if world.rank == 1:
        raise OSError("disk quota exceeded")
    dist.barrier()


@hang(
    "raised",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    by=BY_RAISE,
    outcome=("error", "failed"),
)
def test_finalizer_raises(world, saved_by_all) -> None:
    """A finalizer raises on one rank while the others are in its barrier.

    Source: https://github.com/NVIDIA/Megatron-LM/issues/4139
    """
    meet()


@hang(
    "mismatch",
    ranks=4,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2, 3],
    by=("mismatch", "proof"),
)
def test_barrier_in_a_finally(world) -> None:
    """An error on its way out is held up by a barrier in `finally`, the others reduce.

    Source: https://github.com/deepspeedai/DeepSpeed/issues/7334
    """
    meet()
    try:
        if world.rank == 1:
            raise ValueError("bad shard")
        meet()
    finally:
        dist.barrier()


def reset_by_own_server(flag: Path) -> None:
    """Receive from a server of one's own, which resets the connection."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = door.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        flag.touch()
        connection.close()

    threading.Thread(target=serve, daemon=True).start()
    socket.create_connection(door.getsockname()).recv(1)


def end_of_own_pipe(flag: Path) -> None:
    """Receive from a child that has ended without a word."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=os._exit, args=(0,))
    child.start()
    there.close()
    child.join()
    flag.touch()
    here.recv()


def write_to_own_child(flag: Path) -> None:
    """Write to a child that has ended."""
    child = subprocess.Popen(["true"], stdin=subprocess.PIPE, bufsize=0)
    child.wait()
    flag.touch()
    child.stdin.write(b"x")


@pytest.mark.parametrize("lose", [reset_by_own_server, end_of_own_pipe, write_to_own_child])
@hang(
    "raised",
    ranks=3,
    backend="gloo",
    culprits=[0],
    waiting=[2],
    by=("raise", "exit"),
)
def test_loses_its_own_connection_before_another_dies(
    world, shared_tmp_path, lose: Callable[[Path], None]
) -> None:
    """A rank's own server goes away; another rank sees that and leaves 0.2 s later.

    Source: field report class: a service beside rank 0 fails, and a rank without it gives up
    """
    flag = shared_tmp_path / "lost"
    if world.is_primary:
        lose(flag)
    if world.rank == 1:
        while not flag.exists():
            time.sleep(0.005)
        time.sleep(0.2)
        os._exit(13)
    dist.barrier()


@hang("died", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=("exit",))
def test_loses_the_connection_to_a_rank_that_dies(world, shared_tmp_path) -> None:
    """A rank leaves in the middle of a message; its peer raises, and another waits for both.

    Source: field report class: a protocol of one's own over sockets beside the collectives
    """
    port = shared_tmp_path / "port"
    if world.is_primary:
        with socket.create_server(("127.0.0.1", 0)) as door:
            (shared_tmp_path / "new").write_text(str(door.getsockname()[1]))
            (shared_tmp_path / "new").rename(port)
            connection, _ = door.accept()
        if not connection.recv(1):
            message = "the peer has closed the connection"
            raise EOFError(message)
    if world.rank == 1:
        while not port.exists():
            time.sleep(0.005)
        kept = socket.create_connection(("127.0.0.1", int(port.read_text())))
        time.sleep(0.2)
        os._exit(kept.fileno())
    dist.barrier()


class LoaderError(Exception):
    """An error of a program's own."""


QUOTES = {
    "value": ValueError("the data server said: wait timeout"),
    "own_type": LoaderError("Socket Timeout while reading shard 3"),
    "own_raise": RuntimeError("Timeout waiting for key: shard-3 after 500 ms"),
}


@pytest.mark.parametrize("error", QUOTES.values(), ids=QUOTES)
@hang("raised", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_RAISE, where="raise")
def test_quotes_the_timeout_of_another_program(world, error: Exception) -> None:
    """An error of a rank's own has a text that runtimes use, too.

    Source: field report class: clients of data servers quote what the server said
    """
    if world.rank == 2:
        raise error
    dist.barrier()


MEMBER = """
import sys
from datetime import timedelta
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
group = dist.ProcessGroupGloo(store, 1, 2, timedelta(seconds=60))
print("ready", flush=True)
sys.stdin.readline()
"""

BY_LOSS = ("raise", "proof")


@hang(
    "raised", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_LOSS, where="allreduce"
)
def test_a_group_with_a_child_has_a_limit(world) -> None:
    """Rank 1 has a process group with a process of its own, which does nothing for a second.

    Source: a hunt for false verdicts; the truth was written before the first run.
    """
    meet()
    if world.rank == 1:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        command = [sys.executable, "-c", MEMBER, str(store.port)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe):
            group = dist.ProcessGroupGloo(store, 0, 2, timedelta(seconds=20))
            group.allreduce([torch.ones(4)]).wait(timedelta(seconds=1))
    meet()


@hang(
    "raised", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_LOSS, where="allreduce"
)
def test_a_group_with_a_child_loses_the_child(world) -> None:
    """Rank 1 has a process group with a process of its own, which ends without a word.

    Source: a hunt for false verdicts; the truth was written before the first run.
    """
    meet()
    if world.rank == 1:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        command = [sys.executable, "-c", MEMBER, str(store.port)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
            group = dist.ProcessGroupGloo(store, 0, 2, timedelta(seconds=60))
            child.stdout.readline()
            child.kill()
            child.wait()
        group.allreduce([torch.ones(4)]).wait()
    meet()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=BY_LOSS, where="sleep")
def test_a_group_with_another_rank_has_a_limit(world, shared_tmp_path) -> None:
    """Ranks 1 and 2 have a process group of their own, and rank 2 sleeps.

    Source: the innocent beside a group with a child: its error follows from another rank.
    """
    if world.rank:
        store = dist.FileStore(str(shared_tmp_path / "store"), 2)
        group = dist.ProcessGroupGloo(store, world.rank - 1, 2, timedelta(seconds=60))
        if world.rank == 2:
            time.sleep(FOREVER_S)
        group.allreduce([torch.ones(4)]).wait(timedelta(seconds=1))
    meet()
