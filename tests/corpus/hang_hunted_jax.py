"""Hangs of jax, its libraries and plain Python, found in public reports and thought of.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from multiprocessing.managers import BaseManager

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
import zmq
from arrays import service, spread, train
from expectation import hang
from jax.experimental import io_callback, multihost_utils
from mishaps import FOREVER_S, report_much, signalled_by_a_child
from programs import HOST

LONG_MS = 600_000
OFD_SETLKW = 38


@hang(
    "straggler",
    ranks=3,
    backend="jax",
    culprits=[1],
    waiting=[0, 2],
    where="urlopen",
    timeout=60,
)
def test_a_pair_saves_and_one_asks_itself(world, shared_tmp_path) -> None:
    """Two of three save; one of these first asks a server in its own process, which it never runs.

    Source: https://github.com/google/orbax/issues/392
    """
    train(1)
    if world.rank == 1:
        with socket.create_server((HOST, 0)) as server:
            urllib.request.urlopen(f"http://{HOST}:{server.getsockname()[1]}/step").read()
    if world.rank < 2:
        options = ocp.CheckpointManagerOptions(
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=0, active_processes={0, 1}, barrier_sync_key_prefix="pair"
            ),
        )
        manager = ocp.CheckpointManager(shared_tmp_path, options=options)
        manager.save(1, args=ocp.args.StandardSave({"w": np.ones(4)}))
        manager.wait_until_finished()
    multihost_utils.sync_global_devices("saved")


@hang(
    "finished",
    ranks=3,
    backend="jax",
    culprits=[0],
    waiting=[2],
    waits_at="restore/step",
    also=[{"kind": "finished", "culprits": [0, 1]}],
    why="who is to set a key is not known; the one that had set it has returned",
    timeout=60,
)
def test_a_key_is_deleted_before_the_last_one_reads_it(world) -> None:
    """The primary cleans up as soon as the first reader has it; the second comes later.

    Source: https://github.com/marin-community/marin/pull/8538 (keys of a broadcast)
    """
    if world.is_primary:
        service().key_value_set("restore/step", "7")
        service().wait_at_barrier("read", LONG_MS, process_ids=[0, 1])
        service().key_value_delete("restore/step")
        service().wait_at_barrier("late", LONG_MS, process_ids=[0, 2])
    elif world.rank == 1:
        service().blocking_key_value_get("restore/step", LONG_MS)
        service().wait_at_barrier("read", LONG_MS, process_ids=[0, 1])
    else:
        service().wait_at_barrier("late", LONG_MS, process_ids=[0, 2])
        service().blocking_key_value_get("restore/step", LONG_MS)


@hang(
    "mismatch",
    ranks=3,
    backend="jax",
    culprits=[1],
    waiting=[0, 2],
    also=[{"kind": "deadlock", "culprits": []}],
    why="a barrier of the service and a step need not count as operations of one group",
    timeout=60,
)
def test_a_handler_of_a_signal_waits_at_a_barrier(world) -> None:
    """One process is preempted, and wants to save with all others, who train on.

    Source: https://github.com/google/orbax/issues/392 (class: saving on SIGTERM)
    """

    def save(*_: object) -> None:
        service().wait_at_barrier("preempted", LONG_MS)

    signal.signal(signal.SIGTERM, save)
    for step in range(5):
        if world.rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        train(1)


@hang(
    "transport",
    ranks=2,
    backend="none",
    waits_at="initialize(",
    by=("proof", "deadline"),
    also=[{"kind": "unknown", "culprits": []}],
    why="both are in the rendezvous and wait for a process that does not exist",
)
def test_a_cluster_of_one_process_more(world) -> None:
    """Both processes believe that there is a third one.

    Source: field report class: the number of hosts is taken from a stale variable
    """
    jax.distributed.initialize(num_processes=world.size + 1, initialization_timeout=600)


@hang(
    "straggler",
    ranks=3,
    backend="jax",
    culprits=[1],
    waiting=[0, 2],
    where="subprocess.run",
    timeout=60,
)
def test_the_others_ask_which_devices_live(world) -> None:
    """They are at the end of the block; one process runs a tool in it.

    Source: jax.experimental.multihost_utils of jax 0.10.2 (live_devices is a barrier at its end)
    """
    train(1)
    with multihost_utils.live_devices(jax.devices()):
        if world.rank == 1:
            subprocess.run(["sleep", str(FOREVER_S)], check=True)


@hang(
    "straggler",
    ranks=2,
    backend="jax",
    culprits=[1],
    waiting=[0],
    where="read(",
    by=("deadline", "proof"),
    timeout=30,
)
def test_tensorstore_reads_a_pipe(world, tmp_path) -> None:
    """What one process reads through tensorstore is a named pipe without a writer.

    Source: https://github.com/marin-community/marin/pull/8538 (stalled in a tensorstore read)
    """
    train(1)
    if world.rank == 1:
        os.mkfifo(tmp_path / "part")
        store = tensorstore.KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
        store.read("part").result()
    train(1)


@hang(
    "deadlock",
    ranks=2,
    backend="jax",
    also=[{"kind": "straggler", "culprits": [0]}],
    why="who is to set a key is not known",
    timeout=60,
)
def test_a_callback_waits_for_a_key_of_the_next_step(world) -> None:
    """The primary, which runs callbacks, needs in a step what process 1 publishes after it.

    Source: https://github.com/jax-ml/jax/issues/24255 (class: a callback that never returns)
    """

    def rate(value: np.ndarray) -> np.ndarray:
        service().blocking_key_value_get("rate/1", LONG_MS)
        return value

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        own = io_callback(rate, jax.ShapeDtypeStruct((), np.float32), np.float32(1))
        return (x * own).sum()

    train(1)
    jax.block_until_ready(step(spread(1.0)))
    if world.rank == 1:
        service().key_value_set("rate/1", "0.1")


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[1],
    waiting=[0, 2],
    where=".join()",
    by=("proof", "deadline"),
)
def test_joins_a_child_before_its_result_is_taken(world) -> None:
    """The child cannot end before somebody has read its large result.

    Source: https://github.com/python/cpython/issues/73983
    """
    if world.rank == 1:
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=report_much, args=(results,))
        child.start()
        child.join()
        results.get()
    world.barrier()


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[0],
    waiting=[1],
    where="stdout.read()",
    by=("proof", "deadline"),
)
def test_reads_one_pipe_while_the_other_one_is_full(world) -> None:
    """A tool complains at length, and its user waits for the end of what it has to say.

    Source: https://docs.python.org/3/library/subprocess.html#subprocess.Popen.stderr
    """
    if world.is_primary:
        program = "import sys; sys.stderr.write('w' * 200_000); print('done')"
        tool = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert tool.stdout is not None
        tool.stdout.read()
        tool.wait()
    world.barrier()


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[2],
    waiting=[0, 1],
    where="lock.acquire()",
    by=("proof", "deadline"),
)
def test_a_handler_wants_the_lock_of_what_it_interrupts(world) -> None:
    """A signal comes while the metrics are written under a lock, which its handler wants, too.

    Source: https://github.com/Delgan/loguru/issues/231 (class: locks of loggers)
    """
    lock = threading.Lock()

    def flush(*_: object) -> None:
        lock.acquire()
        lock.release()

    if world.rank == 2:
        signal.signal(signal.SIGUSR1, flush)
        signalled_by_a_child("USR1", 0.5)
        with lock:
            until = time.monotonic() + 10
            while time.monotonic() < until:
                time.sleep(0.05)
    world.barrier()


@hang("deadlock", ranks=2, backend="none", waiting=[0, 1], by=("proof", "deadline"))
def test_two_readers_of_a_file_both_want_to_write(world, shared_tmp_path) -> None:
    """Each has a lock for reading, and neither gives it up before it has the one for writing.

    Source: https://lwn.net/Articles/586904 (open file description locks)
    """
    with (shared_tmp_path / "index").open("a+") as file:
        for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
            fcntl.fcntl(file, OFD_SETLKW, struct.pack("hhllhh", kind, 0, 0, 0, 0, 0))
            world.barrier("read")


class Mailboxes(BaseManager):
    """Serves the queues of ranks 1 and 2."""


@hang("deadlock", ranks=3, backend="none", by=("proof", "deadline"))
def test_two_wait_at_the_queues_of_a_manager(world, shared_tmp_path) -> None:
    """The primary serves a queue for each of the others in threads, and both wait for an item.

    Source: https://docs.python.org/3/library/multiprocessing.html#using-a-remote-manager
    """
    boxes = {1: queue.Queue[int](), 2: queue.Queue[int]()}
    Mailboxes.register("box", callable=boxes.get)
    place = shared_tmp_path / "port"
    if world.is_primary:
        server = Mailboxes(address=(HOST, 0), authkey=b"key").get_server()
        place.write_text(str(server.address[1]))
        threading.Thread(target=server.serve_forever, daemon=True).start()
    world.barrier("served")
    if not world.is_primary:
        manager = Mailboxes(address=(HOST, int(place.read_text())), authkey=b"key")
        manager.connect()
        mine, theirs = manager.box(world.rank), manager.box(3 - world.rank)
        mine.get()
        theirs.put(1)
    world.barrier("done")


@hang("deadlock", ranks=3, backend="none", by=("proof", "deadline"))
def test_pushes_more_than_fits_to_one_in_a_barrier(world, shared_tmp_path) -> None:
    """Rank 1 reads what rank 0 pushes only after the barrier that rank 0 comes to afterwards.

    Source: https://libzmq.readthedocs.io/en/latest/zmq_socket.html (ZMQ_PUSH blocks)
    """
    context = zmq.Context()
    place = shared_tmp_path / "port"
    if world.rank == 1:
        work = context.socket(zmq.PULL)
        work.setsockopt(zmq.RCVHWM, 1)
        place.write_text(str(work.bind_to_random_port(f"tcp://{HOST}")))
    world.barrier("bound")
    if world.rank == 0:
        work = context.socket(zmq.PUSH)
        work.setsockopt(zmq.SNDHWM, 1)
        work.connect(f"tcp://{HOST}:{place.read_text()}")
        for _ in range(50):
            work.send(b"x" * 1_000_000)
    world.barrier("sent")
    if world.rank == 1:
        for _ in range(50):
            work.recv()


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[1],
    waiting=[0],
    where="asyncio.run(",
    by=("proof", "deadline"),
)
def test_a_loop_waits_for_its_last_thread(world) -> None:
    """The coroutine has returned, and run() waits for a thread that nobody awaits any more.

    Source: asyncio.run of Python 3.11, which joins the threads of its executor without a limit
    """
    mailbox: queue.Queue[int] = queue.Queue()

    async def serve() -> None:
        asyncio.get_running_loop().run_in_executor(None, mailbox.get)
        await asyncio.sleep(0.1)

    if world.rank == 1:
        asyncio.run(serve())
    world.barrier()


@hang(
    "livelock",
    ranks=3,
    backend="none",
    culprits=[0, 1],
    by=("deadline",),
    also=[{"kind": "deadlock", "culprits": []}],
    why="each waits for the other's file, which nothing but their code shows",
)
def test_two_look_for_each_others_file(world, shared_tmp_path) -> None:
    """Each writes its marker only when the other's is there.

    Source: https://github.com/mosaicml/composer/pull/2071 (class: markers of other ranks)
    """
    if world.rank < 2:
        while not (shared_tmp_path / f"done-{1 - world.rank}").exists():
            time.sleep(0.05)
        (shared_tmp_path / f"done-{world.rank}").touch()
    world.barrier()
