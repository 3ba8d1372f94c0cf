"""A real server as a role, unmodified: uvicorn, with a pool of clients."""

from __future__ import annotations

import pytest

SERVED = """
import concurrent.futures, http.client, pathlib, time
import pytest
from pytest_multihost import Role

pathlib.Path("served.py").write_text('''
import asyncio

async def app(scope, receive, send):
    if scope["path"] == "/never":
        await asyncio.Event().wait()
    if scope["path"] == "/late":
        await asyncio.sleep(2)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
''')
PROGRAM = "-m uvicorn served:app --lifespan off --port {port} --log-level warning"
ROLES = {
    "client": Role(3, after="server"),
    "server": Role(1, run=PROGRAM, ready="tcp:{port}", service=True),
}

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

@pytest.mark.multihost(roles=ROLES, timeout=5)
def test_never(world):
    get(world, "/never" if world.role_rank == 2 else "/")
    world.barrier()

@pytest.mark.multihost(roles=ROLES, timeout=5)
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
    """At the deadline: it looks ten times a second whether it is to end."""
    found = worlds.verdicts["test_never"]["diagnosis"]
    assert (found["culprits"], found["waiting"]) == ([3], [0, 1, 2])
    assert found["where"]["source"] == "await asyncio.Event().wait()"


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SERVED)
def test_a_client_that_sleeps_is_named_and_not_the_server(worlds) -> None:
    """The server has nothing to do."""
    found = worlds.verdicts["test_client"]["diagnosis"]
    assert (found["culprits"], found["waiting"]) == ([2], [0, 1])
