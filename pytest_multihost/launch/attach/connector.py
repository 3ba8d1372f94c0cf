"""Every other process of an attached run finds rank 0 and connects to it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
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
from pytest_multihost.launch.attach.launcher_env import Address, Membership
from pytest_multihost.launch.attach.rendezvous import Rendezvous
from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.launch.wire.stream import FrameStream
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.messages import Challenge, Proof, Refused, ToPeer

_PAUSE_S = 0.05
_TRY_S = 5.0
"""How long one address is tried."""

_COLLECT_S = 600.0
"""How long rank 0 may take to answer where somebody listens already: it collects."""


Stream = FrameStream[ToPeer]


@dataclass(slots=True)
class Connector:
    """Finds rank 0 and connects to it.

    Attributes:
        membership: Our own rank, and the number of processes.
        find: Returns where rank 0 is, None as long as that is not known.
        where: Where that is looked up, for messages.
        seen: What went wrong at each address, the last time.
    """

    membership: Membership
    find: Callable[[], Rendezvous | None]
    where: str
    seen: dict[Address, str] = field(default_factory=dict)
    _patience_s: float = 0.0
    """Until when a listener that says nothing is taken for a rank 0 that collects."""

    def connect(self, timeout_s: float) -> tuple[Stream, Frame[ToPeer]]:
        """Return the connection to rank 0, and its greeting, which wants an answer.

        Raises:
            LaunchError: It was not found in that time, or does not want us.
        """
        started_s = time.monotonic()
        while time.monotonic() < (deadline_s := max(started_s + timeout_s, self._patience_s)):
            point = self.find()
            for address in point.addresses if point is not None else ():
                found = self._try(address, point.secret if point else b"", deadline_s)
                if found is not None:
                    return found
            time.sleep(_PAUSE_S)
        waited_s = time.monotonic() - started_s
        seen = "; ".join(f"{host}:{port}: {why}" for (host, port), why in self.seen.items())
        raise LaunchError(
            f"rank {self.membership.rank} has not found rank 0 for {waited_s:.0f} s",
            seen=seen or f"Nothing was left at {self.where}.",
            remedy=(
                "Rank 0's process must run the same command. Where the machines share no folder,"
                " set PYTEST_MULTIHOST_SECRET and PYTEST_MULTIHOST_ADDRESS in all of them."
            ),
        )

    def _try(
        self, address: Address, secret: bytes, deadline_s: float
    ) -> tuple[Stream, Frame[ToPeer]] | None:
        until_s = min(deadline_s, time.monotonic() + _TRY_S)
        try:
            connection = socket.create_connection(address, timeout=_TRY_S)
        except OSError as error:
            self.seen[address], self._patience_s = str(error), 0.0
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            try:
                stream = self._prove(connection, secret, until_s)
                frames = stream.await_frames(until_s)
            except TimeoutError:
                self.seen[address] = "somebody listens there and says nothing"
                self._patience_s = self._patience_s or time.monotonic() + _COLLECT_S
                return None
            except (OSError, RefusedError) as error:
                self.seen[address] = str(error) or type(error).__name__
                return None
            if not frames:
                self.seen[address] = stream.ended or "it has not answered our greeting yet"
                return None
            if isinstance(refused := frames[0].message, Refused):
                rank = self.membership.rank
                happened = f"rank 0 does not want this process, which says it is {rank}"
                raise LaunchError(happened, seen=refused.why)
            undo.pop_all()
        return stream, frames[0]

    def _prove(self, connection: socket.socket, secret: bytes, until_s: float) -> Stream:
        """Prove that we know the secret; the tag of the first frame proves that rank 0 does.

        Raises:
            OSError: It is not there, or says nothing.
            RefusedError: It does not speak our protocol.
        """
        decoder = GreetingDecoder(Challenge)
        challenge: Challenge | None = None
        while challenge is None:
            connection.settimeout(max(0.01, until_s - time.monotonic()))
            data = connection.recv(4096)
            if not data:
                raise RefusedError("it closed the connection")
            challenge = decoder.feed(data)
        handshake = Handshake(
            challenge=challenge.challenge,
            answer=new_nonce(),
            rank=self.membership.rank,
            size=self.membership.size,
        )
        proof = Proof(
            version=VERSION,
            answer=handshake.answer,
            rank=handshake.rank,
            size=handshake.size,
            proof=handshake.proof(secret),
        )
        connection.sendall(greeting(proof))
        return authenticated_stream(connection, handshake, secret, sender="agent")
