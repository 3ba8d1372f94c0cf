"""Jobs of several programs that are slow and fine."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Listener

import torch
import torch.distributed as dist
from expectation import innocent
from programs import HOST, client, connected, http_server, post
from roles import join_group_at, join_role

SLOW_S = 4.0
PAIR = {"engine": 1, "driver": 1}


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@innocent(roles=PAIR, backend="none")
def test_an_engine_answers_late(world) -> None:
    """The driver waits for an answer over HTTP for some seconds.

    Source: field report class: a long prompt
    """
    if world.role == "driver":
        assert post(world.port("engine")) == "ok"
        return
    http_server(world.port("engine"), lambda _: time.sleep(SLOW_S) or "ok").handle_request()


@innocent(roles=PAIR, backend="none")
def test_a_server_is_asked_late(world) -> None:
    """The engine waits for a request for some seconds.

    Source: field report class: an idle engine
    """
    if world.role == "driver":
        time.sleep(SLOW_S)
        post(world.port("engine"))
        return
    http_server(world.port("engine"), str).handle_request()


@innocent(roles={"trainer": 1, "engine": 2}, backend="none")
def test_weights_come_late(world) -> None:
    """Engines wait in the group between roles until the trainer's step is over.

    Source: field report class: a long step
    """
    number = 0 if world.role == "trainer" else 1 + world.role_rank
    group = join_group_at(world.port("trainer"), number, 3, "weights")
    if world.role == "trainer":
        time.sleep(SLOW_S)
    dist.broadcast(torch.ones(4), group=group, group_src=0)


@innocent(roles={"engine": 2, "frontend": 1}, backend="none")
def test_a_frontend_has_nothing_to_do(world) -> None:
    """One engine compiles for some seconds, and the frontend stops after its engines.

    Source: field report class: a first request compiles
    """
    if world.role == "frontend":
        server = http_server(world.port("frontend"), str)
        server.handle_request()
        server.handle_request()
        return
    join_role()
    if world.role_rank == 1:
        time.sleep(SLOW_S)
    meet()
    post(world.port("frontend"))


@innocent(roles={"engine": 1, "driver": 1, "watch": 1}, backend="none")
def test_heartbeats(world) -> None:
    """A thread sends a heartbeat each second; the answer takes some seconds.

    Source: field report class: a health check
    """
    if world.role == "watch":
        with socket.create_server((HOST, world.port("watch"))) as server:
            connection, _ = server.accept()
            while connection.recv(1):
                pass
        return
    if world.role == "driver":
        post(world.port("engine"))
        return
    beats, is_over = connected(world.port("watch")), threading.Event()

    def beat() -> None:
        while not is_over.wait(1.0):
            beats.sendall(b".")

    thread = threading.Thread(target=beat)
    thread.start()
    http_server(world.port("engine"), lambda _: time.sleep(SLOW_S) or "ok").handle_request()
    is_over.set()
    thread.join()
    beats.close()


@innocent(roles=PAIR, backend="none")
def test_a_driver_polls_until_the_engine_listens(world) -> None:
    """It is refused for some seconds.

    Source: field report class: a server loads its weights
    """
    if world.role == "driver":
        post(world.port("engine"))
        return
    time.sleep(SLOW_S)
    http_server(world.port("engine"), str).handle_request()


@innocent(roles=PAIR, backend="none", timeout=90)
def test_a_poll_that_ends_after_45_s(world) -> None:
    """The driver looks for a file each half second, and the engine makes it late.

    Source: https://github.com/PrimeIntellect-ai/prime-rl/pull/1492
    """
    marker = world.shared_directory / "ready"
    if world.role == "driver":
        while not marker.exists():
            time.sleep(0.5)
        return
    for _ in range(45):
        time.sleep(1.0)
    marker.touch()


@innocent(roles={"frontend": 1, "engine": 1, "client": 1}, backend="none")
def test_event_loops(world) -> None:
    """A client asks a frontend in asyncio, which asks an engine, which is slow.

    Source: field report class: an API server
    """
    if world.role == "client":
        assert connected(world.port("frontend")).recv(1) == b"x"
    elif world.role == "frontend":
        asyncio.run(_pass_on(world.port("frontend"), world.port("engine")))
    else:
        with socket.create_server((HOST, world.port("engine"))) as server:
            connection, _ = server.accept()
            time.sleep(SLOW_S)
            connection.sendall(b"x")
            connection.close()


async def _pass_on(port: int, to: int) -> None:
    done = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                reader, _ = await asyncio.open_connection(HOST, to)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
        writer.write(await reader.readexactly(1))
        await writer.drain()
        done.set()

    async with await asyncio.start_server(serve, HOST, port):
        await done.wait()


@innocent(roles={"engine": 2, "driver": 1}, backend="none")
def test_a_core_that_is_a_child_is_slow(world) -> None:
    """A child of one engine reaches the collective of the cores late.

    Source: field report class: an engine core captures its graphs
    """
    context = multiprocessing.get_context("fork")
    if world.role == "driver":
        post(world.port("engine"))
        return
    core = context.Process(target=_core, args=(world.role_rank,))
    core.start()
    if world.role_rank == 0:
        http_server(world.port("engine"), lambda _: str(core.join())).handle_request()
    core.join()


def _core(number: int) -> None:
    join_role()
    if number == 1:
        time.sleep(SLOW_S)
    meet()


@innocent(roles=PAIR, backend="none")
def test_a_child_is_restarted(world) -> None:
    """The first child ends at once, and the second one answers late.

    Source: field report class: a supervisor
    """
    if world.role == "driver":
        with client(world.port("engine")) as engine:
            assert engine.recv() == "ok"
        return
    context = multiprocessing.get_context("fork")
    first = context.Process(target=time.sleep, args=(0.2,))
    first.start()
    first.join()
    second = context.Process(target=_answer, args=(world.port("engine"),))
    second.start()
    second.join()


def _answer(port: int) -> None:
    with Listener((HOST, port)) as listener, listener.accept() as driver:
        time.sleep(SLOW_S)
        driver.send("ok")


@innocent(roles={"trainer": 1, "engine": 1}, backend="none")
def test_a_slow_reader(world) -> None:
    """The engine reads a large transfer in pieces, with pauses.

    Source: field report class: back-pressure of a weight transfer
    """
    if world.role == "trainer":
        with connected(world.port("engine")) as engine:
            engine.sendall(bytes(1 << 25))
        return
    with socket.create_server((HOST, world.port("engine"))) as server:
        connection, _ = server.accept()
        for _ in range(4):
            time.sleep(1.0)
            connection.recv(1 << 22, socket.MSG_WAITALL)
        while connection.recv(1 << 22):
            pass


@innocent(roles=PAIR, backend="none")
def test_a_driver_gives_up_and_goes_on(world) -> None:
    """The driver's receive times out, and the test passes without the answer.

    Source: field report class: a request with a timeout
    """
    if world.role == "driver":
        with connected(world.port("engine")) as engine:
            engine.settimeout(SLOW_S)
            try:
                engine.recv(1)
            except TimeoutError:
                return
        message = "there was an answer"
        raise AssertionError(message)
    with socket.create_server((HOST, world.port("engine"))) as server:
        connection, _ = server.accept()
        connection.recv(1)  # the end of the driver


@innocent(roles=PAIR, backend="none", hosts="one")
def test_a_process_left_behind_asks(world) -> None:
    """Roles on this machine: a process that the driver has left behind connects late.

    Source: field report class: a health check of the machine
    """
    if world.role == "driver":
        port = world.port("engine")
        ask = f"socket.create_connection(('{HOST}', {port}))"
        text = f"import socket, time; time.sleep({SLOW_S}); {ask}"
        command = [sys.executable, "-c", text]
        environment = {"PATH": "/usr/bin:/bin"}
        subprocess.Popen(command, env=environment, start_new_session=True)
        return
    with socket.create_server((HOST, world.port("engine"))) as server:
        server.accept()


@innocent(roles={"engine": 2, "driver": 1}, backend="gloo")
def test_a_driver_has_a_group_of_its_own(world) -> None:
    """It is done at once; one engine is slow.

    Source: field report class: a controller without work
    """
    if world.role == "engine" and world.role_rank == 1:
        time.sleep(SLOW_S)
    meet()


@innocent(roles=PAIR, backend="none")
def test_a_thread_is_slow(world) -> None:
    """A thread of the engine's server answers late, while the main thread waits for others.

    Source: field report class: a server with threads
    """
    if world.role == "driver":
        assert post(world.port("engine")) == "ok"
        connected(world.port("engine", 1)).close()
        return
    answer = lambda _: time.sleep(SLOW_S) or "ok"  # noqa: E731
    server = http_server(world.port("engine"), answer, threads=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with socket.create_server((HOST, world.port("engine", 1))) as ending:
        ending.accept()
    server.shutdown()
    thread.join()


@innocent(roles={"trainer": 2, "engine": 1}, backend="none")
def test_an_engine_joins_late(world) -> None:
    """Two of three wait in the creation of the group between roles.

    Source: https://github.com/THUDM/slime/issues/2331 (the engines had only started late)
    """
    if world.role == "engine":
        time.sleep(SLOW_S)
    number = world.role_rank if world.role == "trainer" else 2
    meet(join_group_at(world.port("trainer"), number, 3, "weights"))


@innocent(roles=PAIR, backend="none")
def test_many_small_requests(world) -> None:
    """The driver asks again and again, and each answer takes a moment.

    Source: field report class: a decode loop
    """
    if world.role == "driver":
        with client(world.port("engine")) as engine:
            for number in range(40):
                engine.send(number)
                assert engine.recv() == number
            engine.send(None)
        return
    with Listener((HOST, world.port("engine"))) as listener, listener.accept() as driver:
        while (number := driver.recv()) is not None:
            time.sleep(0.1)
            driver.send(number)


@innocent(roles={"engine": 2, "driver": 1}, backend="none")
def test_an_engine_is_done_before_the_other(world) -> None:
    """One engine has returned; the driver still works with the other one.

    Source: field report class: engines with different loads
    """
    if world.role == "driver":
        post(world.port("engine", 0))
        post(world.port("engine", 1))
        return
    pause = SLOW_S * world.role_rank
    answer = lambda _: time.sleep(pause) or "ok"  # noqa: E731
    http_server(world.port("engine", world.role_rank), answer).handle_request()


@innocent(roles=PAIR, backend="none")
def test_two_wait_for_a_timer(world) -> None:
    """The engine waits for the driver, which waits for a timer of its own.

    Source: field report class: a rate limit
    """
    if world.role == "driver":
        is_over = threading.Event()
        timer = threading.Timer(SLOW_S, is_over.set)
        timer.start()
        is_over.wait()
        connected(world.port("engine")).close()
        return
    with socket.create_server((HOST, world.port("engine"))) as server:
        server.accept()


@innocent(roles={"trainer": 1, "engine": 1}, backend="none")
def test_engine_asks_by_a_unix_socket(world) -> None:
    """The trainer answers late.

    Source: field report class: ipc:// between a frontend and its engines
    """
    path = str(world.shared_directory / "engine.sock")
    with socket.socket(socket.AF_UNIX) as here:
        if world.role == "trainer":
            here.bind(path)
            here.listen()
        world.barrier("listens")
        if world.role == "engine":
            here.connect(path)
            assert here.recv(1) == b"x"
            return
        connection, _ = here.accept()
        time.sleep(SLOW_S)
        connection.sendall(b"x")
        connection.close()
