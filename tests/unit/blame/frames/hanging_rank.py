"""A program: be one rank of a small world, and wait for rank 0, which sleeps.

Usage: hanging_rank.py OPERATION RANK SIZE LOCAL_DEVICES PORT

Prints "ready" when it is about to wait. At a line on its standard input, rank 0 does its part, and
every rank prints what came out and how long its longest standstill was.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

OPERATION, (RANK, SIZE, LOCAL_DEVICES, PORT) = sys.argv[1], map(int, sys.argv[2:])


def jax_operation() -> Callable[[], object]:
    """Return what a rank of jax calls."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", LOCAL_DEVICES)
    address = f"127.0.0.1:{PORT}"
    jax.distributed.initialize(address, SIZE, RANK, cluster_detection_method="deactivate")
    client: Any = jax._src.distributed.global_state.client
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    values = np.arange(4 * mesh.size, dtype=np.float32)
    spread = NamedSharding(mesh, PartitionSpec("x"))
    array = jax.make_array_from_callback(values.shape, spread, lambda index: values[index])
    everywhere = NamedSharding(mesh, PartitionSpec())
    total = jax.jit(lambda x: x.sum(), out_shardings=everywhere)
    whole = jax.jit(lambda x: x + 1, out_shardings=everywhere)
    shifted = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.ppermute(x, "x", [(i, i ^ 1) for i in range(mesh.size)]),
            mesh=mesh,
            in_specs=PartitionSpec("x"),
            out_specs=PartitionSpec("x"),
        )
    )
    exchanged = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.all_to_all(x.reshape(4, -1), "x", 1, 0, tiled=True),
            mesh=mesh,
            in_specs=PartitionSpec(None, "x"),
            out_specs=PartitionSpec("x"),
        )
    )
    square = jnp.ones((3000, 3000))
    power = jax.jit(lambda x: x @ x @ x)

    def compute() -> object:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            power(square).block_until_ready()
        return None

    def collective(call: Any, argument: Any) -> Callable[[], object]:  # noqa: ANN401
        if OPERATION != "cold":
            jax.block_until_ready(call(argument))
            client.wait_at_barrier("warm", 60_000)
        return lambda: np.asarray(call(argument).addressable_data(0)).sum().item()

    def key() -> object:
        if RANK == 0:
            client.key_value_set("key", "value")
        return client.blocking_key_value_get("key", 60_000)

    return {
        "psum": lambda: collective(total, array),
        "cold": lambda: collective(total, array),
        "allgather": lambda: collective(whole, array),
        "ppermute": lambda: collective(shifted, array),
        "alltoall": lambda: collective(
            exchanged,
            jax.make_array_from_callback(
                (1, 16 * mesh.size),
                NamedSharding(mesh, PartitionSpec(None, "x")),
                lambda index: np.ones((1, 16 * mesh.size), np.float32)[index],
            ),
        ),
        "barrier": lambda: lambda: client.wait_at_barrier("here", 60_000),
        "key": lambda: key,
        "shutdown": lambda: jax.distributed.shutdown,
        "matmul": lambda: compute,
    }[OPERATION]()


def torch_operation() -> Callable[[], object]:
    """Return what a rank of torch calls."""
    import torch
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{PORT}"
    dist.init_process_group("gloo", init_method=address, rank=RANK, world_size=SIZE)
    ones = torch.ones(3)
    many = [torch.zeros(3) for _ in range(SIZE)]
    store = dist.TCPStore("127.0.0.1", PORT, is_master=False)
    dist.all_reduce(torch.ones(3))

    def transfer() -> object:
        if RANK == 0:
            for rank in range(1, SIZE):
                dist.send(ones, rank)
        else:
            dist.recv(ones, 0)
        return ones.sum().item()

    def reduce() -> object:
        dist.all_reduce(ones)
        return ones.sum().item()

    def gather() -> object:
        dist.all_gather(many, ones)
        return sum(each.sum().item() for each in many)

    def key() -> object:
        if RANK == 0:
            store.set("key", "value")
        store.wait(["key"])
        return store.get("key").decode()

    def compute() -> object:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            torch.ones(2000, 2000) @ torch.ones(2000, 2000)
        return None

    return {
        "torch_all_reduce": reduce,
        "torch_all_gather": gather,
        "torch_broadcast": lambda: dist.broadcast(ones, 0),
        "torch_barrier": dist.barrier,
        "torch_recv": transfer,
        "torch_store": key,
        "torch_matmul": compute,
    }[OPERATION]


def standstill(longest: list[float]) -> None:
    """Keep the longest time that this process did not run."""
    last = time.monotonic()
    while True:
        time.sleep(0.005)
        now = time.monotonic()
        longest[0], last = max(longest[0], now - last), now


call = torch_operation() if OPERATION.startswith("torch") else jax_operation()
longest = [0.0]
threading.Thread(target=standstill, args=(longest,), daemon=True).start()
print("ready", flush=True)
if RANK == 0 and "matmul" not in OPERATION:
    sys.stdin.readline()
result = call()
print(f"result {result} standstill {longest[0]:.3f}", flush=True)
sys.stdin.readline()
os._exit(0)
