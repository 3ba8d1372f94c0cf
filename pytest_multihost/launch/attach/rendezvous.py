"""Where the processes of an attached run find each other, and the secret that they share.

Either both are given: a secret in the environment or in a file, and rank 0's address by the
launcher. Or rank 0 makes a secret, listens on any free port, and writes both into the rendezvous
file, which only its user may read. The others look for it in the artifacts directory, under the
run's name.

Rank 0 admits no other process. An unauthenticated connection costs little: at most a kilobyte is
read from it, for at most ten seconds, and of too many such connections the oldest is closed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import selectors
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pytest_multihost.launch.attach.handshake import (
    VERSION,
    GreetingDecoder,
    Handshake,
    RefusedError,
    authenticated_stream,
    close_in_children,
    greeting,
    new_nonce,
)
from pytest_multihost.launch.attach.launcher_env import Address, Membership
from pytest_multihost.launch.attach.peer import Peer
from pytest_multihost.launch.wire import Frame, FrameStream
from pytest_multihost.model.errors import LaunchError, SettingError
from pytest_multihost.model.messages import Challenge, PeerHello, Proof, Refused, ToPeer

SECRET, SECRET_FILE = "PYTEST_MULTIHOST_SECRET", "PYTEST_MULTIHOST_SECRET_FILE"
MIN_SECRET = 16
"""Characters of the shortest secret accepted: a recorded greeting allows guessing offline."""

_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Rank 0's addresses, and the shared secret."""

    addresses: tuple[Address, ...]
    secret: bytes


def given_secret(environment: Mapping[str, str]) -> bytes | None:
    """Return the secret that the user has given; None where rank 0 is to make one.

    Raises:
        SettingError: It is too short, or other users may read its file.
    """
    if SECRET in environment:
        return _checked(SECRET, environment[SECRET].encode())
    if SECRET_FILE not in environment:
        return None
    path = Path(environment[SECRET_FILE])
    try:
        _check_private(path)
        return _checked(str(path), path.read_bytes().strip())
    except OSError as error:
        raise SettingError(f"{SECRET_FILE} cannot be read", seen=str(error)) from error


def _checked(name: str, secret: bytes) -> bytes:
    if len(secret) < MIN_SECRET:
        happened = f"the secret in {name} is shorter than {MIN_SECRET} characters"
        raise SettingError(happened, remedy="Make one: openssl rand -hex 32")
    return secret


def _check_private(path: Path) -> None:
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
        happened = f"{path} holds a secret, and others than its user may read or write it"
        raise SettingError(happened, remedy=f"Run: chmod 600 {path}")


def rendezvous_path(folder: Path, membership: Membership) -> Path:
    """Return the path of a run's rendezvous file."""
    name = hashlib.sha256(membership.key.encode()).hexdigest()[:16]
    return folder / f"attach-{name}.json"


def find_rendezvous(
    membership: Membership, secret: bytes | None, rendezvous_file: Path
) -> Rendezvous | None:
    """Return where rank 0 is; None while that is not known.

    Raises:
        SettingError: Other users may read the rendezvous file.
    """
    if secret is not None:
        return Rendezvous(membership.addresses, secret)
    try:
        _check_private(rendezvous_file)
        content = json.loads(rendezvous_file.read_text(encoding="utf-8"))
        addresses = tuple((str(host), int(port)) for host, port in content["addresses"])
        return Rendezvous(addresses, bytes.fromhex(content["secret"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def listen(
    membership: Membership, secret: bytes | None, rendezvous_file: Path
) -> tuple[socket.socket, bytes]:
    """Return a socket that listens for the peers, and the shared secret.

    Raises:
        SettingError: A secret is given, but no address for rank 0.
        LaunchError: It cannot listen there.
    """
    if secret is not None and not membership.addresses:
        raise SettingError(
            f"{SECRET} is set, but {membership.source} does not tell where rank 0 is",
            remedy="Set PYTEST_MULTIHOST_ADDRESS=HOST:PORT in every process.",
        )
    if secret is None and membership.port is None:
        host = "127.0.0.1" if membership.is_one_machine else "0.0.0.0"  # noqa: S104 - sealed
        stream = _listen_at([(host, 0)])
    else:
        stream = _listen_at(membership.addresses)
    if secret is None:
        secret = secrets.token_bytes(32)
        _write_rendezvous_file(rendezvous_file, secret, _reachable(stream))
    return stream, secret


def _listen_at(addresses: Sequence[Address]) -> socket.socket:
    problems = []
    for address in addresses:
        for family, target in _bindable(address):
            stream = socket.socket(family, socket.SOCK_STREAM)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                stream.bind(target)
                stream.listen(_BACKLOG)
            except OSError as error:
                problems.append(f"{target[0]}:{target[1]}: {error.strerror}")
                stream.close()
            else:
                return stream
    raise LaunchError(
        "rank 0 cannot listen for the other processes",
        seen="; ".join(problems),
        remedy="Name a free port of its machine: PYTEST_MULTIHOST_ADDRESS=HOST:PORT",
    )


def _bindable(address: Address) -> Iterator[tuple[socket.AddressFamily, Address]]:
    """Yield what to bind for an address: itself, or the wildcard where it is only an alias."""
    host, port = address
    with contextlib.suppress(OSError):
        for family, _, _, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            yield family, (str(target[0]), port)
    if not host.startswith("127."):
        yield socket.AF_INET, ("0.0.0.0", port)  # noqa: S104 - sealed


def _reachable(stream: socket.socket) -> list[Address]:
    """Return the addresses under which others may reach a listening socket."""
    host, port = stream.getsockname()[:2]
    if host not in ("0.0.0.0", "::"):  # noqa: S104 - only compared
        return [(host, port)]
    found = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
    hosts = [each.address for each in found if each.family == socket.AF_INET]
    return [(each, port) for each in sorted(hosts, key=lambda each: each.startswith("127."))]


def _write_rendezvous_file(
    rendezvous_file: Path, secret: bytes, addresses: Sequence[Address]
) -> None:
    """Write the rendezvous file atomically, so that no reader sees half of it."""
    rendezvous_file.parent.mkdir(parents=True, exist_ok=True)
    new = rendezvous_file.with_name(f"{rendezvous_file.name}.{os.getpid()}")
    content = json.dumps({"secret": secret.hex(), "addresses": addresses})
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - made above, private
        file.write(content)
    new.replace(rendezvous_file)


PROVE_S = 10.0
"""How long a process that connects may take to authenticate itself."""

_MAX_PENDING = 256
_MAX_SHOWN = 3


@dataclass(slots=True)
class _Pending:
    """A connection from a process that is not authenticated yet."""

    connection: socket.socket
    address: str
    challenge: str
    deadline_s: float
    decoder: GreetingDecoder = field(default_factory=lambda: GreetingDecoder(Proof))


@dataclass(slots=True)
class Listener:
    """Accepts the peers.

    Attributes:
        membership: The membership of rank 0, with the number of processes.
        secret: The shared secret.
        listener: The listening socket.
        peers: The authenticated peers, by rank.
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
        """The ranks whose processes have not connected."""
        return [rank for rank in range(1, self.membership.size) if rank not in self.peers]

    def await_peers(self, timeout_s: float) -> None:
        """Wait until all peers have connected and sent their hello.

        Raises:
            LaunchError: Timeout; the error names the missing peers.
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
        """Stop accepting connections."""
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
        if not data:  # closed without a word: a port probe, or an agent that will reconnect
            self._drop(pending)
            return
        try:
            proof: Proof | None = pending.decoder.feed(data)
            if proof is not None:
                self._admit(pending, proof)
        except RefusedError as error:
            self._refuse(pending, str(error))

    def _admit(self, pending: _Pending, proof: Proof) -> None:
        """Make a process a peer if its proof is valid.

        Raises:
            RefusedError: It is not.
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


_PAUSE_S = 0.05
_TRY_S = 5.0
"""Timeout for connecting to one address."""

_COLLECT_S = 600.0
"""How long rank 0 may take to answer once its port is listening: it may be collecting."""


Stream = FrameStream[ToPeer]


@dataclass(slots=True)
class Connector:
    """Finds rank 0 and connects to it.

    Attributes:
        membership: This process's rank, and the number of processes.
        find: Returns where rank 0 is, None while that is not known.
        where: Where that is looked up, for messages.
        seen: The last error at each address.
    """

    membership: Membership
    find: Callable[[], Rendezvous | None]
    where: str
    seen: dict[Address, str] = field(default_factory=dict)
    _patience_s: float = 0.0
    """Deadline until which a silent listener is taken for a rank 0 that is collecting."""

    def connect(self, timeout_s: float) -> tuple[Stream, Frame[ToPeer]]:
        """Return the connection to rank 0, and its greeting, which must be answered.

        Raises:
            LaunchError: It was not found before the timeout, or refused this process.
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
        """Send the proof; the tag of rank 0's first frame proves that rank 0 knows the secret.

        Raises:
            OSError: Rank 0 is not there, or does not answer.
            RefusedError: It does not speak this protocol.
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
