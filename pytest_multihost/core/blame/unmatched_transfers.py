"""Transfers with the wrong rank.

If a rank sends to a wrong rank, two ranks wait: itself, for a rank that does not receive from it,
and the rank that should get the message. If it receives from a wrong rank, its partner waits to
send, and it waits for a rank that does not send to it. The wrong partner may have returned from the
test long ago, with all its work done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.wait_graph import States, remembers_all
from pytest_multihost.core.model.operation import Operation

Transfer = tuple[int, Operation]
"""A rank, and one of its sends or receives."""


def as_wrong_partner(cause: Cause, states: States) -> Cause:
    """Return a mismatch if a send and a receive without a counterpart have one rank in common.

    A transfer with a rank that has returned from the test does not show which of the two is wrong,
    so the cause is only likely then.
    """
    operation = cause.operation
    if cause.kind != "finished" or operation is None or operation.kind != "transfer":
        return cause
    likely = replace(cause, confidence="likely")
    if not all(remembers_all(each) for each in states.values()):
        return likely
    sends, receives = [*_unmatched("send", states)], [*_unmatched("recv", states)]
    pairs = [
        found
        for send in sends
        for receive in receives
        if (found := _pair(send, receive)) and {*cause.culprits} & {found[0][1].peer}
    ]
    culprits = tuple(sorted({wrong[0] for wrong, _ in pairs}))
    if not pairs or (len(culprits) > 1 and len(culprits) * 2 >= len(states)):
        return likely
    return replace(
        likely,
        kind="mismatch",
        culprits=culprits,
        waiting=tuple(rank for rank in cause.waiting if rank not in culprits),
        operation=pairs[0][0][1],
        unmatched=pairs[0],
    )


def _pair(send: Transfer, receive: Transfer) -> tuple[Transfer, Transfer] | None:
    """Return a transfer with a wrong partner and the transfer that lacks it, if these are two."""
    (sender, sent), (receiver, received) = send, receive
    if (sent.group_key, sent.tag) != (received.group_key, received.tag):
        return None
    if sender == received.peer and receiver != sent.peer:
        return send, receive
    if receiver == sent.peer and sender != received.peer:
        return receive, send
    return None


def _unmatched(name: str, states: States) -> Iterator[Transfer]:
    """Yield each rank's last transfers of a direction, with each peer, that lack a counterpart."""
    other = "recv" if name == "send" else "send"
    for rank, state in states.items():
        last: dict[object, Operation] = {}
        for each in state.known:
            if each.kind == "transfer" and name in each.name and not each.failed and each.sequence:
                last[each.group_key, each.tag, each.peer] = each
        for each in last.values():
            peer = states.get(each.peer) if each.peer is not None else None
            if peer is None or each.scope.kind:
                continue
            theirs = [
                one
                for one in peer.known
                if one.kind == "transfer"
                and other in one.name
                and (one.group_key, one.tag) == (each.group_key, each.tag)
            ]
            takes_any = any(one.peer is None for one in theirs)
            done = max((one.sequence for one in theirs if one.peer == rank), default=0)
            if not takes_any and done < each.sequence:
                yield rank, each
