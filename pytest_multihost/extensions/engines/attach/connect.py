"""Connects the processes of a run to rank 0, which admits no other process."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.kernel_identity import kernel_identity
from pytest_multihost.core.launch.launcher_env import Address, Membership
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.launch.wire import FrameStream
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.messages import CollectedTest, PeerHello, Refused, ToPeer
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.extensions.engines.attach.admission import Admission
from pytest_multihost.extensions.engines.attach.peer import (
    Peer,
    interface_of_address,
)
from pytest_multihost.extensions.engines.attach.rendezvous import (
    CHALLENGE,
    MAGIC,
    PROOF,
    Greeting,
    Handshake,
    RefusedError,
    Rendezvous,
    new_nonce,
)


class Listener:
    """Accepts the peers, in rank 0's process.

    Raises:
        SettingError: A secret is given, but no address for rank 0; or another user has made the
            rendezvous file.
        LaunchError: No address can be listened at.
    """

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.membership = rendezvous.membership
        self._rendezvous = rendezvous
        self._listener, secret = rendezvous.listen()
        self._listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
        close_in_children(self._listener)
        self._admission = Admission(self.membership, secret)
        self._admission.watch(self._listener, self._accept)

    @property
    def peers(self) -> Mapping[int, Peer]:
        """The authenticated peers, by rank."""
        return self._admission.peers

    def await_peers(self, timeout_s: float, *, remedy: str) -> None:
        """Wait until all peers have connected and sent their hello.

        Args:
            remedy: Advice for the error about a missing peer.

        Raises:
            LaunchError: Timeout; the error names the missing peers.
            SettingError: Another user has replaced the rendezvous file.
        """
        deadline_s = time.monotonic() + timeout_s
        while missing := self._admission.missing:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise self._incomplete(missing, timeout_s, remedy)
            self._rendezvous.check_file()
            self._admission.step(min(0.5, left_s))
        self._listener.close()
        for peer in self.peers.values():
            peer.await_hello()

    def close(self) -> None:
        """Stop accepting connections, and remove the rendezvous file."""
        self._admission.close()
        self._listener.close()
        with contextlib.suppress(OSError):
            self._rendezvous.file.unlink()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, address = self._listener.accept()
            self._admission.begin(connection, f"{address[0]}:{address[1]}")

    def _incomplete(self, missing: Sequence[int], timeout_s: float, remedy: str) -> LaunchError:
        here, (host, port) = [0, *self.peers], self._listener.getsockname()[:2]
        seen = f"{PLAIN.of(here)} {'is' if len(here) == 1 else 'are'} here"
        seen += f", listening at {host}:{port} as {self.membership.source} says"
        if self._admission.refused:
            count, words = self._admission.refusals, "; ".join(self._admission.refused)
            seen += f", {count} connections were refused: {words}"
        have = "has" if len(missing) == 1 else "have"
        return LaunchError(
            f"{PLAIN.of(missing)} of {self.membership.size} {have} not connected within"
            f" {timeout_s:g} s",
            seen=f"{seen}.",
            remedy=remedy,
        )


def detect_local_peers(peers: Mapping[int, Peer], folder: Path) -> None:
    """Find out which peers see the same processes and files as the controller.

    Raises:
        LaunchError: A peer is gone, or does not answer.
    """
    token = secrets.token_hex(16)
    probe = folder / f"attach-{token}"
    files.write(probe, token)
    try:
        for peer in peers.values():
            peer.detect_locality(str(probe), token)
    finally:
        probe.unlink()


def require_one_machine(peers: Mapping[int, Peer], spec: WorldSpec) -> None:
    """Check that all peers share this machine's processes and files, if a service needs that.

    Call it after `detect_local_peers`.

    Raises:
        LaunchError: A peer does not share them.
    """
    needs = [each.one_machine for each in spec.services.values() if each.one_machine]
    far = [peer for peer in peers.values() if not peer.is_local]
    if needs and far:
        setting, instead = needs[0]
        raise LaunchError(
            f"{spec.nodeid} cannot have {setting} in a run on several machines: its ranks"
            " share a page of memory",
            seen=f"{far[0].name} does not share this process's kernel and files.",
            remedy=f"Say {instead}, or start all processes on one machine.",
        )


_TRY_S = 5.0
"""Timeout for connecting to one address."""

_COLLECT_S = 600.0
"""How long rank 0 may take to answer once its port is listening; it may still be collecting.

Only where rank 0 has written its address into the rendezvous file. At an address that the user or
the launcher gives, something else may listen."""


@dataclass(slots=True)
class Connector:
    """Finds rank 0 and connects to it.

    Attributes:
        seen: The last error at each address.
    """

    rendezvous: Rendezvous
    seen: dict[Address, str] = field(default_factory=dict)
    _patience_s: float = 0.0
    """Deadline until which a silent listener is assumed to be rank 0 while it collects."""

    def connect(
        self, timeout_s: float, *, tests: tuple[CollectedTest, ...], problems: tuple[str, ...]
    ) -> FrameStream[ToPeer]:
        """Return the connection to rank 0, after sending it this process's hello.

        Args:
            timeout_s: Timeout of the search for rank 0.
            tests: The collected tests, see `PeerHello`.
            problems: Why this process cannot take part.

        Raises:
            LaunchError: Rank 0 was not found before the timeout, or refused this process.
            SettingError: Other users may read the rendezvous file.
        """
        started_s = time.monotonic()
        while time.monotonic() < (deadline_s := max(started_s + timeout_s, self._patience_s)):
            addresses, secret = self.rendezvous.find() or ((), b"")
            for address in addresses:
                found = self._try(address, secret, min(deadline_s, time.monotonic() + _TRY_S))
                if found is not None:
                    stream, welcome = found
                    own = str(stream.socket.getsockname()[0])
                    hello = hello_at(own, tests, problems)
                    stream.send(WireFrame(hello, number=welcome.number))
                    return stream
            time.sleep(0.05)
        waited_s = time.monotonic() - started_s
        seen = "; ".join(f"{host}:{port}: {why}" for (host, port), why in self.seen.items())
        raise LaunchError(
            f"rank {self.rendezvous.membership.rank} has not found rank 0 within {waited_s:.0f} s",
            seen=seen or f"There is no rendezvous file {self.rendezvous.file}.",
            remedy=(
                "Rank 0's process must run the same command. Where the machines share no folder,"
                " set PYTEST_MULTIHOST_SECRET and PYTEST_MULTIHOST_ADDRESS in all of them. If rank"
                " 0 still collects, give it more time: --multihost-startup-timeout=SECONDS. If"
                " something else listens at that address, name another port."
            ),
        )

    def _try(
        self, address: Address, secret: bytes, until_s: float
    ) -> tuple[FrameStream[ToPeer], WireFrame[ToPeer]] | None:
        try:
            connection = socket.create_connection(address, timeout=_TRY_S)
        except OSError as error:
            self.seen[address], self._patience_s = str(error), 0.0
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            try:
                found = prove(connection, secret, self.rendezvous.membership, until_s)
            except TimeoutError:
                self.seen[address] = "it accepted the connection and sent nothing"
                if self.rendezvous.secret is None:  # rank 0 itself has written the address
                    self._patience_s = self._patience_s or time.monotonic() + _COLLECT_S
                return None
            except (OSError, RefusedError) as error:
                self.seen[address] = str(error) or type(error).__name__
                return None
            undo.pop_all()
        return found


def prove(
    connection: socket.socket, secret: bytes, membership: Membership, until_s: float
) -> tuple[FrameStream[ToPeer], WireFrame[ToPeer]]:
    """Prove to the controller that this process knows the secret.

    Returns:
        The authenticated connection, and the controller's first request, which asks for this
        process's hello. Its tags prove that the controller knows the secret.

    Raises:
        OSError: The controller is not there, or does not answer.
        RefusedError: It does not speak this protocol.
        LaunchError: It has refused this process.
    """
    greeting = Greeting(CHALLENGE)
    fields = None
    while fields is None:
        connection.settimeout(max(0.01, until_s - time.monotonic()))
        fields = greeting.receive(connection)
    handshake = Handshake(fields[0], new_nonce(), membership.rank, membership.size)
    proof = handshake.proof(secret)
    connection.sendall(PROOF.pack(MAGIC, handshake.answer, handshake.rank, handshake.size, proof))
    stream = handshake.stream(connection, secret, role="peer")
    frames = stream.await_frames(until_s)
    if not frames:
        raise ConnectionError(stream.ended or "it has not answered yet")
    if isinstance(refused := frames[0].message, Refused):
        happened = f"rank 0 refused this process, which has rank {membership.rank}"
        raise LaunchError(happened, seen=refused.why)
    return stream, frames[0]


def hello_at(
    address: str, tests: tuple[CollectedTest, ...], problems: tuple[str, ...]
) -> PeerHello:
    """Return this process's description of itself.

    Args:
        tests: The collected tests, see `PeerHello`.
        problems: Why this process cannot take part.
    """
    return PeerHello(
        host=socket.gethostname(),
        pid=os.getpid(),
        kernel=kernel_identity(),
        address=address,
        interface=interface_of_address(address),
        tests=tests,
        problems=problems,
    )
