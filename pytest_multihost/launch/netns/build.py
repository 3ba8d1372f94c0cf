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
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.launch import libc
from pytest_multihost.launch.netns.netlink import ETHERNET, LOOPBACK, Links, open_sock_diag
from pytest_multihost.launch.wire import send_packet
from pytest_multihost.model.json_values import message
from pytest_multihost.model.spec import BRIDGE_ADDRESS, NETWORK, Host

BRIDGE = "lan"
"""Name of the bridge; "br" would be a keyword of ip(8)."""

_CREATE_NETWORK = "make a network namespace"
_ETC = "/etc"
_HOSTS = "hosts"

_RESOLVER = """\
# Nothing answers here, so that names which are not in /etc/hosts are unknown at once.
nameserver 127.0.0.1
options timeout:1 attempts:1
"""


@message
class Built:
    """A part of the network is built; sent with its descriptors."""


@message
class ChildFailed:
    """The child's work has failed.

    Attributes:
        error: The error's text.
        step: The step that the kernel has refused, as in "make a network namespace"; empty if the
            child has failed otherwise.
        errno: The number of the kernel's error.
    """

    error: str
    step: str = ""
    errno: int = 0


class _RefusedError(Exception):
    """The kernel has refused a step."""


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        failed = ChildFailed(error.strerror or str(error), what, error.errno or 0)
        raise _RefusedError(failed) from error


@dataclass(slots=True)
class _Namespace:
    """One network namespace: its descriptor, its links, and a socket that reads its tables."""

    descriptor: int
    links: Links
    table: socket.socket


def build(hosts: Sequence[Host], folder: Path, connection: socket.socket) -> None:
    """Build the hosts and send their descriptors.

    Sends `ChildFailed`; or a `Built` with the bridge's network namespace, and the user namespace if
    one was created; then one for each host in order, with its network namespace and a socket that
    reads its tables; then one with sockets that are bound to ports on the primary's host.

    Args:
        hosts: All hosts.
        folder: Holds the files that replace those in /etc on the hosts.
        connection: Where the packets are sent.
    """
    try:
        user = _gain_privileges()
        bridge = _enter_new_namespace()
        # The primary's host is created last, so this process is on it and reserves its ports there.
        spaces = [_enter_new_namespace() for _ in hosts][::-1]
        with _step("mount files over those in /etc, and name a host"):
            mount_own_files(folder / hosts[0].name, hosts[0].name)
        with _step("connect hosts by a bridge and cables"):
            _connect(bridge, spaces, hosts)
            ports = [reserve_port(hosts[0].address) for _ in range(2)]
    except _RefusedError as refused:
        send_packet(connection, refused.args[0])
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


def reserve_port(address: str) -> socket.socket:
    """Return a bound, unconnected socket that reserves a port at `address`.

    Finding a free port and closing it again is a race. This socket stays open for the world's
    lifetime, so the kernel assigns its port to no other process. A rank can still bind the port
    with SO_REUSEADDR, as libuv (torch) and gRPC (jax) do, because this socket never listens.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return holder


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
