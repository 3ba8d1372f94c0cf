"""Authenticates connections, and admits the processes of a run as peers.

An unauthenticated connection costs little: a hundred bytes are read from it, within a time limit.
If there are too many such connections, the oldest is closed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.launcher_env import Membership
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.model.messages import PeerHello, Refused
from pytest_multihost.extensions.engines.attach.peer import Peer
from pytest_multihost.extensions.engines.attach.rendezvous import (
    CHALLENGE,
    MAGIC,
    PROOF,
    Greeting,
    Handshake,
    RefusedError,
    new_nonce,
)

PROVE_S = 10.0
"""How long a connected process may take to authenticate itself."""

_MAX_PENDING = 256
_MAX_SHOWN = 3


@dataclass(slots=True, eq=False)
class _Pending:
    """A connection from a process that has not authenticated itself yet.

    Attributes:
        rank: The only rank that the process may have; None: any.
    """

    connection: socket.socket
    address: str
    deadline_s: float
    rank: int | None = None
    challenge: bytes = field(default_factory=new_nonce)
    greeting: Greeting = field(default_factory=lambda: Greeting(PROOF))


class Admission:
    """Admits connections as peers, in rank 0's process.

    Attributes:
        membership: Rank 0's membership, with the number of processes.
    """

    def __init__(self, membership: Membership, secret: bytes) -> None:
        self.peers: dict[int, Peer] = {}
        self.membership = membership
        self.refusals = 0
        self.refused: list[str] = []
        self._secret = secret
        self._pending: list[_Pending] = []  # the oldest first
        self._selector = close_in_children(selectors.DefaultSelector())

    @property
    def missing(self) -> list[int]:
        """The ranks that have not been admitted yet."""
        return sorted({*range(1, self.membership.size)} - self.peers.keys())

    def watch(self, listener: socket.socket, accept: Callable[[], None]) -> None:
        """Call a function in `step` whenever a socket is readable."""
        self._selector.register(listener, selectors.EVENT_READ, accept)

    def begin(
        self,
        connection: socket.socket,
        address: str,
        *,
        within_s: float = PROVE_S,
        rank: int | None = None,
    ) -> None:
        """Send a challenge to the process at the other end of a connection.

        Args:
            within_s: How long the process may take to answer.
            rank: The only rank that it may have; None: any.
        """
        connection.setblocking(False)  # noqa: FBT003 - the standard library's signature
        close_in_children(connection)
        if len(self._pending) >= _MAX_PENDING:
            self._drop(self._pending[0])
        pending = _Pending(connection, address, time.monotonic() + within_s, rank)
        self._pending.append(pending)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._read, pending))
        with contextlib.suppress(OSError):
            connection.send(CHALLENGE.pack(MAGIC, pending.challenge))

    def step(self, timeout_s: float) -> None:
        """Wait for answers, at most `timeout_s` seconds, and admit or refuse their senders."""
        for key, _ in self._selector.select(timeout_s):
            key.data()
        now = time.monotonic()
        for pending in [each for each in self._pending if each.deadline_s <= now]:
            self._drop(pending, f"it did not prove within {PROVE_S:g} s that it knows the secret")

    def close(self) -> None:
        """Close all connections that have not been admitted."""
        for pending in self._pending:
            pending.connection.close()
        self._pending.clear()
        self._selector.close()

    def _read(self, pending: _Pending) -> None:
        if pending not in self._pending:  # it was dropped for a new connection
            return
        try:
            fields = pending.greeting.receive(pending.connection)
            if fields is not None:
                self._admit(pending, *fields)
        except BlockingIOError:
            return
        except OSError:
            self._drop(pending)
        except RefusedError as error:
            self._drop(pending, str(error))

    def _admit(self, pending: _Pending, answer: bytes, rank: int, size: int, proof: bytes) -> None:
        """Make a process a peer if its proof is valid; refuse it if its rank is wrong.

        Raises:
            RefusedError: The proof is not valid.
        """
        handshake = Handshake(pending.challenge, answer, rank, size)
        if not handshake.proves(self._secret, proof):
            raise RefusedError("it does not know the secret")
        self._forget(pending)
        stream = handshake.stream(pending.connection, self._secret, role="controller")
        if size != self.membership.size:
            why = f"it is one of {size} processes, this run has {self.membership.size}"
        elif not 0 < rank < size:
            why = f"its rank is {rank}, and this run has ranks 1 to {size - 1} besides rank 0"
        elif rank in self.peers:
            why = f"another process is rank {rank} already"
        elif pending.rank not in (None, rank):
            why = f"its rank is {rank}, not {pending.rank}"
        else:
            peer = self.peers[rank] = Peer(rank, stream, PeerHello(host=pending.address))
            peer.welcome()
            return
        self._note_refusal(pending, why)
        stream.send(WireFrame(Refused(why)))
        stream.drain(time.monotonic() + 1.0)
        stream.close()

    def _drop(self, pending: _Pending, why: str = "") -> None:
        """Close a connection; one without a reason may be a port probe or a retrying peer."""
        if why:
            self._note_refusal(pending, why)
        self._forget(pending)
        pending.connection.close()

    def _note_refusal(self, pending: _Pending, why: str) -> None:
        self.refusals += 1
        if len(self.refused) < _MAX_SHOWN:
            self.refused.append(f"{pending.address}: {why}")

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.connection)
        self._pending.remove(pending)
