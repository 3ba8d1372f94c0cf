"""Hosts from namespaces, for real: what can be reached, what is hidden, what is left."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_multihost.core.launch import libc
from pytest_multihost.core.watch.kernel import HarnessProcesses, inet_sockets, link, unix_sockets
from pytest_multihost.core.watch.kernel.descriptors import Tables
from pytest_multihost.core.watch.kernel.proc_files import entries
from pytest_multihost.extensions.netns.hosts import BRIDGE_ADDRESS, hosts_of
from pytest_multihost.extensions.netns.network import HostNetwork, make_network
from pytest_multihost.testing import Endpoint, LaunchError

HOSTS = hosts_of(3, 1, "netns")
TCP = 6
NOBODY = 65534
T = TypeVar("T")
DUMPABLE = 4

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def allowed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where the kernel refuses."""
    try:
        make_network(HOSTS[:1], tmp_path_factory.mktemp("trial") / "hosts").close()
    except LaunchError as error:
        pytest.skip(" ".join(str(error).splitlines()))


@pytest.fixture
def network(tmp_path: Path) -> Iterator[HostNetwork]:
    """Three hosts of one rank each."""
    made = make_network(HOSTS, tmp_path / "hosts")
    yield made
    made.close()


class Inside:
    """Processes on hosts; they end with the test."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def start(self, network: HostNetwork, rank: int, work: Callable[[], T]) -> T:
        """Return what `work` returns on the host of a rank; its process stays, and holds on."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                network.enter(rank)
                answer = {"value": work()}
            except BaseException as error:  # noqa: BLE001 - it is told
                answer = {"error": f"{type(error).__name__}: {error}"}
            os.write(writing, json.dumps(answer).encode())
            os.close(writing)
            signal.pause()
            os._exit(0)
        self.pids.append(pid)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as file:
            answer = json.load(file)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def end(self) -> None:
        """Kill all."""
        while self.pids:
            pid = self.pids.pop()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def inside() -> Iterator[Inside]:
    """Processes on hosts, none of which outlives the test."""
    found = Inside()
    yield found
    found.end()


KEPT: list[socket.socket] = []
"""In a process on a host: what must stay open."""


def listen(address: str, port: int = 5000) -> None:
    """Wait for connections."""
    KEPT.append(socket.create_server((address, port)))


def connect(address: str, port: int = 5000, timeout_s: float = 20) -> int:
    """Connect, and return the error's number; EAGAIN: no answer came."""
    KEPT.append(socket.socket())
    KEPT[-1].settimeout(timeout_s)
    return KEPT[-1].connect_ex((address, port))


def test_hosts_reach_each_other_at_their_addresses(network: HostNetwork, inside: Inside) -> None:
    """Also themselves."""
    inside.start(network, 1, lambda: listen("10.77.0.2"))
    assert inside.start(network, 2, lambda: connect("10.77.0.2")) == 0
    assert inside.start(network, 1, lambda: connect("10.77.0.2")) == 0


def test_a_host_that_does_not_listen_refuses_at_once(network: HostNetwork, inside: Inside) -> None:
    """Nothing filters between hosts."""
    assert inside.start(network, 0, lambda: connect("10.77.0.2")) == errno.ECONNREFUSED


def test_nothing_outside_can_be_reached(network: HostNetwork, inside: Inside) -> None:
    """Neither the internet nor a service on the machine's loopback; both fail at once."""
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        assert inside.start(network, 0, lambda: connect("127.0.0.1", port)) == errno.ECONNREFUSED
    assert inside.start(network, 0, lambda: connect("192.0.2.1")) == errno.ENETUNREACH


def test_hosts_know_all_names_and_their_own(network: HostNetwork, inside: Inside) -> None:
    """Both gloo and jax look up what the host calls itself."""

    def names() -> list[str]:
        own = socket.gethostname()
        return [own, os.uname().nodename, *(socket.gethostbyname(each.name) for each in HOSTS)]

    assert inside.start(network, 1, names) == [
        "host-1",
        "host-1",
        "10.77.0.1",
        "10.77.0.2",
        "10.77.0.3",
    ]


def test_a_name_that_nobody_knows_fails_at_once(network: HostNetwork, inside: Inside) -> None:
    """A resolver that is waited for would make every start-up slow."""

    def ask() -> float:
        start = time.monotonic()
        with suppress(socket.gaierror):
            socket.getaddrinfo("somewhere.example.org", 80)
            return -1.0
        return time.monotonic() - start

    assert 0 <= inside.start(network, 0, ask) < 0.9, "less than one timeout of the resolver"


def test_ports_are_the_primarys_and_held_for_it(network: HostNetwork, inside: Inside) -> None:
    """Whoever takes a port is not given one of these; who insists, as libuv and gRPC do, is."""
    host, port = network.ports[0].getsockname()

    def insist() -> int:
        KEPT.append(socket.socket())
        KEPT[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        KEPT[-1].bind((host, port))
        KEPT[-1].listen()
        return port

    def take() -> int:
        with socket.socket() as other:
            try:
                other.bind((host, port))
            except OSError as error:
                return error.errno or 0
        return 0

    assert inside.start(network, 0, take) == errno.EADDRINUSE
    assert inside.start(network, 0, insist) == port
    assert inside.start(network, 2, lambda: connect(host, port)) == 0


def test_the_machine_itself_is_as_it_was(network: HostNetwork, inside: Inside) -> None:
    """Its interfaces, its name, its files: whoever is on a host has others."""
    before = (socket.if_nameindex(), socket.gethostname(), Path("/etc/hosts").read_text())
    mounts = Path("/proc/self/mountinfo").read_text()
    found = inside.start(network, 0, lambda: [each for _, each in socket.if_nameindex()])
    assert (socket.if_nameindex(), socket.gethostname(), Path("/etc/hosts").read_text()) == before
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert {"lo", "eth0"} <= set(found)


def test_whoever_enters_stays_in_its_directory(network: HostNetwork, inside: Inside) -> None:
    """A rank's relative paths mean what they meant."""
    assert inside.start(network, 0, lambda: str(Path.cwd())) == str(Path.cwd())


# An ordinary user


def as_nobody(work: Callable[[Path], str], folder: Path) -> None:
    """Run `work` as an ordinary user; what it returns must be empty."""
    import encodings.idna  # noqa: F401 - who becomes nobody may not be allowed to read it
    from ctypes import CDLL

    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                CDLL(None).prctl(DUMPABLE, 1, 0, 0, 0)
            problem = work(folder)
        except BaseException as error:  # noqa: BLE001 - it is told
            problem = f"{type(error).__name__}: {error}"
        (folder / "problem").write_text(problem)
        os._exit(0)
    os.waitpid(pid, 0)
    assert (folder / "problem").read_text() == ""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can get at."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="multihost-hosts-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_an_ordinary_user_has_hosts_and_no_privileges_on_them(open_folder: Path) -> None:
    """User and group are the same as before; what is forbidden stays forbidden."""

    def look() -> list[object]:
        status = dict(
            line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines()
        )
        forbidden = open_folder / "forbidden"
        forbidden.touch(0o000)
        try:
            forbidden.read_text()
        except PermissionError:
            return [int(status["CapEff"], 16), int(status["CapPrm"], 16), "refused"]
        return ["could read what is forbidden"]

    def work(folder: Path) -> str:
        made = make_network(HOSTS, folder / "hosts")
        if made.user is None:
            return "there is no user namespace"
        found = Inside()
        try:
            seen = found.start(made, 0, look)
            ids = found.start(made, 0, lambda: [os.getuid(), os.getgid(), socket.gethostname()])
            expected = [[0, 0, "refused"], [os.getuid(), os.getgid(), "host-0"]]
            return "" if [seen, ids] == expected else repr([seen, ids])
        finally:
            found.end()
            made.close()

    as_nobody(work, open_folder)


# As the controller sees it


CONTROLLER = """
import sys, time
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_multihost.core.launch.server.launcher import ServerLauncher
from pytest_multihost.core.launch.server.start_server import fork_server
from pytest_multihost.core.host_kind import Hosts
from pytest_multihost.extensions.netns.kind_of_hosts import NETNS
from pytest_multihost.testing import make_spec

def live(spec, channel):
    time.sleep(600)

folder = Path(sys.argv[1])
launcher = ServerLauncher({"fork": partial(fork_server, live, lambda: None)})
launcher.open()
print(launcher.why_no_hosts(NETNS.probe, folder / "trial"))
for hosts in (Hosts(NETNS), Hosts()):
    spec = replace(make_spec(2), hosts=hosts.of(2), services=hosts.services)
    world = launcher.start(spec, directory=folder, scratch=folder)
    print(len(world.socket_tables), *sorted(event.rank for event in world.end(grace_s=0.0).events))
launcher.close()
"""


def test_the_controller_gets_the_socket_tables_of_the_hosts(tmp_path: Path) -> None:
    """One for each host; a world on one host has no network of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", CONTROLLER, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == ["None", "2 0 1", "0 0 1"]


# Who is at the other end


class World:
    """Processes on hosts, as whoever seeks a proof sees them."""

    def __init__(self, network: HostNetwork, pids: list[int]) -> None:
        self.tables = dict(
            zip(
                network.names,
                (socket.socket(fileno=os.dup(t)) for t in network.tables),
                strict=True,
            )
        )
        links = {
            pid: {fd: link(f"/proc/{pid}/fd/{fd}") for fd in entries(f"/proc/{pid}/fd") or ()}
            for pid in pids
        }
        names = dict.fromkeys(pids, "rank") | {os.getpid(): "pytest"}
        called = {pid: f"rank {rank}" for rank, pid in enumerate(pids)}
        tables = Tables(links, names, called, HarnessProcesses(socket_tables=self.tables))
        ours = {link(f"/proc/self/fd/{fd}") for fd in entries("/proc/self/fd") or ()}
        self.found = [
            [
                tables.describe(pid, fd)
                for fd, target in links[pid].items()
                if target.startswith("socket:") and target not in ours  # else it was inherited
            ]
            for pid in pids
        ]
        for table in self.tables.values():
            table.close()

    def of(self, rank: int, kind: str) -> list[tuple[str, str]]:
        """Return where the sockets of a kind lead, and to whom."""
        return [(each.where, each.peer) for each in self.found[rank] if each.kind == kind]


def test_a_connection_between_hosts_stays_inside(network: HostNetwork, inside: Inside) -> None:
    """It leads to a rank, whose socket is in the table of another host."""
    inside.start(network, 1, lambda: listen("10.77.0.2"))
    inside.start(network, 0, lambda: connect("10.77.0.2"))
    world = World(network, [inside.pids[1], inside.pids[0]])
    assert world.of(0, "tcp") == [("inside", "10.77.0.2:5000 (rank 1)")]


def test_a_connection_to_somebody_else_leads_outside(network: HostNetwork, inside: Inside) -> None:
    """A service that stands on the bridge is no rank, and may answer."""
    ready = Path(network.folder, "ready")
    service = (
        "import socket, pathlib, sys, time\n"
        f"s = socket.create_server(('{BRIDGE_ADDRESS}', 5000))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(600)\n"
    )
    pid = os.fork()
    if pid == 0:
        network.become_owner()
        libc.join(network.bridge, libc.NEW_NETWORK)
        os.execv(sys.executable, [sys.executable, "-c", service])
    inside.pids.append(pid)
    deadline = time.monotonic() + 20
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert inside.start(network, 0, lambda: connect(BRIDGE_ADDRESS)) == 0
    world = World(network, [inside.pids[1]])
    assert world.of(0, "tcp") == [("outside", f"{BRIDGE_ADDRESS}:5000")]


def test_pairs_of_sockets_on_a_host_stay_inside(network: HostNetwork, inside: Inside) -> None:
    """As asyncio makes them; they are in no table but the host's."""

    def pair() -> None:
        KEPT.extend(socket.socketpair())

    inside.start(network, 0, pair)
    world = World(network, inside.pids)
    assert world.of(0, "unix") == [("inside", "(rank 0)")] * 2


def test_equal_addresses_on_two_loopbacks_are_told_apart(
    network: HostNetwork, inside: Inside
) -> None:
    """One rank talks to itself; the other, by equal ports, to a child that is gone."""

    def talk() -> None:
        server = socket.create_server(("127.0.0.1", 5000))
        client = socket.socket()
        client.bind(("127.0.0.1", 6000))
        client.connect(("127.0.0.1", 5000))
        KEPT.extend([server, client, server.accept()[0]])

    inside.start(network, 0, talk)
    inside.start(network, 1, talk)
    world = World(network, inside.pids)
    for rank in (0, 1):
        assert {peer.rpartition(" (")[2] for _, peer in world.of(rank, "tcp")} == {f"rank {rank})"}


def test_a_hosts_tables_can_be_read_when_all_on_it_are_dead(
    network: HostNetwork, inside: Inside
) -> None:
    """/proc shows a namespace only by a process that lives there."""
    inside.start(network, 1, lambda: listen("10.77.0.2"))
    table = socket.socket(fileno=os.dup(network.tables[1]))
    try:
        listening = Endpoint("10.77.0.2", 5000)
        assert [each.local for each in inet_sockets(TCP, "", table)].count(listening) == 1
        inside.end()
        assert listening not in [each.local for each in inet_sockets(TCP, "", table)]
        assert unix_sockets(table) == []
    finally:
        table.close()


# What is left


def spaces() -> set[str]:
    """Return the network namespaces that processes are in, or hold open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.add(os.readlink(process / "ns/net"))
            found |= {os.readlink(each) for each in (process / "fd").iterdir()}
    return {each for each in found if each.startswith("net:")}


def test_nothing_is_left_of_many_networks(tmp_path: Path, inside: Inside) -> None:
    """With a process on a host each, which was killed: no namespace, no descriptor."""
    held = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        made = make_network(HOSTS, tmp_path / str(number))
        own = {os.readlink(f"/proc/self/fd/{each}") for each in (made.bridge, *made.namespaces)}
        inside.start(made, 2, lambda: listen("10.77.0.3"))
        assert own <= spaces()
        made.close()
        inside.end()
        assert own.isdisjoint(spaces())
    assert len(os.listdir("/proc/self/fd")) == held


def test_a_network_ends_with_whoever_holds_it(tmp_path: Path) -> None:
    """SIGKILL: nobody cleans up, and nothing has a name under which it would stay."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from pytest_multihost.extensions.netns.network import make_network\n"
        "from pytest_multihost.extensions.netns.hosts import hosts_of\n"
        "network = make_network(hosts_of(3, 1, 'netns'), Path(sys.argv[1]))\n"
        "print(*network.names, flush=True); time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "hosts")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    own = set(holder.stdout.readline().split())
    assert len(own & spaces()) == 3
    holder.kill()
    holder.communicate()
    assert own.isdisjoint(spaces())
