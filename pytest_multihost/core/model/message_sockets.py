"""Finds the ranks that are waited for at message sockets, such as those of zmq.

A message socket has no peer of its own: it connects to an endpoint, or binds it, and so may several
others. Each rank declares in its slot page which endpoints it has bound and connected to, and this
module joins the pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_multihost.core.model.operation import GroupKey, Operation, Operations, Scope

Side = Literal["bound", "connected"]

_ENDPOINT: Mapping[Side, str] = {"bound": "endpoint-bound", "connected": "endpoint-connected"}
_OTHER: Mapping[str, str] = {
    "endpoint-bound": "endpoint-connected",
    "endpoint-connected": "endpoint-bound",
}
Owed = Literal["answer", "perhaps", "nothing"]
"""Whether the other side owes a rank a message; `perhaps`: only if a greeting is a question."""

_SCOPES: Mapping[Owed, str] = {
    "answer": "message-answer",
    "perhaps": "message-perhaps",
    "nothing": "message-request",
}
_ASKING = frozenset({_SCOPES["answer"], _SCOPES["perhaps"]})


def endpoint_key(rank: int, side: Side, endpoint: str) -> GroupKey:
    """Return the key by which a rank declares an endpoint."""
    return (rank,), 0, Scope(_ENDPOINT[side], endpoint)


def message_scope(ends: Iterable[tuple[Side, str]], owed: Owed) -> Scope:
    """Return the scope of a wait for messages.

    Args:
        ends: The endpoints of the sockets that can end the wait.
    """
    names = " ".join(f"{_ENDPOINT[side]}={endpoint}" for side, endpoint in ends)
    return Scope(_SCOPES[owed], names)


def waits_for_request(operation: Operation) -> bool:
    """Return whether a rank waits for a message that no rank owes it."""
    return operation.scope.kind == _SCOPES["nothing"]


def is_for_answer(operation: Operation) -> bool:
    """Return whether a rank waits for a message that known ranks owe it."""
    return operation.scope.kind == _SCOPES["answer"] and operation.kind == "transfer"


def may_be_for_answer(operation: Operation) -> bool:
    """Return whether a rank waits for a message that known ranks may owe it."""
    return operation.scope.kind == _SCOPES["perhaps"] and operation.kind == "transfer"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The ranks that have bound an endpoint or connected to it, by its side and name."""

    ranks: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)

    def operations(self, found: Operations) -> Operations:
        """Return the operations of a rank, with its waits for answers as waits for ranks.

        No thread counts as waiting for an answer that is perhaps owed.
        """
        if not any(each.scope.kind in _ASKING for each in found.recent):
            return found
        recent = tuple(
            self._resolved(each, found.rank) if each.scope.kind in _ASKING else each
            for each in found.recent
        )
        return replace(found, recent=recent)

    def links(self, operation: Operation, rank: int) -> frozenset[tuple[int, int]]:
        """Return who has connected to whom, of the ranks whose message ends a wait of a rank.

        Empty if an end of its sockets leads to no rank.
        """
        found = set()
        for side, _, name in (each.partition("=") for each in operation.scope.name.split()):
            others = self.ranks.get((_OTHER[side], name), frozenset()) - {rank}
            if not others:
                return frozenset()
            is_bound = side == _ENDPOINT["bound"]
            found |= {(each, rank) if is_bound else (rank, each) for each in others}
        return frozenset(found)

    def _resolved(self, operation: Operation, rank: int) -> Operation:
        ends = [each.partition("=") for each in operation.scope.name.split()]
        named = [self.ranks.get((_OTHER[side], name), frozenset()) for side, _, name in ends]
        peers = frozenset[int]().union(*named) - {rank}
        if not peers:
            return operation
        return replace(
            operation,
            kind="transfer",
            group=tuple(sorted({rank, *peers})),
            scope=Scope(operation.scope.kind),
            peer=min(peers) if len(peers) == 1 else None,
            waited_s=operation.waited_s if operation.scope.kind == _SCOPES["answer"] else None,
        )


def find_endpoints(pages: Iterable[Operations]) -> Endpoints:
    """Return the endpoints that the slot pages of a world name."""
    found: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for page in pages:
        for _, _, scope in page.entered:
            if scope.kind in _OTHER:
                found[scope.kind, scope.name].add(page.rank)
    return Endpoints({key: frozenset(ranks) for key, ranks in found.items()})
