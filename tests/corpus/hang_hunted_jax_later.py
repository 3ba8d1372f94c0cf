"""More hangs of jax and of plain Python, after the first score of hang_hunted_jax.py.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from arrays import OVER, mesh, spread, train
from expectation import hang
from jax._src.distributed import global_state
from jax.experimental import io_callback, multihost_utils
from mishaps import FOREVER_S
from programs import http_server, post

LONG_MS = 600_000
KEPT: list[Any] = []


def solve(own_turns: int) -> None:
    """Sum up in a loop on the devices, which turns as often as a process says."""

    def local(turns: jax.Array) -> jax.Array:
        def turn(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return state[0] + 1, jax.lax.psum(state[1], "x") / 2

        first = (jnp.int32(0), jnp.ones(3))
        return jax.lax.while_loop(lambda state: state[0] < turns[0], turn, first)[1]

    solver = jax.jit(
        jax.shard_map(local, mesh=mesh(), in_specs=OVER, out_specs=OVER, check_vma=False)
    )
    jax.block_until_ready(solver(spread(own_turns, np.int32)))


@hang(
    "straggler",
    ranks=2,
    backend="jax",
    culprits=[0],
    waiting=[1],
    where="time.sleep",
    timeout=60,
)
def test_the_commit_of_an_asynchronous_save_never_ends(world, shared_tmp_path) -> None:
    """A thread of the primary is in a callback of its user's after a save.

    Source: https://github.com/google/orbax/issues/392
    """

    def tell() -> None:
        if world.is_primary:
            time.sleep(FOREVER_S)

    options = ocp.options.AsyncOptions(post_finalization_callback=tell)
    saver = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler(), async_options=options)
    saver.save(shared_tmp_path / "ckpt", args=ocp.args.StandardSave({"w": np.ones(4)}))
    train(1)
    saver.wait_until_finished()
    multihost_utils.sync_global_devices("saved")


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[0],
    waiting=[1, 2],
    also=[{"kind": "deadlock", "culprits": []}, {"kind": "straggler", "culprits": [0]}],
    why="the callback needs the others, who need it in the step",
    timeout=60,
)
def test_a_thread_of_a_callback_is_at_a_barrier(world) -> None:
    """A thread of the primary's callback waits where the others come after the step.

    Source: https://github.com/jax-ml/jax/issues/24255 (class: a callback that never returns)
    """

    def report(value: np.ndarray) -> np.ndarray:
        worker = threading.Thread(
            target=global_state.client.wait_at_barrier, args=("reported", LONG_MS)
        )
        worker.start()
        worker.join()
        return value

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        own = io_callback(report, jax.ShapeDtypeStruct((), np.float32), np.float32(1))
        return (x * own).sum()

    train(1)
    jax.block_until_ready(step(spread(1.0)))
    if not world.is_primary:
        global_state.client.wait_at_barrier("reported", LONG_MS)


@hang("died", ranks=3, backend="jax", culprits=[1], waiting=[0, 2], by=("exit",), timeout=60)
def test_a_tool_keeps_the_connections_of_a_killed_process(world) -> None:
    """What it has started has inherited its sockets, so nobody sees their end.

    Source: https://peps.python.org/pep-0446 (inherited sockets)
    """
    train(1)
    if world.rank == 1:
        for each in map(int, os.listdir("/proc/self/fd")):
            if each > 2:
                try:
                    os.set_inheritable(each, True)
                except OSError:
                    continue
        subprocess.Popen(["sleep", "50"], close_fds=False)
        os.kill(os.getpid(), signal.SIGKILL)
    train(1)


@hang("deadlock", ranks=2, backend="none", by=("proof", "deadline"))
def test_each_handler_asks_the_other_server(world, shared_tmp_path) -> None:
    """Both servers have one thread, which waits for the other server's answer.

    Source: field report class: services that ask each other
    """
    asked = threading.Barrier(2)

    def place(rank: int) -> int:
        return int((shared_tmp_path / f"port-{rank}").read_text())

    def answer(_: str) -> str:
        time.sleep(1)
        return post(place(1 - world.rank), "/state")

    server = http_server(0, answer)
    (shared_tmp_path / f"port-{world.rank}").write_text(str(server.server_address[1]))
    world.barrier("listening")

    def ask() -> None:
        asked.wait()
        post(place(1 - world.rank), "/state")

    threading.Thread(target=ask, daemon=True).start()
    asked.wait()
    server.handle_request()
    world.barrier("asked")


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[0],
    waiting=[1],
    where=".wait()",
    by=("proof", "deadline"),
)
def test_another_child_has_the_end_of_a_pipe(world) -> None:
    """A tool reads to the end of its input, which a second tool holds open.

    Source: https://bugs.python.org/issue2320 (subprocess and inherited pipes)
    """
    if world.is_primary:
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        tool = subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)
        subprocess.Popen(["sleep", "100"], close_fds=False)
        os.close(reader)
        os.close(writer)
        tool.wait()
    world.barrier()


@hang("finished", ranks=2, backend="none", culprits=[0], waiting=[1], by=("proof", "deadline"))
def test_a_rank_returns_with_a_file_lock(world, shared_tmp_path) -> None:
    """It keeps the file in a variable of its module, so that the lock lives as long as it does.

    Source: https://github.com/huggingface/datasets/issues/1672 (class: a lock that is not released)
    """
    file = (shared_tmp_path / "lock").open("w")
    KEPT.append(file)
    if world.is_primary:
        fcntl.flock(file, fcntl.LOCK_EX)
    world.barrier("locked")
    if world.rank == 1:
        fcntl.flock(file, fcntl.LOCK_EX)


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[1],
    waiting=[0],
    where="result()",
    by=("proof", "deadline"),
)
def test_the_only_worker_of_a_pool_is_stopped(world) -> None:
    """Somebody has stopped it while it had a task.

    Source: field report class: a debugger that is attached to a worker
    """
    if world.rank == 1:
        with ProcessPoolExecutor(1) as pool:
            task = pool.submit(time.sleep, 1)
            time.sleep(0.5)
            for worker in pool._processes.values():
                os.kill(worker.pid or 0, signal.SIGSTOP)
            task.result()
    world.barrier()
