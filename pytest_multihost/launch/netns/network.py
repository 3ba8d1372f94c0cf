"""Hosts made from Linux namespaces: the network of one world, and a rank's entry to its host.

The server builds it before it forks the ranks. Each host is a network namespace with an address of
its own; cables lead to a bridge in one more namespace, so nothing of the machine's own network is
touched, and nothing outside can be reached. A rank enters the network namespace of its host, and
creates its own host name and its own view of /etc/hosts and /etc/resolv.conf.

No namespace has a name in the file system: descriptors of the server and the processes inside keep
it alive, so it disappears with them, however they end.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_multihost.launch import libc
from pytest_multihost.launch.netns.build import (
    Built,
    ChildFailed,
    build,
    mount_own_files,
    start_child,
    write_files,
)
from pytest_multihost.launch.refusals import remedy_against
from pytest_multihost.launch.wire import receive_packet
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.spec import Host

BUILD_S = 30.0
"""Timeout for the kernel to build a network; normally it takes milliseconds."""

HOSTS_FOLDER = "hosts"
"""Folder of a world's scratch directory with the hosts' replacements for files in /etc."""

_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
_ABSENT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV, errno.EAFNOSUPPORT)
_AS_ROOT = "run pytest as root"


@dataclass(slots=True)
class HostNetwork:
    """The hosts of one world and what connects them, as the server holds them.

    Attributes:
        hosts: The hosts in order, each with its `name`, `address` and `interface`.
        bridge: Descriptor of the bridge's network namespace.
        namespaces: Descriptors of the hosts' network namespaces.
        user: Descriptor of the user namespace that owns all of these; None where the server has
            the privileges itself.
        ports: Bound sockets on the primary's host; they keep ports free for the world.
        tables: Sockets through which any process can read the hosts' socket tables.
        folder: Holds a folder for each host, with its name, for the host's replacements of files
            in /etc. The host sees changes of these files at once.
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
        """All descriptors of the network that the server holds."""
        user = [] if self.user is None else [self.user]
        own = [self.bridge, *self.namespaces, *self.tables, *user]
        return [*own, *(port.fileno() for port in self.ports)]

    @property
    def names(self) -> list[str]:
        """The kernel's names of the hosts' network namespaces, as in "net:[4026532840]"."""
        return [os.readlink(f"/proc/self/fd/{each}") for each in self.namespaces]

    def enter(self, rank: int) -> None:
        """Move this process, a rank that was just forked, onto its host.

        Raises:
            OSError: The kernel refuses, although it let the network be built.
        """
        host = next(each for each in self.hosts if rank in each.ranks)
        self.become_owner()
        libc.join(self.namespaces[host.index], libc.NEW_NETWORK)
        mount_own_files(self.folder / host.name, host.name)
        # In a user namespace even an ordinary user's process has every capability so far.
        if self.user is not None and os.geteuid() != 0:
            libc.drop_capabilities()

    def become_owner(self) -> None:
        """Give this process, a child of the server, all capabilities over the namespaces."""
        if self.user is not None:
            libc.join(self.user, libc.NEW_USERS)

    def close(self) -> None:
        """Close all descriptors; the network ends with the last process inside."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        for port in self.ports:
            port.detach()


def make_network(hosts: tuple[Host, ...], folder: Path) -> HostNetwork:
    """Build the hosts of a world.

    Args:
        hosts: All of them.
        folder: For their replacements of files in /etc; it is created.

    Raises:
        LaunchError: They cannot be built on this machine; says why, and what would help.
        OSError: Their files cannot be written.
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
    """Return the error that says why hosts cannot be made here."""
    happened = "hosts cannot be made from namespaces here"
    if not reason.step:
        return LaunchError(happened, seen=f"The process that builds them failed: {reason.error}.")
    seen = f"The kernel does not let this process {reason.step}: {reason.error}."
    return LaunchError(happened, seen=seen, remedy=remedy(reason.errno, _read))


def remedy(number: int, read: Callable[[str], str]) -> str:
    """Return what helps against an error of the kernel.

    Args:
        number: The error's number.
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
