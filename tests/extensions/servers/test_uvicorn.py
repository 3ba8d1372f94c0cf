"""A real server as a role, unmodified: uvicorn, with a pool of clients."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.namespaces

SERVED = """
import asyncio, concurrent.futures, contextlib, http.client, pathlib, threading, time
import pytest
import uvicorn
from pytest_multihost import Role

pathlib.Path("served.py").write_text('''
import asyncio, time

async def app(scope, receive, send):
    if scope["path"] == "/never":
        await asyncio.Event().wait()
    if scope["path"] == "/late":
        await asyncio.sleep(2)
    if scope["path"] == "/counted":
        for _ in range(30):
            await asyncio.sleep(0.1)
    if scope["path"] == "/timer":
        is_over = asyncio.Event()
        asyncio.get_running_loop().call_later(2, is_over.set)
        await is_over.wait()
    if scope["path"] == "/thread":
        await asyncio.to_thread(time.sleep, 2)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
''')
PROGRAM = "-m uvicorn served:app --lifespan off --port {port} --log-level warning --loop "

def roles(loop):
    server = Role(1, run=PROGRAM + loop, ready="tcp:{port}", service=True)
    return {"client": Role(3, after="server"), "server": server}

ROLES, OTHER = roles("asyncio"), roles("uvloop")

def get(world, path):
    connection = http.client.HTTPConnection("127.0.0.1", world.port("server"))
    connection.request("GET", path)
    found = connection.getresponse().read()
    connection.close()
    return found

@pytest.mark.multihost(roles=ROLES, timeout=30)
def test_passes(world):
    paths = ["/late" if number % 50 == 0 else "/" for number in range(200)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda path: get(world, path), paths))
    assert world.gather(found) == [[b"ok"] * 200] * 3

@pytest.mark.multihost(roles=ROLES, timeout=30)
@pytest.mark.parametrize("how", ["counted", "timer", "thread"])
def test_slow(world, how):
    get(world, f"/{how}" if world.role_rank == 2 else "/")
    world.barrier()

@pytest.mark.multihost(roles=ROLES, timeout=20)
def test_never(world):
    get(world, "/never" if world.role_rank == 2 else "/")
    world.barrier()

@pytest.mark.multihost(roles=OTHER, timeout=5)
def test_never_in_another_loop(world):
    get(world, "/never" if world.role_rank == 2 else "/")
    world.barrier()

class Counting(uvicorn.Server):
    async def on_tick(self, counter):
        if counter == 20:
            self.config.app.is_over.set()
        return await super().on_tick(counter)

class App:
    def __init__(self):
        self.is_over = asyncio.Event()

    async def __call__(self, scope, receive, send):
        await self.is_over.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

@contextlib.contextmanager
def serving(world, kind, app, **more):
    port = world.port("server")
    config = uvicorn.Config(
        app, port=port, lifespan="off", loop="asyncio", log_level="warning", **more
    )
    server = kind(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True  # the server's next turn sees it
        thread.join()

@pytest.mark.multihost(roles={"client": 1, "server": 1}, timeout=30)
@pytest.mark.parametrize("kind", ["on_tick", "callback", "instance"])
def test_turns_answer(world, kind):
    if world.role == "client":
        world.barrier("listens")
        get(world, "/")
        world.barrier("answered")
        return
    app = App()
    calls = []
    async def answer():
        calls.append(1)  # the first one is at the beginning
        if len(calls) == 2:
            app.is_over.set()
    counting, more = uvicorn.Server, {}
    if kind == "on_tick":
        counting = Counting
    elif kind == "callback":
        more = {"callback_notify": answer, "timeout_notify": 2}
    else:
        counting = lambda config: replaced(uvicorn.Server(config), app)
    with serving(world, counting, app, **more):
        while True:
            with contextlib.suppress(OSError), contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", world.port("server"))
            ) as connection:
                connection.connect()
                break
            time.sleep(0.05)
        world.barrier("listens")
        world.barrier("answered")

def replaced(server, app):
    on_tick = server.on_tick
    async def counting(counter):
        if counter == 20:
            app.is_over.set()
        return await on_tick(counter)
    server.on_tick = counting
    return server

@pytest.mark.multihost(roles={"client": 1, "server": 1}, timeout=30)
def test_told_to_end(world):
    for number in range(20):
        if world.role == "server":
            with serving(world, uvicorn.Server, App()):
                time.sleep(0.1 * (number % 5))
        world.barrier(number)

@pytest.mark.multihost(roles=ROLES, timeout=20)
def test_client(world):
    get(world, "/")
    if world.role_rank == 2:
        time.sleep(600)
    world.barrier()

@pytest.mark.multihost(roles=ROLES, timeout=20)
def test_fails(world):
    get(world, "/")
    assert world.role_rank != 2, "its own reason"
"""


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SERVED)
def test_a_server_ends_after_its_clients(worlds) -> None:
    """It runs for ever by itself; slow answers, threads and barriers accuse nobody."""
    assert worlds.verdicts["test_passes"]["status"] == "passed"
    found = worlds.verdicts["test_fails"]
    assert (found["status"], found["outcome"], found["diagnosis"]) == ("failed", "failed", None)


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SERVED)
def test_a_server_that_never_answers_is_named_with_its_line(worlds) -> None:
    """Before the deadline, although it looks ten times a second whether it is to end."""
    found = worlds.verdicts["test_never"]["diagnosis"]
    assert (found["culprits"], found["waiting"], found["detected_by"]) == ([3], [0, 1, 2], "proof")
    assert found["where"]["source"] == "await asyncio.Event().wait()"
    assert found["summary"].startswith("server 0 / python ")


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SERVED)
def test_a_loop_that_cannot_be_asked_is_judged_at_the_deadline(worlds) -> None:
    """What uvloop does in its turns is not known."""
    found = worlds.verdicts["test_never_in_another_loop"]["diagnosis"]
    assert (found["culprits"], found["detected_by"]) == ([3], "deadline")
    assert found["where"]["source"] == "await asyncio.Event().wait()"


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SERVED)
def test_a_client_that_sleeps_is_named_and_not_the_server(worlds) -> None:
    """The server has nothing to do."""
    found = worlds.verdicts["test_client"]["diagnosis"]
    assert (found["culprits"], found["waiting"], found["detected_by"]) == ([2], [0, 1], "proof")


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SERVED)
@pytest.mark.parametrize(
    "name",
    [
        "test_slow[counted]",
        "test_slow[timer]",
        "test_slow[thread]",
        "test_turns_answer[on_tick]",
        "test_turns_answer[callback]",
        "test_turns_answer[instance]",
        "test_told_to_end",
    ],
)
def test_turns_that_do_something_are_no_hang(worlds, name: str) -> None:
    """Timers, threads, and turns that count down; and a server that has just been told to end."""
    assert worlds.verdicts[name]["status"] == "passed"
