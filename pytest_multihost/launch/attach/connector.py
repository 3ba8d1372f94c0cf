"""Every other process of an attached run goes to rank 0."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_multihost.launch.attach.handshake import (
    Handshake,
    RefusedError,
    greeting,
    new_nonce,
    read_greeting,
)
from pytest_multihost.launch.attach.launcher_env import Address, Membership
from pytest_multihost.launch.attach.rendezvous import Rendezvous
from pytest_multihost.launch.attach.stream import AuthenticatedStream
from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.model.errors import LaunchError

_PAUSE_S = 0.05
_TRY_S = 5.0
"""How long one address is believed in."""

_COLLECT_S = 600.0
"""How long rank 0 may take to answer where somebody listens already: it collects."""


@dataclass(slots=True)
class Connector:
    """The way to rank 0.

    Attributes:
        membership: Our own membership.
        find: Returns where rank 0 is, None as long as that is not known.
        where: What is said of that to the reader.
        seen: What went wrong at each address, the last time.
    """

    membership: Membership
    find: Callable[[], Rendezvous | None]
    where: str
    seen: dict[Address, str] = field(default_factory=dict)
    _hopes_s: float = 0.0
    """Until when somebody who listens and says nothing is taken for a rank 0 that collects."""

    def connect(self, timeout_s: float) -> tuple[AuthenticatedStream, Frame]:
        """Return the connection to rank 0, and its greeting, which wants an answer.

        Raises:
            LaunchError: It was not found in that time, or does not want us.
        """
        started_s = time.monotonic()
        while time.monotonic() < (deadline_s := max(started_s + timeout_s, self._hopes_s)):
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
    ) -> tuple[AuthenticatedStream, Frame] | None:
        until_s = min(deadline_s, time.monotonic() + _TRY_S)
        try:
            stream = socket.create_connection(address, timeout=_TRY_S)
        except OSError as error:
            self.seen[address], self._hopes_s = str(error), 0.0
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(stream.close)
            try:
                sealed = self._greet(stream, secret, until_s)
                frames = sealed.await_frames(until_s)
            except TimeoutError:
                self.seen[address] = "somebody listens there and says nothing"
                self._hopes_s = self._hopes_s or time.monotonic() + _COLLECT_S
                return None
            except (OSError, RefusedError) as error:
                self.seen[address] = str(error) or type(error).__name__
                return None
            if not frames:
                self.seen[address] = sealed.ended or "it has not answered our greeting yet"
                return None
            if frames[0].header["kind"] == "refused":
                happened = (
                    f"rank 0 does not want this process, which says it is {self.membership.rank}"
                )
                raise LaunchError(happened, seen=str(frames[0].header["why"]))
            undo.pop_all()
        return sealed, frames[0]

    def _greet(self, stream: socket.socket, secret: bytes, until_s: float) -> AuthenticatedStream:
        """Prove that we know the secret; what is sealed afterwards proves that rank 0 does.

        Raises:
            OSError: It is not there, or says nothing.
            RefusedError: It does not speak our language.
        """
        data, found = b"", None
        while found is None:
            stream.settimeout(max(0.01, until_s - time.monotonic()))
            more = stream.recv(4096)
            if not more:
                raise RefusedError("it closed the connection")
            data += more
            found = read_greeting(data)
        if found[1]:
            raise RefusedError("it said more than its challenge")
        handshake = Handshake(
            challenge=str(found[0].get("challenge")),
            answer=new_nonce(),
            rank=self.membership.rank,
            size=self.membership.size,
        )
        mine = {
            "answer": handshake.answer,
            "rank": handshake.rank,
            "size": handshake.size,
            "proof": handshake.proof(secret),
        }
        stream.sendall(greeting(mine))
        return AuthenticatedStream.between(stream, handshake, secret, sender="agent")
