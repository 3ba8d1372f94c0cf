"""Read this machine's sockets and their peers from the kernel (sock_diag(7), netlink(7)).

One dump covers all processes. It also has information that /proc/net/tcp and /proc/net/unix lack:
the peer of a unix socket, and the bytes that a TCP connection has moved.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from pytest_multihost.core.launch.libc import descriptor_of
from pytest_multihost.core.model.process import NEVER, Endpoint
from pytest_multihost.core.netlink import LISTEN, dump_sockets, netlink_attributes

_TCP_OF_ANY_FAMILY = 18  # TCPDIAG_GETSOCK, an older request
_UNIX_NAME, _UNIX_PEER, _UNIX_QUEUES, _UNIX_SHUTDOWN = 0, 2, 4, 6
_BOTH_WAYS = 3  # RCV_SHUTDOWN and SEND_SHUTDOWN of net/sock.h
_TCP_INFO, _MEMORY = 2, 7
_WITH_INFO, _WITH_MEMORY = 1 << _TCP_INFO - 1, 1 << _MEMORY - 1
_BYTES_AT = 120  # in struct tcp_info of linux/tcp.h: tcpi_bytes_acked, tcpi_bytes_received
_NOT_SENT_AT, _SENT_BYTES_AT = 144, 200  # tcpi_notsent_bytes; tcpi_bytes_sent, tcpi_bytes_retrans
_LAST_AT = 44  # tcpi_last_data_sent, last_ack_sent, last_data_recv and last_ack_recv: ms since then
_LIMIT_AT, _QUEUED_AT = 12, 20  # of SK_MEMINFO_SNDBUF and SK_MEMINFO_WMEM_QUEUED, in bytes

_SENDING = {1, 8}  # ESTABLISHED and CLOSE_WAIT: has sent no FIN, which counts as a byte received
_OPENING = {2, 3}  # SYN_SENT and SYN_RECV in net/tcp_states.h of Linux
_HELD = 0xFFFFFFFF & ~(1 << 6)  # not TIME_WAIT
_CONNECTED = _HELD & ~(1 << 7 | 1 << LISTEN)  # neither TIME_WAIT, CLOSE nor LISTEN
_INET, _PORTS = struct.Struct("=BBBB4x16s16s16xIIII"), struct.Struct(">HH")
"""struct inet_diag_msg of linux/inet_diag.h: family, state, timer, retransmissions, both addresses,
both queues, user and inode; and its two ports, which stand behind the retransmissions."""

_TIMER_AT = 2  # in struct inet_diag_msg
_EXPIRES_AT = 52  # in struct inet_diag_msg: when its timer expires, another time in each answer
_SENT_AT = 60  # in struct inet_diag_msg: the bytes that are not acknowledged
_ONE, _FOUR, _TWO = struct.Struct("=I"), struct.Struct("=4I"), struct.Struct("=QQ")
_IPV4_INSIDE = bytes(10) + b"\xff\xff"
"""How an IPv6 address begins that contains one of IPv4."""

_KEEPALIVE, _PROBE = 2, 4
"""The timer of a connection that asks a silent peer for a sign of life, and that of a sender that
probes whether the receiver has room (inet_csk_diag_fill)."""

_ANSWER_MS = 1000
"""An acknowledgement that comes so long after all data answers a question for a sign of life. Data
are acknowledged after 200 ms at the latest (TCP_DELACK_MAX of net/tcp.h)."""


Table = socket.socket
"""A netlink socket of the kind NETLINK_SOCK_DIAG: it reads the tables of the network namespace in
which it was created, from any process."""


@dataclass(frozen=True, slots=True)
class Inet:
    """One socket of TCP or UDP.

    Attributes:
        inode: 0 until it is accepted, and after it was closed.
        state: The kernel's number of the state.
        endpoints: Its own address, and that of its peer.
        queues: Bytes to be read, and to be acknowledged.
        bytes_moved: Bytes in both directions; 0 if the kernel does not report them.
        asks_for_room: Whether the kernel only probes at intervals whether the peer has room.
        retransmits: How often it has sent the same data again without an acknowledgement.
        sent: Bytes that its process has written so far; None if the kernel does not report them.
        received: Bytes that have arrived so far, in order.
        has_room: Whether its process can write more, so that it waits for no acknowledgement.
        asks_in_s: In how many seconds the kernel asks the peer for a sign of life.
        is_answered: Whether the peer has answered the last such question.
    """

    inode: int
    state: int
    endpoints: tuple[Endpoint, Endpoint]
    queues: tuple[int, int]
    bytes_moved: int = 0
    space: str = ""
    asks_for_room: bool = False
    retransmits: int = 0
    sent: int | None = None
    received: int = 0
    has_room: bool = False
    asks_in_s: float = NEVER
    is_answered: bool = False

    def is_in_flight(self, peer: Inet | None) -> bool:
        """Return whether data, or its opening, are on their way, or will be sent again.

        Unacknowledged data are in flight, with two exceptions. The first are data for which the
        peer has no room, because earlier data there wait to be read. The second are data that have
        all arrived while the peer delays its acknowledgement (40 ms and more), for which no process
        waits. Two ends that exchange messages all the time acknowledge each message with the next
        one, so at any instant some data are unacknowledged.

        Args:
            peer: The other end of the connection, if it is known.
        """
        is_full = self.asks_for_room and peer is not None and peer.queues[0] > 0
        is_moving = self.queues[1] > 0 and not is_full and not self._has_arrived(peer)
        return self.state in _OPENING or is_moving

    def _has_arrived(self, peer: Inet | None) -> bool:
        """Return whether the peer has received all data that this end's process has written."""
        is_known = peer is not None and self.state in _SENDING and self.has_room
        return is_known and peer is not None and self.sent == peer.received

    @property
    def local(self) -> Endpoint:
        """Its own address."""
        return self.endpoints[0]

    @property
    def remote(self) -> Endpoint:
        """The address of its peer."""
        return self.endpoints[1]


@dataclass(frozen=True, slots=True)
class Unix:
    """One unix socket.

    Attributes:
        peer: The peer's inode; 0 if the peer has none yet, or none any more; None if there is no
            peer.
        name: Its path; empty if it has none. An abstract name, which is not in the file system but
            in a network namespace, begins with a null character.
        is_shut: Whether nothing can be sent in either direction any more: its peer is closed.
    """

    inode: int
    state: int
    peer: int | None
    queues: tuple[int, int]
    name: str = ""
    space: str = ""
    is_shut: bool = False


def inet_sockets(protocol: int, space: str = "", table: Table | None = None) -> list[Inet]:
    """Return the sockets of a protocol in one network namespace, except those in TIME_WAIT.

    Both ends of such a socket were closed, and a machine that has run worlds has thousands of them.

    Args:
        table: Reads the tables of the namespace; None: of this process's namespace.

    Raises:
        OSError: The kernel refuses.
    """
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        request = struct.pack("=BBBBI48x", family, protocol, _WITH_INFO, 0, _HELD)
        found += [_inet(message, space) for message in dump_sockets(request, table)]
    return found


def sockets_in_flight(
    inodes: Callable[[], Collection[int]], table: Table | None = None
) -> list[Inet]:
    """Return the TCP sockets of a network namespace whose data, or whose opening, are in flight.

    Args:
        inodes: Returns the inodes of the sockets that matter; only called if any socket has data
            in flight.
        table: Reads the tables of the namespace; None: of this process's namespace.

    Raises:
        OSError: The kernel refuses.
    """

    def connected(details: int) -> list[bytes]:
        # For each request the kernel walks through its whole table, even with few sockets.
        request = struct.pack("=BBBB48xII", socket.AF_INET, 0, 0, details, _CONNECTED, 0)
        return dump_sockets(request, table, _TCP_OF_ANY_FAMILY)

    if not any(map(_is_unacknowledged, connected(0))):
        return []
    messages = connected(_WITH_INFO | _WITH_MEMORY)
    # Most sockets are idle, and a world of 64 ranks has 8,000: only the others are parsed.
    by_ends = {_ends(each): each for each in messages}
    moving = []
    for each in filter(_is_unacknowledged, messages):
        found, other = _inet(each, ""), by_ends.get(_ends(each)[::-1])
        peer = _inet(other, "") if other is not None else None
        if found.is_in_flight(peer):
            moving.append((found, peer))
    wanted = inodes() if moving else ()
    return [
        each
        for each, peer in moving
        if each.inode in wanted or (peer is not None and peer.inode in wanted)
    ]


def _is_unacknowledged(message: bytes) -> bool:
    """Return whether an entry of the TCP table shows an opening socket or unacknowledged data."""
    return message[1] in _OPENING or message[_SENT_AT : _SENT_AT + 4] != bytes(4)


def _ends(message: bytes) -> tuple[bytes, bytes]:
    """Return both addresses with their ports, as the kernel writes them; IPv4 also inside IPv6."""
    if message[0] == socket.AF_INET:
        return message[8:12] + message[4:6], message[24:28] + message[6:8]
    first = 20 if message[8:20] == _IPV4_INSIDE else 8
    second = 36 if message[24:36] == _IPV4_INSIDE else 24
    return message[first:24] + message[4:6], message[second:40] + message[6:8]


@contextlib.contextmanager
def borrowed(pid: int, fd: int) -> Iterator[socket.socket]:
    """Yield a duplicate of another process's socket (pidfd_getfd(2)), which is closed at once.

    Raises:
        OSError: There is none, or this process may not have it.
    """
    process = os.pidfd_open(pid)
    try:
        copy = descriptor_of(process, fd)
    finally:
        os.close(process)
    with socket.socket(fileno=copy) as held:
        yield held


def has_user_timeout(pid: int, fd: int) -> bool:
    """Return whether unacknowledged data end a connection sooner than by default.

    The default is a quarter of an hour (tcp_retries2 of tcp(7)). No file in /proc has the option.
    """
    try:
        with borrowed(pid, fd) as found:
            return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0
    except OSError:
        return False


def unix_sockets(table: Table | None = None, space: str = "") -> list[Unix]:
    """Return all unix sockets of a network namespace; without a table, of this process's.

    Raises:
        OSError: The kernel refuses.
    """
    show = 1 << _UNIX_NAME | 1 << _UNIX_PEER | 1 << _UNIX_QUEUES
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show, 0, 0)
    found = []
    for message in dump_sockets(request, table):
        state, (inode,) = message[2], struct.unpack_from("=I", message, 4)
        attributes = netlink_attributes(message[16:])
        peer = attributes.get(_UNIX_PEER)
        receive, send = struct.unpack_from("=II", attributes.get(_UNIX_QUEUES, bytes(8)))
        queues = (0, 0) if state == LISTEN else (receive, send)
        name = attributes.get(_UNIX_NAME, b"").rstrip(b"\0").decode("utf-8", "backslashreplace")
        of_peer = struct.unpack("=I", peer)[0] if peer else None
        is_shut = attributes.get(_UNIX_SHUTDOWN, b"")[:1] == bytes([_BOTH_WAYS])
        found.append(Unix(inode, state, of_peer, queues, name, space, is_shut))
    return found


def inet_sockets_from(text: str, space: str = "") -> list[Inet]:
    """Return the sockets in the text of a ``/proc/PID/net/tcp``, ``tcp6``, ``udp`` or ``udp6``."""

    def endpoint(text: str) -> Endpoint:
        host, _, port = text.partition(":")
        data = bytes.fromhex(host)
        words = struct.unpack(f">{len(data) // 4}I", data)  # each in the order of this machine
        return _endpoint(struct.pack(f"={len(words)}I", *words), int(port, 16), space)

    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        send, _, receive = words[4].partition(":")
        state = int(words[3], 16)
        queues = (0, 0) if state == LISTEN else (int(receive, 16), int(send, 16))
        ends = endpoint(words[1]), endpoint(words[2])
        found.append(Inet(int(words[9]), state, ends, queues, space=space))
    return found


def _inet(message: bytes, space: str) -> Inet:
    attributes = netlink_attributes(message[_INET.size :])
    info, memory = attributes.get(_TCP_INFO, b""), attributes.get(_MEMORY, b"")
    # A world of 64 ranks has 4,000 connections, and most of them are as in the last snapshot.
    found = _parsed(
        message[:_EXPIRES_AT] + bytes(4) + message[_EXPIRES_AT + 4 : _INET.size],
        space,
        info[_BYTES_AT : _BYTES_AT + _TWO.size],
        info[_NOT_SENT_AT : _NOT_SENT_AT + _ONE.size],
        info[_SENT_BYTES_AT : _SENT_BYTES_AT + _TWO.size],
        memory[_LIMIT_AT : _LIMIT_AT + _ONE.size] + memory[_QUEUED_AT : _QUEUED_AT + _ONE.size],
    )
    if message[_TIMER_AT] != _KEEPALIVE:
        return found
    (milliseconds,) = _ONE.unpack_from(message, _EXPIRES_AT)
    is_answered = not found.retransmits and _has_answered(info)
    return replace(found, asks_in_s=milliseconds / 1000, is_answered=is_answered)


def _has_answered(info: bytes) -> bool:
    """Return whether the peer has sent a sign of life for which the kernel had asked.

    Args:
        info: The struct tcp_info of the connection; empty if the kernel has none.
    """
    if len(info) < _LAST_AT + _FOUR.size:
        return False
    sent, _, received, acknowledged = _FOUR.unpack_from(info, _LAST_AT)
    return bool(acknowledged + _ANSWER_MS <= min(sent, received))


@lru_cache(maxsize=1 << 14)
def _parsed(
    message: bytes, space: str, moved: bytes, not_sent: bytes, sent: bytes, room: bytes
) -> Inet:
    found = _INET.unpack(message)
    family, state, timer, retransmits, local, remote, receive, send, _, inode = found
    ports, size = _PORTS.unpack_from(message, 4), 4 if family == socket.AF_INET else 16
    acknowledged, received = _TWO.unpack(moved) if len(moved) == _TWO.size else (0, 0)
    return Inet(
        inode,
        state,
        (_endpoint(local[:size], ports[0], space), _endpoint(remote[:size], ports[1], space)),
        (0, 0) if state == LISTEN else (receive, send),
        acknowledged + received,
        space,
        timer == _PROBE,
        retransmits,
        _written(not_sent, sent),
        received,
        _has_room(room),
    )


def _written(not_sent: bytes, sent: bytes) -> int | None:
    """Return the number of bytes that a process has written, each counted once."""
    if len(sent) < _TWO.size:  # before Linux 4.19
        return None
    once, again = _TWO.unpack(sent)
    return int(once - again + _ONE.unpack(not_sent)[0])


def _has_room(room: bytes) -> bool:
    """Return whether a socket is writeable with room to spare.

    The rule is that of sk_stream_is_writeable in net/sock.h.

    Args:
        room: The limit of its queue, and the queued bytes; empty if unknown.
    """
    if len(room) < 2 * _ONE.size:
        return False
    limit, queued = struct.unpack("=II", room)
    return bool(2 * queued <= limit)


@lru_cache(maxsize=1 << 15)  # a world of 64 ranks has 8,000 connections
def _endpoint(data: bytes, port: int, space: str) -> Endpoint:
    """Return an endpoint; IPv4 inside IPv6 becomes IPv4, because the peer may use that.

    A loopback address is unique only with its network namespace.
    """
    host = _host(data)
    is_loopback = host.startswith("127.") or host == "::1"
    return Endpoint(host, port, space if is_loopback else "")


@lru_cache(maxsize=1024)
def _host(data: bytes) -> str:
    address = ipaddress.ip_address(data)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
