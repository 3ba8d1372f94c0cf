"""Waits for an engine's nodes, and admits the peers that it starts there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.extensions.engines.attach.admission import Admission
from pytest_multihost.extensions.engines.driver.order import PeerOrder, encode_order
from pytest_multihost.extensions.engines.engine import Fleet, Node

_STEP_S = 0.1
_TELL_AFTER_S = 2.0
"""Waits that are shorter are not worth a line."""

_LAST_WORDS_S = 1.0
"""How long a command may take to end after its connection has ended."""


def await_nodes(
    fleet: Fleet, engine: str, timeout_s: float | None, say: Callable[[str], None]
) -> Sequence[Node]:
    """Wait until the nodes are available; say why that takes long.

    Args:
        engine: The engine's name.
        timeout_s: None: no limit.
        say: Writes a line for the user.

    Raises:
        LaunchError: The engine does not provide them, or not in time.
    """
    started_s, told = time.monotonic(), ""
    while (nodes := fleet.nodes()) is None:
        waited_s = time.monotonic() - started_s
        why = fleet.waiting() if waited_s > _TELL_AFTER_S else told
        if why != told:
            told = why
            say(f"multihost: {engine}: {why} (since {waited_s:.0f} s)")
        if timeout_s is not None and waited_s > timeout_s:
            raise LaunchError(
                f"{engine} has not provided the nodes within {timeout_s:g} s",
                seen=fleet.waiting(),
                remedy="Ask for less, or wait longer: --multihost-queue-timeout=SECONDS",
            )
        time.sleep(_STEP_S)
    if told:
        names = ", ".join(each.name for each in nodes)
        waited_s = time.monotonic() - started_s
        say(f"multihost: {engine}: after {waited_s:.0f} s there are {names}")
    return nodes


def send_orders(nodes: Sequence[Node], orders: Sequence[PeerOrder]) -> None:
    """Send each node its order; a peer that has ended already is found in `await_peers`."""
    for node, order in zip(nodes, orders, strict=True):
        with contextlib.suppress(OSError):
            node.connection.sendall(encode_order(order))


def await_peers(nodes: Sequence[Node], admission: Admission, timeout_s: float) -> None:
    """Wait until the peers of all nodes have authenticated themselves.

    Args:
        timeout_s: How long the peers may take to collect the tests and connect.

    Raises:
        LaunchError: A peer has ended, is refused, or takes longer.
    """
    deadline_s = time.monotonic() + timeout_s
    while admission.missing:
        admission.step(_STEP_S)
        if admission.refused:
            raise LaunchError("a peer was refused", seen="; ".join(admission.refused))
        absent = [nodes[rank - 1] for rank in admission.missing]
        for node in absent:
            if node.ended():
                raise ended_at_start(node)
        if absent and time.monotonic() > deadline_s:
            raise _late(absent, timeout_s)
    for rank, peer in admission.peers.items():
        peer.label = f"node {nodes[rank - 1].name}"
        peer.await_hello()


def ended_at_start(node: Node) -> LaunchError:
    """Return the error for a peer that has ended before it could take part."""
    ended = await_end_of(node) or "it closed its output"
    return LaunchError(
        f"the peer on node {node.name} has ended at its start: {ended}",
        seen=node.last_words() or "It has written nothing to standard error.",
    )


def await_end_of(node: Node) -> str:
    """Return how the command of a lost node has ended; waits a moment for it."""
    deadline_s = time.monotonic() + _LAST_WORDS_S
    while not (ended := node.ended()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return ended


def _late(absent: Sequence[Node], timeout_s: float) -> LaunchError:
    names = ", ".join(each.name for each in absent)
    words = [f"{each.name}: {said}" for each in absent if (said := each.last_words())]
    return LaunchError(
        f"no peer has connected from node {names} within {timeout_s:g} s",
        seen="\n".join(words) or "They have written nothing to standard error.",
        remedy="Give a slow start more time: --multihost-startup-timeout=SECONDS",
    )
