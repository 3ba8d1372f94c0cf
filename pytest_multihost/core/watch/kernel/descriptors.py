"""Find the objects of descriptors of a world's processes, and the processes at the other end.

The links in /proc/PID/fd give the kind and, for pipes and sockets, the inode (proc(5)): processes
with the same link hold the same object. /proc/PID/fdinfo/FD has details of anonymous inodes.
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from pytest_multihost.core.model.process import NEVER, Descriptor, Endpoint, Kind, Where
from pytest_multihost.core.netlink import LISTEN
from pytest_multihost.core.watch.kernel.foreign_processes import EVENTFD, ForeignProcesses
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses
from pytest_multihost.core.watch.kernel.proc_files import file_mode, link, read
from pytest_multihost.core.watch.kernel.sockets import (
    Inet,
    Table,
    Unix,
    has_user_timeout,
    inet_sockets,
    inet_sockets_from,
    unix_sockets,
)

_TCP, _UDP = 6, 17
_RANDOM_LISTENER = re.compile(r"/listener-[a-z0-9_]{8}$")
"""Socket by which multiprocessing passes descriptors; only the world's processes know its name."""

_DEAD_LINK = 4
"""Number of retransmissions after which a link counts as dead: 3 s on one machine."""
_ESTABLISHED, _SYN_SENT, _SYN_RECEIVED, _CLOSED = 1, 2, 3, 7  # net/tcp_states.h of Linux
_EPHEMERAL = 32_768
"""The first port that Linux gives to a connection by itself (ip(7), ip_local_port_range)."""
_INODE = re.compile(r"(?:socket|pipe):\[(\d+)\]")
_TTYS = ("/dev/pts/", "/dev/tty", "/dev/ptmx", "/dev/console")
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel", "/dev/infiniband", "/dev/vfio")
_ANONYMOUS: Mapping[str, Kind] = {
    EVENTFD: "eventfd",
    "anon_inode:[timerfd]": "timerfd",
    "anon_inode:[eventpoll]": "epoll",
    "anon_inode:[pidfd]": "pidfd",
    "anon_inode:[io_uring]": "uring",
}
_RING = ("SqHead", "SqTail", "CachedSqHead", "CqHead", "CqTail", "CachedCqTail")
"""Counts of an io_uring: requests made and taken, answers given and read
(https://docs.kernel.org/filesystems/proc.html lacks them; see io_uring/fdinfo.c of Linux)."""
_BOTH = 2


@dataclass
class Tables:
    """The kernel's tables at one instant, which resolve descriptors to their objects.

    Attributes:
        links: The target of each descriptor's link, for each process of the world.
        names: Names of the programs of all processes, by id.
        ranks: Descriptions of the world's processes in reports, by id.
        harness: The harness's own processes around the ranks.
        tcp: Sockets by inode, as far as they have one.
        by_endpoints: All TCP sockets by both ends.
        unread: Names of tables that could not be read.
    """

    links: Mapping[int, Mapping[int, str]]
    names: Mapping[int, str]
    ranks: Mapping[int, str]
    harness: HarnessProcesses
    tcp: dict[int, Inet] = field(default_factory=dict)
    by_endpoints: dict[tuple[Endpoint, ...], Inet] = field(default_factory=dict)
    udp: dict[int, Inet] = field(default_factory=dict)
    unix: dict[int, Unix] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    _inside: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pid, links in self.links.items():
            for target in links.values():
                self._inside.setdefault(target, pid)
        if not any(target.startswith("socket:") for target in self._inside):
            return
        tcp = list(self._inet(_TCP, "tcp"))
        self.tcp = {each.inode: each for each in tcp if each.inode}
        self.by_endpoints = {each.endpoints: each for each in tcp}
        self.udp = {each.inode: each for each in self._inet(_UDP, "udp")}
        for space, table in {"": None, **self.harness.socket_tables}.items():
            try:
                self.unix |= {each.inode: each for each in unix_sockets(table, space)}
            except OSError:
                self.unread.append("unix sockets")

    def _inet(self, protocol: int, name: str) -> Iterator[Inet]:
        """Yield sockets of this process's network namespace and of all that the world may use.

        A socket stays in the namespace in which it was created, even in other processes. A zombie
        process has neither sockets nor a namespace.
        """
        here = link("/proc/self/ns/net")
        tables: dict[str, Table | None] = {here: None, **self.harness.socket_tables}
        holding = [pid for pid, links in self.links.items() if links]
        elsewhere = {link(f"/proc/{pid}/ns/net"): pid for pid in holding}
        for space, table in tables.items():
            try:
                yield from inet_sockets(protocol, f"{_machine()} {space}", table)
            except OSError:
                if space == here:
                    elsewhere[here] = os.getpid()
            else:
                elsewhere.pop(space, None)
        for space, pid in elsewhere.items():
            for each in (name, name + "6"):
                data = read(path := f"/proc/{pid}/net/{each}")
                if data is not None:
                    yield from inet_sockets_from(data.decode(), f"{_machine()} {space}")
                elif each == name:  # without IPv6 there is no second table
                    self.unread.append(path)

    @cached_property
    def foreign(self) -> ForeignProcesses:
        """All processes, except the world's and those of the harness that only hold descriptors."""
        return ForeignProcesses(self.names.keys() - self.links.keys() - self.harness.servers)

    def describe(self, pid: int, fd: int) -> Descriptor:
        """Return a descriptor with its kind and its peer."""
        target = self.links[pid].get(fd, "")
        if target.startswith("socket:"):
            inode = int(target[8:-1])
            if (tcp := self.tcp.get(inode)) is not None:  # most descriptors of large worlds
                return self._tcp(pid, fd, target, tcp)
            return self._socket(pid, Descriptor(fd=fd, target=target, kind="file"), inode)
        found = Descriptor(fd=fd, target=target, kind="file")
        if self.harness.is_path(target):
            return replace(found, is_exempt=True)
        if target.startswith("pipe:"):
            return self._pipe(pid, found)
        if target.startswith("anon_inode:"):
            return self._anonymous(pid, found)
        return replace(found, kind=_kind_of_file(f"/proc/{pid}/fd/{fd}", target))

    def _socket(self, pid: int, found: Descriptor, inode: int) -> Descriptor:
        if inode in self.unix:
            return self._unix(found, self.unix[inode])
        if inode in self.udp:
            udp = self.udp[inode]
            where: Where = "outside" if udp.remote.port else "unknown"
            where = "inside" if self._is_sealed(udp.space) else where
            return replace(found, kind="udp", where=where, peer=str(udp.remote), queues=udp.queues)
        try:  # in no table: the socket is not connected, or of another family
            path = f"/proc/{pid}/fd/{found.fd}"
            name = os.getxattr(path, "system.sockprotoname").rstrip(b"\0").decode()
        except OSError:
            name = ""
        kinds: Mapping[str, Kind] = {"TCP": "idle", "TCPv6": "idle", "UDP": "udp", "UDPv6": "udp"}
        kind = kinds.get(name, "netlink" if name == "NETLINK" else "other")
        return replace(found, kind=kind, where="unknown", peer=name)

    def _tcp(self, pid: int, fd: int, target: str, tcp: Inet) -> Descriptor:
        other = self.by_endpoints.get(tcp.endpoints[::-1])
        kind: Kind = "tcp"
        where: Where = "inside"
        peer, of_peer = "", 0
        endpoints: tuple[Endpoint, ...] = ()
        if tcp.state == LISTEN:
            where = "inside" if self._is_sealed(tcp.space) else "unknown"
            kind, peer = "listen", str(tcp.local)
        elif tcp.state == _CLOSED:
            kind = "idle"
        else:
            where, holder, of_peer = self._tcp_peer(tcp, other)
            peer = f"{tcp.remote} ({holder})" if holder else str(tcp.remote)
            endpoints = tcp.endpoints
        return Descriptor(
            fd=fd,
            target=target,
            kind=kind,
            where=where,
            peer=peer,
            queues=tcp.queues,
            is_resent=0 < tcp.retransmits < _DEAD_LINK and tcp.is_in_flight(other),
            is_in_flight=not tcp.retransmits and tcp.is_in_flight(other),
            bytes_moved=tcp.bytes_moved,
            ends_s=self._end_of_silence_s(pid, fd, tcp),
            is_answered=tcp.is_answered,
            endpoints=endpoints,
            is_accepted=bool(endpoints) and self._is_accepted(tcp),
            holder=of_peer,
        )

    def _end_of_silence_s(self, pid: int, fd: int, tcp: Inet) -> float:
        """Return the earliest time at which the kernel may end a connection: its peer is silent."""
        if tcp.asks_in_s < NEVER:
            return time.monotonic() + tcp.asks_in_s
        is_stuck = tcp.queues[1] > 0 and (tcp.retransmits > 0 or tcp.asks_for_room)
        return 0.0 if is_stuck and has_user_timeout(pid, fd) else NEVER

    def _is_accepted(self, tcp: Inet) -> bool:
        """Return whether a listener has accepted a connection, as far as its ports show.

        Its listener has the same port. Once that is closed, the port of the end that has connected
        is an ephemeral one.
        """
        if (tcp.space, tcp.local.port) in self._listening:
            return True
        is_other = (tcp.space, tcp.remote.port) in self._listening
        return not is_other and tcp.local.port < _EPHEMERAL <= tcp.remote.port

    @cached_property
    def _listening(self) -> frozenset[tuple[str, int]]:
        """The ports at which processes listen, by network namespace."""
        return frozenset(
            (each.space, each.local.port) for each in self.tcp.values() if each.state == LISTEN
        )

    def _is_sealed(self, space: str) -> bool:
        """Return whether only the world's processes can connect to sockets of a namespace.

        A namespace that a rank has made by itself is unknown.
        """
        names = self.harness.socket_tables.keys() if self.harness.is_sealed else ()
        return any(space == f"{_machine()} {name}" for name in names)

    def _tcp_peer(self, tcp: Inet, other: Inet | None) -> tuple[Where, str, int]:
        """Return where the peer of a connection is, its description for reports, and its process.

        The process is 0 if it is none of the world, or unknown.
        """
        if other is None or tcp.state == _SYN_SENT:
            return "outside", "", 0
        if other.inode:
            target = f"socket:[{other.inode}]"
            return *self._holder(target), self._inside.get(target, 0)
        if other.state not in {_ESTABLISHED, _SYN_RECEIVED}:
            return "nobody", "", 0  # closed by its process; the kernel finishes the connection
        # The holder of the listener will get a connection that is not accepted yet.
        listening = [
            each
            for each in self.tcp.values()
            if each.state == LISTEN
            and (each.space, each.local.port) == (other.space, other.local.port)
        ]
        targets = [f"socket:[{each.inode}]" for each in listening]
        found = {(*self._holder(each), self._inside.get(each, 0)) for each in targets}
        return found.pop() if len(found) == 1 else ("unknown", "", 0)

    def _unix(self, found: Descriptor, unix: Unix) -> Descriptor:
        found = replace(found, kind="unix", where="unknown", queues=unix.queues)
        if unix.state == LISTEN:
            where: Where = "inside" if self._is_hidden(unix) else "unknown"
            return replace(found, kind="listen", where=where, peer=unix.name)
        if unix.peer is None:
            is_closed = unix.state == _CLOSED
            return replace(found, kind="idle") if is_closed else replace(found, where="nobody")
        if not unix.peer:
            return replace(found, where="nobody") if unix.is_shut else found
        where, holder = self._holder(f"socket:[{unix.peer}]")
        ends = tuple(Endpoint("", inode, _machine()) for inode in (unix.inode, unix.peer))
        return replace(
            found,
            where=where,
            peer=f"({holder})" if holder else "",
            endpoints=ends,
            is_accepted=bool(unix.name),  # that of its listener
        )

    def _is_hidden(self, unix: Unix) -> bool:
        """Return whether only the world's processes can connect to a unix socket."""
        if unix.name.startswith("\0"):
            return self.harness.is_sealed and unix.space in self.harness.socket_tables
        is_private = self.harness.is_sealed and self.harness.is_private(unix.name)
        return is_private or bool(_RANDOM_LISTENER.search(unix.name))

    def _holder(self, target: str) -> tuple[Where, str]:
        """Return where the holder of an open socket is, and its description for reports.

        If no holder is found, the holder is an unreadable process, such as another user's server.
        """
        pids = [pid for pid, _ in self.foreign.holders(target)]
        if pids and all(pid in self.harness.exchanges for pid in pids):
            return "inside", ""
        if self.harness.owns(pids):
            return "harness", self.harness.title
        if pids:
            return "outside", f"{self.names.get(pids[0], '')} {pids[0]}"
        if target in self._inside:
            return "inside", self.ranks.get(self._inside[target], "")
        return "outside", ""

    def _pipe(self, pid: int, found: Descriptor) -> Descriptor:
        mine = open_mode(pid, found.fd)
        others = []
        for other, fd in self.foreign.holders(found.target):
            modes = {mine, open_mode(other, fd)}
            if len(modes) == 2 or modes & {None, _BOTH}:  # noqa: PLR2004 - one reads, one writes
                others.append(other)
        if self.harness.owns(others):
            return replace(found, kind="pipe", where="harness", peer=self.harness.title)
        if others:
            peer = f"{self.names.get(others[0], '')} {others[0]}"
            return replace(found, kind="pipe", where="outside", peer=peer)
        return replace(found, kind="pipe", where="unknown" if mine is None else "inside")

    def _anonymous(self, pid: int, found: Descriptor) -> Descriptor:
        found = replace(found, kind=_ANONYMOUS.get(found.target, "other"))
        if found.kind in {"eventfd", "other"}:
            return replace(found, where="unknown" if found.kind == "other" else "inside")
        info = (read(f"/proc/{pid}/fdinfo/{found.fd}") or b"").decode()
        match found.kind:
            case "timerfd":
                return replace(found, ends_s=_timer_end(info))
            case "epoll":
                return replace(found, watched=_watched(info, self.links[pid]))
            case "pidfd":
                process = re.search(r"^Pid:\s*(-?\d+)", info, re.MULTILINE)
                # -1 once the process was waited for (pidfd_open(2))
                return replace(found, pid=int(process[1]) if process else 0)
            case _:
                return replace(found, where="unknown" if _is_busy_ring(info) else "inside")


@cache
def _machine() -> str:
    """Return the boot id, which distinguishes this machine's network namespaces from others'."""
    return (read("/proc/sys/kernel/random/boot_id") or b"").decode().strip()


def _kind_of_file(path: str, target: str) -> Kind:
    if target.startswith(_TTYS):
        return "tty"
    if target.startswith(_DEVICES):
        return "device"
    mode = file_mode(path)
    if mode is None:
        return "other"
    return "fifo" if stat.S_ISFIFO(mode) else "file"


def open_mode(pid: int, fd: int) -> int | None:
    """Return how a descriptor was opened: 0 to read, 1 to write, 2 for both; None if unknown.

    The flags in fdinfo are those of open(2), in octal; the last two bits are the access mode.
    """
    found = re.search(rb"flags:\s*([0-7]+)", read(f"/proc/{pid}/fdinfo/{fd}") or b"")
    return int(found[1], 8) & 3 if found else None


def _timer_end(info: str) -> float | None:
    """Return when a timerfd becomes readable, from its fdinfo; None if unknown.

    ``ticks`` are unread expirations; ``it_value`` is the time until the next one, in seconds and
    nanoseconds, 0 for a timer that is not set (timerfd_create(2)).
    """
    found = re.search(r"ticks: (\d+).*it_value: \((\d+), (\d+)\)", info, re.DOTALL)
    if found is None:
        return None
    ticks, seconds, nanoseconds = (int(each) for each in found.groups())
    left = seconds + nanoseconds / 1e9
    if ticks:
        return 0.0
    return time.monotonic() + left if left else math.inf


def _is_busy_ring(info: str) -> bool:
    """Return whether an io_uring has a request that has not been answered and read.

    libuv makes a ring for each of its loops, so every TCPStore of torch has one.
    """
    found = dict(re.findall(r"^(\w+):[ \t]*(.*)$", info, re.MULTILINE))
    counts = {found.get(name, name) for name in _RING}  # a missing count counts as different
    lists = info.partition("PollList:")[2].replace("CqOverflowList:", "").split()
    return len(counts) != 1 or bool(lists and not lists[0].startswith("NAPI"))


def _watched(info: str, links: Mapping[int, str]) -> tuple[int, ...] | None:
    """Return the descriptors that an epoll watches, by its fdinfo; None if one has changed since.

    Each descriptor has a line with its number when it was added (``tfd``) and its inode (``ino``).
    The number may have been closed and reused since, while the epoll still watches the old object
    (epoll(7), question 6).
    """
    pattern = r"tfd:\s*(\d+).*?ino:\s*([0-9a-f]+)"
    found = [(int(fd), int(inode, 16)) for fd, inode in re.findall(pattern, info)]
    if not info or len(found) != info.count("tfd:"):
        return None
    for fd, inode in found:
        named = _INODE.fullmatch(links.get(fd, ""))
        if fd not in links or (named and int(named[1]) != inode):
            return None
    return tuple(fd for fd, _ in found)
