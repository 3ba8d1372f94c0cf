"""Build the namespaces, links and files of a world's hosts, in a child of the server.

A process that enters a user namespace cannot return: setns(2) and unshare(2) with CLONE_NEWUSER
give it every capability inside and take all that it has outside, also those that it would need to
come back (user_namespaces(7)). The server must keep its own. So a child of it enters the
namespaces, and sends back descriptors and results.

The child that builds them ends as soon as it has sent their descriptors. It goes through every step
that a rank will go through when it enters its host: a kernel that refuses a step does so here,
where it can be reported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_multihost.launch import libc
from pytest_multihost.launch.netns.netlink import ETHERNET, LOOPBACK, Links, open_sock_diag
from pytest_multihost.launch.wire import Packet, receive_packet, send_packet
from pytest_multihost.model.spec import BRIDGE_ADDRESS, NETWORK, Host

BRIDGE = "lan"
"""Name of the bridge; "br" would be a keyword of ip(8)."""

_PORTS = 2
_CREATE_NETWORK = "make a network namespace"
_ETC = "/etc"
_HOSTS = "hosts"

_RESOLVER = """\
# Nothing answers here, so that names which are not in /etc/hosts are unknown at once.
nameserver 127.0.0.1
options timeout:1 attempts:1
"""


@dataclass(frozen=True, slots=True)
class Built:
    """A part of the network is built; sent with its descriptors."""

    kind: ClassVar = "built"


@dataclass(frozen=True, slots=True)
class Refused:
    """The kernel has refused a step.

    Attributes:
        step: The step, as in "make a network namespace".
        errno: The error's number.
        error: The error's text.
    """

    kind: ClassVar = "refused"
    step: str
    errno: int
    error: str


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """The child's work has raised an exception."""

    kind: ClassVar = "failed"
    error: str


BuildMessage = Built | Refused | ChildFailed


class RefusedError(Exception):
    """The kernel has refused a step."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error.strerror}")
        self.refused = Refused(step, error.errno or 0, error.strerror or str(error))


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RefusedError(what, error) from error


@dataclass(slots=True)
class _Namespace:
    """One network namespace: its descriptor, its links, and a socket that reads its tables."""

    descriptor: int
    links: Links
    table: socket.socket


def build(hosts: Sequence[Host], folder: Path, connection: socket.socket) -> None:
    """Build the hosts and send their descriptors.

    Sends `Refused`; or a `Built` with the bridge's network namespace, and the user namespace if one
    was created; then one for each host in order, with its network namespace and a socket that reads
    its tables; then one with sockets that are bound to ports on the primary's host.

    Args:
        hosts: All hosts.
        folder: Holds the files that replace those in /etc on the hosts.
        connection: Where the packets are sent.
    """
    try:
        user = _gain_privileges()
        bridge = _enter_new_namespace()
        # The primary's host is created last, so this process is on it and binds its ports there.
        spaces = [_enter_new_namespace() for _ in hosts][::-1]
        ports = [socket.socket() for _ in range(_PORTS)]
        with _step("mount files over those in /etc, and name a host"):
            mount_own_files(folder / hosts[0].name, hosts[0].name)
        with _step("connect hosts by a bridge and cables"):
            _connect(bridge, spaces, hosts)
            for port in ports:  # as `reserve_port` does
                port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                port.bind((hosts[0].address, 0))
    except RefusedError as error:
        send_packet(connection, error.refused)
        return
    send_packet(connection, Built(), [bridge.descriptor, *user])
    for each in spaces:
        send_packet(connection, Built(), [each.descriptor, each.table.fileno()])
    send_packet(connection, Built(), [port.fileno() for port in ports])


def _gain_privileges() -> list[int]:
    """Become able to create namespaces; return the new user namespace, if one was needed."""
    with _step(_CREATE_NETWORK), contextlib.suppress(PermissionError):
        libc.unshare(libc.NEW_NETWORK)
        return []
    with _step("make a user namespace"):
        libc.unshare_user()
    return [os.open("/proc/self/ns/user", os.O_RDONLY)]


def _enter_new_namespace() -> _Namespace:
    """Move into a new network namespace and return it."""
    with _step(_CREATE_NETWORK):
        libc.unshare(libc.NEW_NETWORK)
        return _Namespace(os.open("/proc/self/ns/net", os.O_RDONLY), Links(), open_sock_diag())


def _connect(bridge: _Namespace, spaces: Sequence[_Namespace], hosts: Sequence[Host]) -> None:
    """Plug all hosts into the bridge, and set all interfaces up.

    A veth pair for each host, as for containers. The bridge has a namespace of its own, so that
    nothing of the machine's network is touched; and cables can be unplugged there by the netfault
    daemon, which is not on any host.
    """
    bridge.links.add_bridge(BRIDGE, ETHERNET)
    bridge.links.disable_ipv6(ETHERNET)
    bridge.links.add_address(ETHERNET, BRIDGE_ADDRESS, NETWORK.prefixlen)
    bridge.links.set_up(LOOPBACK)
    bridge.links.set_up(ETHERNET)
    for host, space in zip(hosts, spaces, strict=True):
        cable = ETHERNET + 1 + host.index
        bridge.links.add_cable(
            host.name, cable, bridge=ETHERNET, peer=host.interface, namespace=space.descriptor
        )
        for links, index in ((bridge.links, cable), (space.links, ETHERNET)):
            links.disable_ipv6(index)
            links.set_up(index)
        space.links.set_up(LOOPBACK)
        space.links.add_address(ETHERNET, host.address, NETWORK.prefixlen)


def write_files(folder: Path, hosts: Sequence[Host]) -> None:
    """Write the files of all hosts, those of each host into a folder with its name."""
    table = _hosts_table(hosts)
    for host in hosts:
        own = folder / host.name
        own.mkdir(parents=True)
        (own / _HOSTS).write_text(table, encoding="utf-8")
        (own / "resolv.conf").write_text(_RESOLVER, encoding="utf-8")


def set_names_known(folder: Path, hosts: Sequence[Host], host: Host, *, is_known: bool) -> None:
    """Make a host resolve the names of all others, or none; takes effect at once."""
    wanted = _hosts_table(hosts if is_known else [host])
    path = folder / host.name / _HOSTS
    if path.read_text(encoding="utf-8") != wanted:
        # In place: a bind mount keeps showing the inode, even if the path is replaced.
        path.write_text(wanted, encoding="utf-8")


def _hosts_table(hosts: Sequence[Host]) -> str:
    """Return the text of an /etc/hosts."""
    table = "".join(f"{each.address}\t{each.name}\n" for each in hosts)
    return f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{table}"


def mount_own_files(folder: Path, name: str) -> None:
    """Give this process a host's name, and the host's files in place of the machine's.

    In new mount and UTS namespaces, so no other process sees it. On a machine without
    /etc/resolv.conf there is nothing to mount it over; names are not resolved there anyway.
    /etc/hosts is needed: gloo and jax resolve the host's own name.

    Raises:
        OSError: The kernel refuses.
    """
    libc.unshare(libc.NEW_MOUNTS | libc.NEW_UTS)
    libc.make_mounts_private()
    for path in sorted(folder.iterdir()):
        target = Path(_ETC, path.name)
        if path.name == _HOSTS or target.exists():
            libc.bind_mount(str(path), str(target))
    socket.sethostname(name)


def run_in_child(
    work: Callable[[socket.socket], None], messages: object, *, timeout_s: float
) -> list[Packet[Any]]:
    """Run a child until it ends, and return the packets that it has sent.

    Args:
        work: Runs in the child, and sends packets.
        messages: The messages it may send, a union of classes that includes `ChildFailed`.
        timeout_s: Timeout for each packet.

    Raises:
        TimeoutError: No packet came in time; the child has been killed.
    """
    pid, connection = start_child(work)
    connection.settimeout(timeout_s)
    try:
        return list(iter(lambda: receive_packet(connection, messages), None))
    finally:
        connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def start_child(work: Callable[[socket.socket], None]) -> tuple[int, socket.socket]:
    """Start a child; return its process id, and the connection to it.

    Fork without exec is sound here: the server has one thread (see `launch.server.serve`).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        try:
            libc.die_with_parent(parent)
            work(theirs)
        except BaseException as error:  # noqa: BLE001 - nothing may unwind into the server's stack
            with contextlib.suppress(OSError):
                send_packet(theirs, ChildFailed(f"{type(error).__name__}: {error}"))
        finally:
            os._exit(0)
    theirs.close()
    return pid, ours
