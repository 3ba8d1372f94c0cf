"""Roles on a host that nothing outside can reach: what waits there for requests is no way out."""

from __future__ import annotations

import pytest
from runtimes import require

SEALED = """
import os, socket, threading, time
import pytest
from http.server import BaseHTTPRequestHandler, HTTPServer

ROLES = {"engine": 1, "driver": 1, "frontend": 1}

def sleeps(world):
    if world.role == "engine":
        with socket.create_server(("127.0.0.1", world.port("engine"))) as server:
            connection, _ = server.accept()
            time.sleep(600)
    elif world.role == "driver":
        while True:
            try:
                socket.create_connection(("127.0.0.1", world.port("engine"))).recv(1)
            except ConnectionRefusedError:
                time.sleep(0.01)

@pytest.mark.multihost(roles=ROLES, timeout=15)
def test_server(world):
    sleeps(world)
    HTTPServer(("", world.port("frontend")), BaseHTTPRequestHandler).serve_forever()

@pytest.mark.multihost(roles=ROLES, timeout=4, hosts="one")
def test_open(world):
    sleeps(world)
    HTTPServer(("", world.port("frontend")), BaseHTTPRequestHandler).serve_forever()

@pytest.mark.multihost(roles=ROLES, timeout=15)
def test_unix(world):
    sleeps(world)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(world.shared_directory / "s"))
        server.listen()
        server.accept()

@pytest.mark.multihost(roles=ROLES, timeout=15)
def test_abstract(world):
    sleeps(world)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\\0name")
        server.listen()
        server.accept()

@pytest.mark.multihost(roles=ROLES, timeout=4)
def test_unix_elsewhere(world, tmp_path_factory):
    sleeps(world)
    path = f"/tmp/multihost-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        threading.Timer(3.0, os.unlink, [path]).start()
        server.accept()

@pytest.mark.multihost(roles=ROLES, timeout=15)
def test_datagrams(world):
    sleeps(world)
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", world.port("frontend")))
        server.recv(1)

@pytest.mark.multihost(roles=ROLES, timeout=15)
def test_shutdown(world):
    if world.role == "engine":
        with HTTPServer(("", world.port("engine")), BaseHTTPRequestHandler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(3.0,))
            thread.start()
            time.sleep(0.2)
            server.shutdown()
            thread.join()

@pytest.mark.multihost(roles=ROLES, timeout=15)
def test_outside(world):
    if world.role == "driver":
        with pytest.raises(OSError):
            socket.create_connection(("192.0.2.1", 80), timeout=1)
    assert world.host == "host-0"
"""


def told(worlds, name: str) -> tuple[str, list[int], str]:
    """Return what was diagnosed, and how it was detected."""
    found = worlds.verdicts[name]["diagnosis"]
    return found["kind"], found["culprits"], found["detected_by"]


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SEALED)
@pytest.mark.parametrize("name", ["test_server", "test_unix", "test_abstract", "test_datagrams"])
def test_a_server_does_not_prevent_a_proof(worlds, name: str) -> None:
    """Nothing outside can connect; the engine is named, and never the idle server."""
    assert told(worlds, name) == ("straggler", [0], "proof")


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SEALED)
@pytest.mark.parametrize("name", ["test_open", "test_unix_elsewhere"])
def test_a_server_that_others_can_reach_prevents_it(worlds, name: str) -> None:
    """On this machine, or by a path outside of the world's directories."""
    assert told(worlds, name) == ("straggler", [0], "deadline")


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SEALED)
def test_a_server_that_is_to_shut_down_is_not_idle(worlds) -> None:
    """It looks three seconds later; until then the thread that shuts it down waits for a lock."""
    assert worlds.verdicts["test_shutdown"]["status"] == "passed"


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(SEALED)
def test_addresses_outside_cannot_be_reached(worlds) -> None:
    """All roles are on one host of the world's own."""
    assert worlds.verdicts["test_outside"]["status"] == "passed"


REFUSED = """
from pytest_multihost.core.host_kind import HostKind
from pytest_multihost.testing import LaunchError

def probe(folder):
    raise LaunchError("no hosts here", seen="It is forbidden.", remedy="Ask for them.")

def pytest_multihost_hosts():
    return [HostKind(name="refused", hosts=lambda size, each: (), is_sealed=True,
                     probe=__name__ + ":probe")]
"""


@pytest.mark.unit
def test_without_the_rights_roles_run_unsealed_and_the_summary_says_so(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """The test still runs; a kind of hosts that a project offers is tried first."""
    pytester.makeconftest(REFUSED)
    found = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(roles={"engine": 1, "driver": 1}, timeout=20)
        def test_it(world):
            assert world.host == "localhost"
        """
    )
    found.run.assert_outcomes(passed=1)
    assert "the roles share this machine's network (hosts='one')" in found.stdout
    assert "no hosts here. It is forbidden. Ask for them." in found.stdout


ASKING = """
import multiprocessing, os, socket, time
import pytest
import torch
import torch.distributed as dist
import zmq

ROLES = {"engine": 2, "driver": 1}

def core(number, parent):
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if number == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
    parent.send("done")

@pytest.mark.multihost(roles=ROLES, timeout=25)
def test_children(world):
    if world.role == "driver":
        time.sleep(600 * 2)
    mine, its = multiprocessing.get_context("fork").Pipe()
    multiprocessing.get_context("fork").Process(target=core, args=(world.role_rank, its)).start()
    mine.recv()

def bound(world, kind, number=0):
    found = zmq.Context.instance().socket(kind)
    found.bind(f"tcp://127.0.0.1:{world.port('engine', number)}")
    return found

def connected(world, kind, number=0):
    found = zmq.Context.instance().socket(kind)
    found.connect(f"tcp://127.0.0.1:{world.port('engine', number)}")
    return found

@pytest.mark.multihost(roles=ROLES, timeout=25)
def test_messages(world):
    if world.role == "driver":
        asked = connected(world, zmq.REQ)
        asked.send(b"x")
        asked.recv()
    elif world.role_rank == 0:
        driver, other = bound(world, zmq.REP), connected(world, zmq.DEALER, 1)
        driver.recv()
        other.send(b"x")
        other.recv()
    else:
        engine = bound(world, zmq.ROUTER, 1)
        engine.recv_multipart()
        time.sleep(600)

@pytest.mark.multihost(roles=ROLES, timeout=25)
def test_poller(world):
    if world.role == "driver":
        poller, both = zmq.Poller(), [connected(world, zmq.DEALER, number) for number in range(2)]
        for each in both:
            each.send(b"x")
            poller.register(each, zmq.POLLIN)
        while True:
            for each, _ in poller.poll():
                each.recv()
    engine = bound(world, zmq.ROUTER, world.role_rank)
    message = engine.recv_multipart()
    if world.role_rank == 1:
        time.sleep(600)
    engine.send_multipart(message)
    engine.recv_multipart()
"""


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(ASKING)
@pytest.mark.parametrize(
    ("name", "waiting"), [("test_children", [0]), ("test_messages", [0, 2]), ("test_poller", [2])]
)
def test_the_engine_that_sleeps_is_named(worlds, name: str, waiting: list[int]) -> None:
    """Its child has a group, or messages of zmq lead to it."""
    require("zmq", reason="the roles ask each other by zmq")
    assert told(worlds, name) == ("straggler", [1], "proof")
    assert worlds.verdicts[name]["diagnosis"]["waiting"] == waiting
