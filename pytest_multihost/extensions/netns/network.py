"""Builds one world's network of hosts from Linux namespaces, and moves a rank onto its host.

The server builds the network before it forks the ranks. Each host is a network namespace with its
own address. Cables lead to a bridge in one more namespace, so the machine's own network is not
touched, and nothing outside can be reached. A rank enters the network namespace of its host, and
creates its own host name and its own view of /etc/hosts and /etc/resolv.conf.

No namespace has a name in the file system. File descriptors of the server and the processes inside
keep a namespace alive, so it disappears with them, however they end.

A child of the server builds the network. A process that enters a user namespace cannot return:
setns(2) and unshare(2) with CLONE_NEWUSER give it every capability inside and take all capabilities
outside, including those for the way back (user_namespaces(7)). The server must keep its own, so the
child enters the namespaces, sends back file descriptors and results, and ends. The child performs
every step that a rank performs when it enters its host. If the kernel refuses a step, it does so
here, where the refusal can be reported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.launch import libc
from pytest_multihost.core.launch.packets import receive_packet, send_packet
from pytest_multihost.core.launch.ports import reserve_port
from pytest_multihost.core.launch.refusals import remedy_against
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.json_values import message
from pytest_multihost.core.model.spec import Host
from pytest_multihost.core.netlink import open_sock_diag
from pytest_multihost.extensions.netns.hosts import BRIDGE_ADDRESS, NETWORK
from pytest_multihost.extensions.netns.links import ETHERNET, LOOPBACK, Links

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
    """A part of the network is built; sent with its file descriptors."""


@message
class ChildFailed:
    """The child's work has failed.

    Attributes:
        step: The step that the kernel has refused, such as "make a network namespace"; empty for
            another kind of failure.
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
    """Build the hosts and send their file descriptors.

    Sends `ChildFailed`, or these `Built`: one with the bridge's network namespace, and the user
    namespace if one was created; one for each host in order, with its network namespace and a
    socket that reads its tables; one with sockets that are bound to ports on the primary's host.

    Args:
        folder: Has the files that replace those in /etc on the hosts.
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
    """Gain the right to create namespaces; return the new user namespace, if one was needed."""
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

    Each host has a veth pair, as containers do. The bridge has its own namespace, so the machine's
    network is not touched, and the netfault daemon can unplug cables there without being on a host.
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
    """Write the files of each host into a folder with its name."""
    table = _hosts_table(hosts)
    for host in hosts:
        own = folder / host.name
        own.mkdir(parents=True)
        files.write(own / _HOSTS, table)
        files.write(own / "resolv.conf", _RESOLVER)


def set_names_known(folder: Path, hosts: Sequence[Host], host: Host, *, is_known: bool) -> None:
    """Make a host resolve the names of all others, or of none; takes effect at once."""
    wanted = _hosts_table(hosts if is_known else [host])
    path = folder / host.name / _HOSTS
    if path.read_text(encoding="utf-8") != wanted:
        # In place, because a bind mount keeps showing the old inode if the path is replaced.
        files.put(path, wanted)


def _hosts_table(hosts: Sequence[Host]) -> str:
    """Return the text of an /etc/hosts."""
    table = "".join(f"{each.address}\t{each.name}\n" for each in hosts)
    return f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{table}"


def mount_own_files(folder: Path, name: str) -> None:
    """Give this process a host's name, and the host's files in place of the machine's.

    Uses new mount and UTS namespaces, so no other process is affected. On a machine without
    /etc/resolv.conf there is nothing to mount the host's file over, and names are not resolved
    there anyway. /etc/hosts is required, because gloo and jax resolve the host's own name.

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

    Fork without exec is sound here, because the server has one thread (see `launch.server.serve`).
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


BUILD_S = 30.0
"""Timeout for the kernel to build a network; normally it takes milliseconds."""

HOSTS_FOLDER = "service-hosts"
"""The folder in a world's scratch directory with the hosts' replacements for files in /etc."""

_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
_ABSENT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV, errno.EAFNOSUPPORT)
_AS_ROOT = "run pytest as root"


@dataclass(slots=True)
class HostNetwork:
    """The hosts of one world and the network between them; the server holds it.

    Attributes:
        bridge: File descriptor of the bridge's network namespace.
        namespaces: File descriptors of the hosts' network namespaces.
        user: File descriptor of the user namespace that owns all of these; None if the server has
            the privileges itself.
        ports: Bound sockets on the primary's host, which reserve ports for the world.
        tables: Sockets through which any process can read the hosts' socket tables.
        folder: Has a folder for each host, with the host's replacements for files in /etc. The host
            sees changes of these files at once.
    """

    hosts: tuple[Host, ...]
    bridge: int
    namespaces: tuple[int, ...]
    user: int | None
    ports: tuple[socket.socket, ...]
    tables: tuple[int, ...]
    folder: Path

    @property
    def descriptors(self) -> list[int]:
        """All file descriptors of the network that the server holds."""
        user = [] if self.user is None else [self.user]
        own = [self.bridge, *self.namespaces, *self.tables, *user]
        return [*own, *(port.fileno() for port in self.ports)]

    @property
    def names(self) -> list[str]:
        """The kernel's names of the hosts' network namespaces, such as "net:[4026532840]"."""
        return [os.readlink(f"/proc/self/fd/{each}") for each in self.namespaces]

    def enter(self, rank: int) -> None:
        """Move this process, a newly forked rank, onto its host.

        Raises:
            OSError: The kernel refuses, although it allowed building the network.
        """
        host = next(each for each in self.hosts if rank in each.ranks)
        self.become_owner()
        libc.join(self.namespaces[host.index], libc.NEW_NETWORK)
        mount_own_files(self.folder / host.name, host.name)
        # Up to here, a process in a user namespace has every capability, even an ordinary user's.
        if self.user is not None and os.geteuid() != 0:
            libc.drop_capabilities()

    def become_owner(self) -> None:
        """Give this process, a child of the server, all capabilities over the namespaces."""
        if self.user is not None:
            libc.join(self.user, libc.NEW_USERS)

    def close(self) -> None:
        """Close all file descriptors; the network disappears with the last process inside."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        for port in self.ports:
            port.detach()


def make_network(hosts: tuple[Host, ...], folder: Path) -> HostNetwork:
    """Build the hosts of a world.

    Args:
        folder: For the hosts' replacements of files in /etc; it is created.

    Raises:
        LaunchError: The hosts cannot be built on this machine; the error has reason and remedy.
        OSError: The hosts' files cannot be written.
    """
    write_files(folder, hosts)
    pid, connection = start_child(partial(build, hosts, folder))
    connection.settimeout(BUILD_S)
    try:
        packets = list(iter(lambda: receive_packet(connection, Built | ChildFailed), None))
    except TimeoutError as error:
        message = "the kernel did not make the network of the world's hosts"
        raise LaunchError(message, seen=f"It took longer than {BUILD_S:g} s.") from error
    finally:
        connection.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for packet in packets:
        if isinstance(packet.message, ChildFailed):
            raise refusal(packet.message)
    if len(packets) != len(hosts) + 2:
        raise refusal(ChildFailed("its process was killed"))
    bridge, *inside, ports = packets
    return HostNetwork(
        hosts=hosts,
        bridge=bridge.descriptors[0],
        user=bridge.descriptors[1] if len(bridge.descriptors) > 1 else None,
        namespaces=tuple(each.descriptors[0] for each in inside),
        tables=tuple(each.descriptors[1] for each in inside),
        ports=tuple(socket.socket(fileno=each) for each in ports.descriptors),
        folder=folder,
    )


def refusal(reason: ChildFailed) -> LaunchError:
    """Return the error for a failed child, with the reason and the remedy."""
    happened = "hosts cannot be made from namespaces here"
    if not reason.step:
        return LaunchError(happened, seen=f"The process that builds them failed: {reason.error}.")
    seen = f"The kernel does not let this process {reason.step}: {reason.error}."
    return LaunchError(happened, seen=seen, remedy=remedy(reason.errno, _read))


def remedy(number: int, read: Callable[[str], str]) -> str:
    """Return the remedy for an error of the kernel.

    Args:
        read: Reads files of /proc and of the root directory.
    """
    if number in _ABSENT:
        return "A kernel with network namespaces, veth and bridge is needed: modprobe veth bridge."
    if number in (errno.ENOSPC, errno.EUSERS):
        return "There is a limit: see /proc/sys/user/max_{user,net,mnt,uts}_namespaces."
    if limit := remedy_against(OSError(number, "")):
        return limit
    if re.search(r"^Seccomp:\s*2", read("/proc/self/status"), re.MULTILINE):
        options = "--cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt apparmor=unconfined"
        helps = f"In a container: start it with {options} (or --privileged)"
    elif read(_APPARMOR).strip() == "1":
        helps = f"Either {_AS_ROOT}, or: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    elif read(_CLONE).strip() == "0":
        helps = f"Either {_AS_ROOT}, or: sysctl -w kernel.unprivileged_userns_clone=1"
    else:
        helps = f"Either {_AS_ROOT}, or allow user namespaces (in a container: --privileged)"
    return f"{helps}, or use hosts='one'."


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
