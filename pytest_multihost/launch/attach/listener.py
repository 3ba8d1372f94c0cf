"""Rank 0 waits for the other processes of an attached run, and lets nobody else in."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_multihost.launch.attach.handshake import (
    Handshake,
    RefusedError,
    greeting,
    new_nonce,
    proof_is_valid,
    read_greeting,
)
from pytest_multihost.launch.attach.launcher_env import Membership
from pytest_multihost.launch.attach.stream import AuthenticatedStream, Peer, close_in_children
from pytest_multihost.model.errors import LaunchError

KNOCK_S = 10.0
"""How long whoever connects may take to prove itself."""

_MAX_KNOCKS = 256
_MAX_TOLD = 3
_HELLO_S = 60.0


@dataclass(slots=True)
class _Knock:
    """Somebody who has connected and not yet proven anything."""

    stream: socket.socket
    who: str
    challenge: str
    deadline_s: float
    data: bytes = b""


@dataclass(slots=True)
class Listener:
    """The processes that have come, and where the others are awaited.

    Attributes:
        membership: Our own membership.
        secret: What the others must know.
        listener: Where they come to.
        peers: Who has come, by rank.
        refused: Who was not let in, and why.
    """

    membership: Membership
    secret: bytes
    listener: socket.socket
    peers: dict[int, Peer] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    _knocks: dict[int, _Knock] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __post_init__(self) -> None:
        self.listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
        close_in_children(self.listener)
        self._selector.register(self.listener, selectors.EVENT_READ)

    @property
    def missing(self) -> list[int]:
        """Who has not come."""
        return [rank for rank in range(1, self.membership.size) if rank not in self.peers]

    def await_peers(self, timeout_s: float) -> None:
        """Wait until everybody has come and told of itself.

        Raises:
            LaunchError: Somebody has not, in that time; says who.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.missing:
            if time.monotonic() >= deadline_s:
                raise self._incomplete(timeout_s)
            self._step(min(0.5, max(0.0, deadline_s - time.monotonic())))
        for peer in self.peers.values():
            # The greeting was the first request.
            peer.about = dict(peer.answer(1, within_s=_HELLO_S).header)

    def close(self) -> None:
        """Let nobody in any more."""
        for knock in list(self._knocks.values()):
            self._drop(knock)
        self._selector.close()
        self.listener.close()

    def _incomplete(self, timeout_s: float) -> LaunchError:
        size, missing = self.membership.size, self.missing
        have = "has" if len(missing) == 1 else "have"
        here = _ranks([0, *self.peers])
        told = [f"{here} {'is' if len(self.peers) == 0 else 'are'} here"]
        host, port = self.listener.getsockname()[:2]
        told.append(f"listening at {host}:{port} as {self.membership.source} says")
        if self.refused:
            count, first = len(self.refused), "; ".join(self.refused[:_MAX_TOLD])
            told.append(f"{count} connections were refused: {first}")
        return LaunchError(
            f"{_ranks(missing)} of {size} {have} not come after {timeout_s:g} s",
            seen=", ".join(told) + ".",
            remedy=(
                "Every process must run the same pytest command, with --multihost-attach, and"
                " reach rank 0. Give a slow start more time: --multihost-startup-timeout=SECONDS"
            ),
        )

    def _step(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self.listener:
                self._accept()
            elif key.fd in self._knocks:
                self._hear(self._knocks[key.fd])
        now_s = time.monotonic()
        for knock in [each for each in self._knocks.values() if each.deadline_s <= now_s]:
            self._refuse(knock, f"it proved nothing within {KNOCK_S:g} s")

    def _accept(self) -> None:
        while True:
            try:
                stream, address = self.listener.accept()
            except OSError:
                return
            knock = _Knock(
                stream, f"{address[0]}:{address[1]}", new_nonce(), time.monotonic() + KNOCK_S
            )
            stream.setblocking(False)  # noqa: FBT003 - the standard library's signature
            close_in_children(stream)
            if len(self._knocks) >= _MAX_KNOCKS:
                self._drop(next(iter(self._knocks.values())))  # the oldest
            self._knocks[stream.fileno()] = knock
            self._selector.register(stream, selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                stream.send(greeting({"challenge": knock.challenge}))

    def _hear(self, knock: _Knock) -> None:
        try:
            data = knock.stream.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # gone before it said a word: an agent of ours that comes again, or a probe
            self._drop(knock)
            return
        knock.data += data
        try:
            found = read_greeting(knock.data)
            if found is not None:
                self._let_in(knock, *found)
        except RefusedError as error:
            self._refuse(knock, str(error))

    def _let_in(self, knock: _Knock, said: Mapping[str, Any], rest: bytes) -> None:
        """Make whoever has proven itself one of us.

        Raises:
            RefusedError: It has not.
        """
        rank, size, answer = said.get("rank"), said.get("size"), said.get("answer")
        if not (isinstance(rank, int) and isinstance(size, int) and isinstance(answer, str)):
            raise RefusedError("it does not speak our language")
        handshake = Handshake(challenge=knock.challenge, answer=answer, rank=rank, size=size)
        if not proof_is_valid(handshake, self.secret, said.get("proof")):
            raise RefusedError("it does not know the secret")
        self._forget(knock)
        stream = AuthenticatedStream.between(
            knock.stream, handshake, self.secret, sender="controller"
        )
        why = "it said more than its greeting" if rest else self._why_not(rank, size)
        if why is not None:
            self.refused.append(f"{knock.who}: {why}")
            stream.send({"kind": "refused", "why": why})
            stream.drain(time.monotonic() + 1.0)
            stream.close()
            return
        peer = Peer(rank, stream, {"host": knock.who, "pid": None})
        peer.request({"kind": "welcome"})
        self.peers[rank] = peer

    def _why_not(self, rank: int, size: int) -> str | None:
        if size != self.membership.size:
            return f"it is one of {size} processes, this run has {self.membership.size}"
        if not 0 < rank < size:
            return f"there is no membership {rank} for it"
        if rank in self.peers:
            return f"rank {rank} has come twice"
        return None

    def _refuse(self, knock: _Knock, why: str) -> None:
        self.refused.append(f"{knock.who}: {why}")
        self._drop(knock)

    def _drop(self, knock: _Knock) -> None:
        self._forget(knock)
        knock.stream.close()

    def _forget(self, knock: _Knock) -> None:
        self._selector.unregister(knock.stream)
        del self._knocks[knock.stream.fileno()]


def _ranks(ranks: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"
