"""Programs that run into timeouts of libraries, and note the error and after how long it came.

They are run by `benchmarks/clock.py` in real time and with a clock that jumps, and by
tests/extensions/clock/test_clock_of_runtimes.py with the latter alone.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.multihost(timeout=600)

_VARYING = re.compile(r"0x[0-9a-f]+|/\S+|\b[0-9a-f]{8,}\b|\[?[0-9.]+\]?:[0-9]+|\d+(\.\d+)?")
"""Addresses, paths and numbers: they differ from run to run."""


@contextmanager
def expecting(world, *errors: type[BaseException]) -> Iterator[None]:
    """Note the error of the block, without what varies, and the world's seconds until it came."""
    began_s, real_s = world.clock.now(), _machine_s()
    text = ""
    try:
        yield
    except errors as error:
        text = f"{type(error).__name__}: {error}"
    else:
        assert not errors, "no timeout came"
    finally:
        note(world, text, world.clock.now() - began_s, _machine_s() - real_s)


def _machine_s() -> float:
    """Return for how long the machine has been up, which no clock of a world changes."""
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])


def note(world, text: str, seconds: float, real_s: float) -> None:
    """Append what has happened to the file that the benchmark reads."""
    if not (file := os.environ.get("CLOCK_TIMEOUTS")):
        return
    name = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].partition("[")[0].partition(" ")[0]
    shown = " ".join(_VARYING.sub("#", text).split())[:160]
    found = {"test": name, "rank": world.rank, "error": shown, "s": seconds, "real_s": real_s}
    with Path(file).open("a", encoding="utf-8") as out:
        out.write(json.dumps(found) + "\n")


# torch


@pytest.mark.multihost(ranks=4, backend="gloo")
def test_gloo_gives_up_a_collective(world) -> None:
    """Rank 0 sleeps for ten minutes; the others' all_reduce gives up after 30 s."""
    import torch
    import torch.distributed as dist

    group = dist.new_group(timeout=datetime.timedelta(seconds=30))
    dist.all_reduce(torch.ones(1), group=group)
    if world.rank == 0:
        time.sleep(60)
        return
    with expecting(world, RuntimeError):
        dist.all_reduce(torch.ones(1), group=group)


@pytest.mark.multihost(ranks=4, backend="gloo")
def test_gloo_waits_for_a_late_rank(world) -> None:
    """Rank 0 sleeps for 45 s, and nobody gives up."""
    import torch
    import torch.distributed as dist

    with expecting(world):
        if world.rank == 0:
            time.sleep(45)
        dist.all_reduce(torch.ones(1))


@pytest.mark.multihost(ranks=2, backend="none")
def test_tcp_store_gives_up_a_key(world) -> None:
    """Nobody sets the key."""
    import torch.distributed as dist

    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        2,
        world.rank == 0,
        timeout=datetime.timedelta(seconds=60),
    )
    if world.rank == 1:
        with expecting(world, RuntimeError):
            store.wait(["missing"], datetime.timedelta(seconds=20))
    world.barrier("end")


@pytest.mark.multihost(ranks=2, backend="none")
def test_file_store_gives_up_a_key(world, shared_tmp_path: Path) -> None:
    """It polls a file every 10 ms."""
    import torch.distributed as dist

    store = dist.FileStore(str(shared_tmp_path / "store"), 2)
    store.set_timeout(datetime.timedelta(seconds=20))
    if world.rank == 1:
        with expecting(world, RuntimeError):
            store.get("missing")
    world.barrier("end")


# jax


@pytest.mark.multihost(ranks=2, backend="jax")
def test_jax_gives_up_a_coordination_barrier(world) -> None:
    """Rank 0 never comes to the barrier."""
    from jax._src import distributed

    client = distributed.global_state.client
    if world.rank == 1:
        with expecting(world, Exception):
            client.wait_at_barrier("alone", 20_000)
    world.barrier("end")


@pytest.mark.multihost(ranks=2, backend="jax")
def test_jax_gives_up_a_key(world) -> None:
    """Nobody sets the key."""
    from jax._src import distributed

    client = distributed.global_state.client
    if world.rank == 1:
        with expecting(world, Exception):
            client.blocking_key_value_get("missing", 20_000)
    world.barrier("end")


@pytest.mark.multihost(ranks=4, backend="jax")
def test_jax_gives_up_its_first_collective(world) -> None:
    """Rank 0 comes 40 s late; the others' gloo contexts give up after 30 s."""
    import jax
    from jax.experimental import multihost_utils

    jax.devices()
    if world.rank == 0:
        time.sleep(40)
        return
    with expecting(world, Exception):
        multihost_utils.process_allgather(jax.numpy.ones(1))


@pytest.mark.multihost(ranks=4, backend="jax")
def test_jax_waits_for_a_late_primary(world) -> None:
    """Rank 0 comes 20 s late to the first collective."""
    import jax
    from jax.experimental import multihost_utils

    with expecting(world):
        if world.rank == 0:
            time.sleep(20)
        multihost_utils.process_allgather(jax.numpy.ones(1))


HEARTBEATS = """
import sys
from jax._src.lib import _jax

address, rank = sys.argv[1], int(sys.argv[2])
client = _jax.get_distributed_runtime_client(
    address, rank, heartbeat_timeout=20 if rank == 0 else 1000, shutdown_on_destruction=False
)
client.connect()
print("connected", flush=True)
sys.stdin.read()
"""
"""Rank 1 sends a heartbeat every 500 s, and the service waits for 20 s."""


@pytest.mark.multihost(ranks=2, backend="none")
def test_jax_misses_a_heartbeat(world) -> None:
    """It ends the clients' processes: they are children of the ranks."""
    from jax._src.lib import _jax

    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if world.rank == 0:
        service = _jax.get_distributed_runtime_service(address, 2, heartbeat_timeout=20)
    world.barrier()
    with subprocess.Popen(
        [sys.executable, "-c", HEARTBEATS, address, str(world.rank)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "connected\n"
        with expecting(world, ChildProcessError):
            assert child.wait() != 0
            fatal = [each for each in child.stderr if each.startswith("F")]
            raise ChildProcessError(fatal[0].partition("] ")[2])
    world.barrier("end")
    if world.rank == 0:
        service.shutdown()


# Python


@pytest.mark.multihost(ranks=2, backend="none")
def test_asyncio_gives_up(world) -> None:
    """A task of an hour, and thirty seconds for it."""

    async def wait() -> None:
        await asyncio.wait_for(asyncio.sleep(3600), 30)

    with expecting(world, TimeoutError):
        asyncio.run(wait())
    world.barrier("end")


@pytest.mark.multihost(ranks=2, backend="none")
def test_a_data_loader_gives_up_its_worker(world) -> None:
    """The worker sleeps for a minute in its second item."""
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index == 1:
                time.sleep(60)
            return index

    loader = iter(DataLoader(Slow(), num_workers=1, timeout=20))
    next(loader)
    with expecting(world, RuntimeError):
        next(loader)
    world.barrier("end")


@pytest.mark.multihost(ranks=2, backend="jax")
def test_orbax_saves_beside_a_long_step(world, shared_tmp_path: Path) -> None:
    """An asynchronous save ends while the ranks compute for 50 s, or seem to."""
    import numpy as np
    import orbax.checkpoint as ocp

    with expecting(world), ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as saver:
        saver.save(shared_tmp_path / "one", args=ocp.args.StandardSave({"a": np.ones(8)}))
        time.sleep(50)
        saver.wait_until_finished()
    assert (shared_tmp_path / "one").exists()
