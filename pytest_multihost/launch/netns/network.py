"""Hosts made from Linux namespaces: the network of one world, and how a rank enters its host.

The server makes it before it forks the ranks. Each host is a network namespace with an address of
its own; cables lead to a bridge in one more namespace, so nothing of the machine's own network is
touched, and nothing outside can be reached. A rank enters the network namespace of its host, and
makes its own host name and its own view of /etc/hosts and /etc/resolv.conf.

No namespace has a name anywhere: descriptors of the server and the processes inside hold it, so all
is gone with them, whoever is killed.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pytest_multihost.launch.netns import namespaces as kernel
from pytest_multihost.launch.netns.build import build
from pytest_multihost.launch.netns.child import in_child
from pytest_multihost.launch.netns.files import mount_own_files, write_files
from pytest_multihost.launch.netns.refusal import refusal
from pytest_multihost.launch.wire.packets import Packet
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.hosts import Host

BUILD_S = 30.0
"""How long the kernel may take to make a network: milliseconds, unless it is out of order."""

FOLDER = "hosts"
"""Folder of a world's scratch directory with what hosts see in place of files in /etc."""


@dataclass(slots=True)
class HostNetwork:
    """The hosts of one world and what connects them, as the server holds them.

    Attributes:
        hosts: The hosts in order; `name`, `address` and `interface` are theirs.
        bridge: Descriptor of the bridge's network namespace.
        spaces: Descriptors of the hosts' network namespaces.
        user: Descriptor of the user namespace that owns all of these; None where the server has
            the privileges itself.
        ports: Bound sockets on the primary's host whose ports nobody else is given.
        tables: Sockets from which each host's tables of sockets can be read by anybody.
        folder: Holds a folder for each host, with its name, and in it what the host has in place
            of files in /etc. What is written into these files is seen at once.
    """

    hosts: tuple[Host, ...]
    bridge: int
    spaces: tuple[int, ...]
    user: int | None
    ports: tuple[socket.socket, ...]
    tables: tuple[int, ...]
    folder: Path
    _is_open: bool = field(default=True, init=False)

    @property
    def descriptors(self) -> list[int]:
        """All that the server holds open of it."""
        user = [] if self.user is None else [self.user]
        own = [self.bridge, *self.spaces, *self.tables, *user]
        return [*own, *(port.fileno() for port in self.ports)] if self._is_open else []

    @property
    def names(self) -> list[str]:
        """The kernel's names of the hosts' network namespaces, as in "net:[4026532840]"."""
        return [os.readlink(f"/proc/self/fd/{space}") for space in self.spaces]

    def enter(self, rank: int) -> None:
        """Move this process, a rank that was just forked, onto its host.

        Raises:
            OSError: The kernel refuses, although it let the network be made.
        """
        host = next(each for each in self.hosts if rank in each.ranks)
        self._join(self.spaces[host.index])
        mount_own_files(self.folder / host.name, host.name)
        if self._is_ordinary:
            kernel.drop_capabilities()

    def become_owner(self) -> None:
        """Give this process, a child of the server, every right over the namespaces."""
        if self.user is not None:
            kernel.join(self.user, kernel.NEW_USERS)

    def _join(self, space: int) -> None:
        self.become_owner()
        kernel.join(space, kernel.NEW_NETWORK)

    @property
    def _is_ordinary(self) -> bool:
        """Whether this is an ordinary user, who has capabilities in a user namespace alone."""
        return self.user is not None and os.geteuid() != 0

    def release_tables(self) -> None:
        """Let go of the tables; they have been given to whoever reads them."""
        for descriptor in self.tables:
            os.close(descriptor)
        self.tables = ()

    def close(self) -> None:
        """Let go of everything; the kernel takes it down when the last process inside has ended."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        for port in self.ports:
            port.detach()
        self._is_open = False


def make_network(hosts: tuple[Host, ...], folder: Path) -> HostNetwork:
    """Make the hosts of a world.

    Args:
        hosts: All of them.
        folder: Where their files in /etc are to lie; it is made.

    Raises:
        LaunchError: They cannot be made on this machine; it says why, and what would help.
        OSError: Their files cannot be written.
    """
    write_files(folder, hosts)
    try:
        packets = in_child(partial(build, hosts, folder), timeout_s=BUILD_S)
    except TimeoutError as error:
        message = "the kernel did not make the network of the world's hosts"
        raise LaunchError(message, seen=f"It took longer than {BUILD_S:g} s.") from error
    return _network(packets, hosts, folder)


def _network(packets: list[Packet[Any]], hosts: tuple[Host, ...], folder: Path) -> HostNetwork:
    last = packets[-1].message if packets else {"kind": "failed", "error": "its maker was killed"}
    if last["kind"] != "ports":
        raise refusal(last)
    bridge, *inside, ports = packets
    return HostNetwork(
        hosts=hosts,
        bridge=bridge.descriptors[0],
        user=bridge.descriptors[1] if len(bridge.descriptors) > 1 else None,
        spaces=tuple(each.descriptors[0] for each in inside),
        tables=tuple(each.descriptors[1] for each in inside),
        ports=tuple(socket.socket(fileno=each) for each in ports.descriptors),
        folder=folder,
    )
