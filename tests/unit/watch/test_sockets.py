"""Ends of connections: which belong together, and whether data are in flight between them."""

from __future__ import annotations

import ipaddress

import pytest

from pytest_multihost.core.watch.kernel.sockets import Inet, _endpoint
from pytest_multihost.testing import Endpoint


def bound(host: str, port: int, space: str) -> Endpoint:
    """Return an address as it is read in a network namespace."""
    return _endpoint(ipaddress.ip_address(host).packed, port, space)


def connection(local: str, remote: str, space: str) -> Inet:
    """Return one end of a connection."""
    ends = bound(local, 5000, space), bound(remote, 6000, space)
    return Inet(1, 1, ends, (0, 0), space=space)


def other(end: Inet, space: str) -> Inet:
    """Return the other end of a connection."""
    ends = (bound(each.host, each.port, space) for each in end.endpoints[::-1])
    return Inet(2, 1, tuple(ends), (0, 0), space=space)


def test_ends_of_a_connection_between_hosts_find_each_other() -> None:
    """Each is in the table of its own host."""
    near = connection("10.77.0.1", "10.77.0.2", "net:[1]")
    assert near.endpoints[::-1] == other(near, "net:[2]").endpoints


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1"])
def test_loopbacks_of_two_hosts_are_two(address: str) -> None:
    """Equal addresses and ports on two hosts: this looks like the other end, and is not."""
    near = connection(address, address, "net:[1]")
    assert near.endpoints[::-1] == other(near, "net:[1]").endpoints
    assert near.endpoints[::-1] != other(near, "net:[2]").endpoints


@pytest.mark.parametrize(
    ("asks_for_room", "unread", "expected"),
    [(False, 0, True), (False, 9, True), (True, 0, True), (True, 9, False)],
)
def test_data_for_which_there_is_no_room_are_not_in_flight(
    asks_for_room: bool, unread: int, expected: bool
) -> None:
    """Only while something that has arrived waits to be read."""
    ends = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)
    sender = Inet(7, 1, ends, (0, 100), asks_for_room=asks_for_room)
    assert sender.is_in_flight(Inet(8, 1, ends[::-1], (unread, 0))) == expected
    assert sender.is_in_flight(None)


@pytest.mark.parametrize(
    ("state", "sent", "has_room", "expected"),
    [
        (1, 900, True, False),
        (8, 900, True, False),  # the peer has sent its end
        (1, 901, True, True),  # the last byte is on its way, or lost
        (1, None, True, True),  # an old kernel does not say
        (1, 900, False, True),  # the acknowledgement lets the sender go on
        (4, 900, True, True),  # its own end counts as a byte
    ],
)
def test_data_that_have_all_arrived_are_not_in_flight(
    state: int, sent: int | None, has_room: bool, expected: bool
) -> None:
    """The peer delays its acknowledgement, and nobody waits for that."""
    ends = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)
    sender = Inet(7, state, ends, (0, 100), sent=sent, has_room=has_room)
    assert sender.is_in_flight(Inet(8, 1, ends[::-1], (0, 0), received=900)) == expected
    assert sender.is_in_flight(None)
