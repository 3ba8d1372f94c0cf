"""Rank 0 waits for the other processes of an attached run, and admits nobody else.

A connection that has proven nothing costs little: a kilobyte at most is read from it, for ten
seconds at most, and of too many such connections the oldest is closed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_multihost.launch.attach.handshake import (
    VERSION,
    GreetingDecoder,
    Handshake,
    RefusedError,
    authenticated_stream,
    greeting,
    new_nonce,
)
from pytest_multihost.launch.attach.launcher_env import Membership
from pytest_multihost.launch.attach.peer import Peer
from pytest_multihost.launch.attach.sockets import close_in_children
from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.messages import Challenge, PeerHello, Proof, Refused

PROVE_S = 10.0
"""How long a process that connects may take to prove itself."""

_MAX_PENDING = 256
_MAX_SHOWN = 3


@dataclass(slots=True)
class _Pending:
    """A connection from a process that has not proven anything yet."""

    connection: socket.socket
    address: str
    challenge: str
    deadline_s: float
    decoder: GreetingDecoder = field(default_factory=lambda: GreetingDecoder(Proof))


@dataclass(slots=True)
class Listener:
    """Accepts the peers.

    Attributes:
        membership: Our own: the number of processes.
        secret: What the others must know.
        listener: The listening socket.
        peers: Those that have proven themselves, by rank.
        refused: The connections that were refused, and why.
    """

    membership: Membership
    secret: bytes
    listener: socket.socket
    peers: dict[int, Peer] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __post_init__(self) -> None:
        self.listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
        close_in_children(self.listener)
        self._selector.register(self.listener, selectors.EVENT_READ)

    @property
    def missing(self) -> list[int]:
        """The ranks whose processes have not come."""
        return [rank for rank in range(1, self.membership.size) if rank not in self.peers]

    def await_peers(self, timeout_s: float) -> None:
        """Wait until all peers have come and told what they are.

        Raises:
            LaunchError: Some have not, in that time; says which.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.missing:
            if time.monotonic() >= deadline_s:
                raise self._incomplete(timeout_s)
            self._step(min(0.5, max(0.0, deadline_s - time.monotonic())))
        self.listener.close()
        for peer in self.peers.values():
            peer.await_hello()

    def close(self) -> None:
        """Accept nobody any more."""
        for pending in list(self._pending.values()):
            self._drop(pending)
        self._selector.close()
        self.listener.close()

    def _incomplete(self, timeout_s: float) -> LaunchError:
        size, missing = self.membership.size, self.missing
        have = "has" if len(missing) == 1 else "have"
        here = _ranks([0, *self.peers])
        seen = [f"{here} {'is' if len(self.peers) == 0 else 'are'} here"]
        host, port = self.listener.getsockname()[:2]
        seen.append(f"listening at {host}:{port} as {self.membership.source} says")
        if self.refused:
            count, first = len(self.refused), "; ".join(self.refused[:_MAX_SHOWN])
            seen.append(f"{count} connections were refused: {first}")
        return LaunchError(
            f"{_ranks(missing)} of {size} {have} not come after {timeout_s:g} s",
            seen=", ".join(seen) + ".",
            remedy=(
                "Every process must run the same pytest command, with --multihost-attach, and"
                " reach rank 0. Give a slow start more time: --multihost-startup-timeout=SECONDS"
            ),
        )

    def _step(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self.listener:
                self._accept()
            elif key.fd in self._pending:
                self._read(self._pending[key.fd])
        now_s = time.monotonic()
        for pending in [each for each in self._pending.values() if each.deadline_s <= now_s]:
            self._refuse(pending, f"it proved nothing within {PROVE_S:g} s")

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self.listener.accept()
            except OSError:
                return
            deadline_s = time.monotonic() + PROVE_S
            pending = _Pending(connection, f"{address[0]}:{address[1]}", new_nonce(), deadline_s)
            connection.setblocking(False)  # noqa: FBT003 - the standard library's signature
            close_in_children(connection)
            if len(self._pending) >= _MAX_PENDING:
                self._drop(next(iter(self._pending.values())))  # the oldest
            self._pending[connection.fileno()] = pending
            self._selector.register(connection, selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                connection.send(greeting(Challenge(VERSION, pending.challenge)))

    def _read(self, pending: _Pending) -> None:
        try:
            data = pending.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # gone before it said anything: an agent of ours that comes again, or a probe
            self._drop(pending)
            return
        try:
            proof: Proof | None = pending.decoder.feed(data)
            if proof is not None:
                self._admit(pending, proof)
        except RefusedError as error:
            self._refuse(pending, str(error))

    def _admit(self, pending: _Pending, proof: Proof) -> None:
        """Make a process that has proven itself a peer.

        Raises:
            RefusedError: It has not.
        """
        handshake = Handshake(
            challenge=pending.challenge, answer=proof.answer, rank=proof.rank, size=proof.size
        )
        if not handshake.proves(self.secret, proof.proof):
            raise RefusedError("it does not know the secret")
        self._forget(pending)
        stream = authenticated_stream(
            pending.connection, handshake, self.secret, sender="controller"
        )
        why = self._why_not(proof)
        if why is not None:
            self.refused.append(f"{pending.address}: {why}")
            stream.send(Frame(Refused(why)))
            stream.drain(time.monotonic() + 1.0)
            stream.close()
            return
        peer = Peer(proof.rank, stream, PeerHello(host=pending.address))
        peer.welcome()
        self.peers[proof.rank] = peer

    def _why_not(self, proof: Proof) -> str | None:
        rank, size = proof.rank, proof.size
        if size != self.membership.size:
            return f"it is one of {size} processes, this run has {self.membership.size}"
        if not 0 < rank < size:
            return f"there is no place {rank} for it"
        if rank in self.peers:
            return f"rank {rank} has come twice"
        return None

    def _refuse(self, pending: _Pending, why: str) -> None:
        self.refused.append(f"{pending.address}: {why}")
        self._drop(pending)

    def _drop(self, pending: _Pending) -> None:
        self._forget(pending)
        pending.connection.close()

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.connection)
        del self._pending[pending.connection.fileno()]


def _ranks(ranks: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"
