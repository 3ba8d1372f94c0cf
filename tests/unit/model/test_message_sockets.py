"""Waits at message sockets are waits for the ranks at the other side of their endpoints."""

from __future__ import annotations

import pytest
from builders import operation

from pytest_multihost.core.model.message_sockets import (
    Owed,
    endpoint_key,
    find_endpoints,
    is_for_answer,
    may_be_for_answer,
    message_scope,
    waits_for_request,
)
from pytest_multihost.testing import Operation, Operations

PORT = "tcp:5000"
SERVER = Operations(0, entered={endpoint_key(0, "bound", PORT): 0})


def client(rank: int, owed: Owed, endpoint: str = PORT) -> Operations:
    """Return the page of a rank that has connected and waits for a message."""
    scope = message_scope([("connected", endpoint)], owed)
    waits = operation("zmq.recv", kind="wait", group=(rank,), scope=scope, waited_s=1.0)
    return Operations(rank, (waits,), {endpoint_key(rank, "connected", endpoint): 0})


def resolved(page: Operations, *others: Operations) -> Operation:
    """Return the wait of a page in a world with other pages."""
    [found] = find_endpoints([page, *others]).operations(page).recent
    return found


def test_an_answer_is_owed_by_who_has_bound_the_endpoint() -> None:
    """The wait becomes one for that rank."""
    found = resolved(client(1, "answer"), SERVER)
    assert (found.kind, found.peer, found.group, found.waited_s) == ("transfer", 0, (0, 1), 1.0)
    assert is_for_answer(found)


def test_what_is_perhaps_owed_is_no_wait_yet() -> None:
    """A greeting counts as a message that was sent."""
    found = resolved(client(1, "perhaps"), SERVER)
    assert (found.peer, found.waited_s) == (0, None)
    assert may_be_for_answer(found)
    assert not is_for_answer(found)


def test_a_bound_socket_is_answered_by_all_that_have_connected() -> None:
    """Any of them may be the one."""
    scope = message_scope([("bound", PORT)], "answer")
    waits = operation("zmq.recv", kind="wait", group=(0,), scope=scope, waited_s=1.0)
    hub = Operations(0, (waits,), SERVER.entered)
    found = resolved(hub, client(1, "nothing"), client(2, "nothing"))
    assert (found.peer, found.group) == (None, (0, 1, 2))


def test_who_waits_for_the_next_message_waits_for_nobody() -> None:
    """It stays a wait of its own."""
    found = resolved(client(1, "nothing"), SERVER)
    assert (found.kind, found.group) == ("wait", (1,))
    assert waits_for_request(found)


@pytest.mark.parametrize("owed", ["answer", "perhaps"])
def test_an_endpoint_that_no_rank_has_bound_is_nobodys(owed: Owed) -> None:
    """It may be outside, or in a child that records nothing."""
    found = resolved(client(1, owed, "tcp:6000"), SERVER)
    assert (found.kind, found.group) == ("wait", (1,))


def test_links_lead_from_who_has_connected() -> None:
    """None are told if an end of the sockets leads to no rank."""
    own, other = client(1, "nothing"), client(2, "nothing")
    ends = find_endpoints([own, other, SERVER])
    scope = message_scope([("bound", PORT)], "nothing")
    bound = operation("zmq.recv", kind="wait", group=(0,), scope=scope, waited_s=1.0)
    assert ends.links(own.recent[0], 1) == {(1, 0)}
    assert ends.links(bound, 0) == {(1, 0), (2, 0)}
    assert ends.links(client(1, "nothing", "tcp:6000").recent[0], 1) == frozenset()
