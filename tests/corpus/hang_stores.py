"""Keys of a store that nobody sets, and rendezvous that do not come about."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed.distributed_c10d import _get_default_store


@hang(
    "straggler",
    ranks=4,
    backend="gloo",
    culprits=[0],
    waiting=[1, 2, 3],
    also=[{"kind": "unknown", "culprits": []}],
    why="who provides a key is not known, but all others wait for it as well",
)
def test_key_of_a_sleeping_primary(world) -> None:
    """The primary sleeps before it sets the key that the others wait for.

    Source: https://github.com/pytorch/pytorch/issues/129367
    """
    if world.is_primary:
        time.sleep(FOREVER_S)
    _get_default_store().wait(["ready"])


@hang(
    "unknown",
    ranks=2,
    backend="gloo",
    also=[{"kind": "deadlock", "culprits": []}],
    why="no rank is known to provide it, and no rank is left that could",
)
def test_key_that_nobody_sets(world) -> None:
    """All ranks wait for a key that no code sets any more.

    Source: https://github.com/pytorch/pytorch/issues/53840
    """
    _get_default_store().wait(["never"])


@hang(
    "unknown",
    ranks=4,
    backend="gloo",
    also=[{"kind": "deadlock", "culprits": []}],
    why="no rank is known to provide it, and no rank is left that could",
)
def test_barrier_that_counts_too_far(world) -> None:
    """A barrier made of a counter waits for one rank more than there is.

    Source: field report class: the size of the world before a node was lost
    """
    store = _get_default_store()
    if store.add("arrived", 1) == world.size + 1:
        store.set("all arrived", "yes")
    store.wait(["all arrived"])


@hang(
    "unknown",
    ranks=2,
    backend="gloo",
    also=[{"kind": "deadlock", "culprits": []}],
    why="each could set the other's key, but no evidence says so",
)
def test_keys_under_different_prefixes(world) -> None:
    """Two ranks exchange addresses under prefixes that count differently.

    Source: https://github.com/NVIDIA/Megatron-LM/pull/5214 (names that differ per rank)
    """
    store = dist.PrefixStore(f"group-{world.rank}", _get_default_store())
    store.set(f"address-{world.rank}", "here")
    store.wait([f"address-{1 - world.rank}"])


@hang(
    "finished",
    ranks=2,
    backend="gloo",
    culprits=[0],
    waiting=[1],
    also=[{"kind": "unknown", "culprits": []}, {"kind": "stuck", "culprits": [1]}],
    why="who provides a key is not known; the only other rank has left",
)
def test_key_with_a_typing_error(world) -> None:
    """The primary sets a key and leaves, the other waits for it by another name.

    Source: field report class: key names spelt in two places
    """
    store = _get_default_store()
    if world.is_primary:
        store.set("checkpoint/0", "done")
    else:
        store.wait(["checkpoint-0"])


@hang("straggler", ranks=4, backend="none", culprits=[3], waiting=[0, 1, 2])
def test_rendezvous_without_the_last(world) -> None:
    """Three ranks are in init_process_group, the fourth has not come so far.

    Source: https://github.com/pytorch/pytorch/issues/15638
    """
    if world.rank == 3:
        time.sleep(FOREVER_S)
    dist.init_process_group("gloo")


@hang(
    "transport",
    ranks=2,
    backend="none",
    culprits=[],
    waiting=None,
    by=("deadline", "proof"),
    also=[{"kind": "unknown", "culprits": []}],
    why="all are in the same rendezvous; whether that is seen depends on what it is made of",
)
def test_everybody_is_a_client(world) -> None:
    """No rank hosts the store, and whoever owns the port does not answer.

    Source: https://github.com/pytorch/pytorch/pull/191989
    """
    if world.is_primary:
        silent = socket.create_server(("127.0.0.1", 0))
        port = world.broadcast(silent.getsockname()[1])
    else:
        port = world.broadcast(0)
    dist.TCPStore("127.0.0.1", port, world.size, is_master=False)


HOST = """
import time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(600)
"""


@hang("raised", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=("raise",), where="get(")
def test_store_of_its_own_child_is_gone(world) -> None:
    """A rank's child hosts a store and is killed; the rank loses its connection to it.

    Source: field report class: a launcher inside a rank keeps a store of its own
    """
    if world.is_primary:
        child = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE)
        store = dist.TCPStore("127.0.0.1", int(child.stdout.readline()), 2, is_master=False)
        child.kill()
        child.wait()
        store.get("config")
    dist.barrier()


@hang("died", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=("exit",))
def test_store_of_a_rank_is_gone(world, shared_tmp_path) -> None:
    """A rank hosts a store for another one, and dies.

    Source: field report class: a store of a pair beside the default one
    """
    port = shared_tmp_path / "port"
    if world.rank == 1:
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        (shared_tmp_path / "new").write_text(str(store.port))
        (shared_tmp_path / "new").rename(port)
        time.sleep(0.5)
        os._exit(3)
    if world.rank == 2:
        while not port.exists():
            time.sleep(0.01)
        number = int(port.read_text())
        dist.TCPStore("127.0.0.1", number, 2, is_master=False, wait_for_workers=False).get("a")
    dist.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], where="client.wait(")
def test_key_of_a_store_that_a_rank_has_for_itself(world) -> None:
    """A rank waits as the client of its own store for a key that no thread of it sets.

    Source: field report class: a local cache in a TCPStore, asked before it is filled
    """
    if world.rank == 1:
        cache = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        client = dist.TCPStore("127.0.0.1", cache.port, None, False, wait_for_workers=False)
        client.wait(["filled"], timedelta(seconds=FOREVER_S))
    dist.all_reduce(torch.ones(4))


@hang("raised", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=("raise",), where="wait(")
def test_file_store_of_a_rank_gives_up(world, tmp_path) -> None:
    """The timeout of a rank's own FileStore strikes; the others wait for that rank.

    Source: field report class: a local cache in a FileStore, asked before it is filled
    """
    if world.is_primary:
        dist.FileStore(str(tmp_path / "cache"), 1).wait(["filled"], timedelta(seconds=2))
    dist.barrier()
