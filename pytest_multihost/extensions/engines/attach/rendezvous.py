"""Finds the meeting point of the processes of an attached run, and authenticates them.

Meeting: either the secret is given in the environment or in a file, and the launcher gives rank 0's
address; or rank 0 makes a secret, listens on any free port, and writes both into the rendezvous
file, which only its user may read. The others look for the file in the artifacts directory, under
the run's name.

Authentication: both ends of a connection know the secret, and neither sends it. The controller
sends a challenge, which is a random number that is used once. The peer answers with its own random
number, its rank, the number of processes and a proof: an HMAC of all of these, keyed with the
secret. Only a process that knows the secret can compute the proof, and a recorded proof does not
match another challenge.

From the same values both derive two keys, one for each direction. Every later frame carries tags
made with the key of its direction; see `launch.frames.Authenticator`. Therefore the controller's
first frame proves that it also knows the secret, no frame can be reflected as an answer, and frames
of other connections are rejected. Nothing is encrypted: an eavesdropper can read everything.

Challenge and proof have a fixed size and layout, so data from an unauthenticated process is never
parsed. All tags are HMAC-SHA256 (RFC 2104), compared in constant time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from pytest_multihost.core import files
from pytest_multihost.core.forgotten import SECRET, forget
from pytest_multihost.core.launch.launcher_env import Address, Membership, read_membership
from pytest_multihost.core.launch.wire import FrameStream
from pytest_multihost.core.model.errors import LaunchError, SettingError
from pytest_multihost.core.model.messages import FromPeer, ToPeer

SECRET_FILE = f"{SECRET}_FILE"
_VARIABLES = (
    *(f"PYTEST_MULTIHOST_{name}" for name in ("ATTACH", "RANK", "SIZE", "ADDRESS")),
    SECRET,
    SECRET_FILE,
)
MIN_SECRET = 16
"""Minimum length of a secret, because a recorded greeting allows guessing it offline."""

_BACKLOG = 256
_MAX_FILE = 1 << 16
"""The most bytes that are read of a file with a secret."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """How this process finds the others.

    Attributes:
        membership: This process's membership, with rank 0's addresses if the launcher gives them.
        secret: The user's secret; None if rank 0 makes one.
        file: The rendezvous file, for a secret that rank 0 has made.
    """

    membership: Membership
    secret: bytes | None
    file: Path

    @classmethod
    def read(cls, environment: Mapping[str, str], folder: Path) -> Rendezvous:
        """Read this process's membership, and the secret if the user has given one.

        Args:
            environment: The launcher's and the user's variables.
            folder: The folder of the rendezvous file.

        Raises:
            SettingError: There is no membership, the secret is too short, or other users may read
                its file.
        """
        membership = read_membership(environment)
        name = hashlib.sha256(membership.key.encode()).hexdigest()[:16]
        file = folder / f"attach-{name}.json"
        if SECRET in environment:
            source, secret = SECRET, environment[SECRET].encode()
        elif SECRET_FILE in environment:
            source = environment[SECRET_FILE]
            try:
                secret = _read_private(Path(source), follows=True).strip()
            except OSError as error:
                raise SettingError(f"{SECRET_FILE} cannot be read", seen=str(error)) from error
        else:
            return cls(membership, None, file)
        if len(secret) < MIN_SECRET:
            happened = f"the secret in {source} is shorter than {MIN_SECRET} characters"
            raise SettingError(happened, remedy="Make one: openssl rand -hex 32")
        return cls(membership, secret, file)

    @staticmethod
    def forget_variables() -> None:
        """Remove this process's variables, so that ranks neither know the secret nor attach."""
        forget(_VARIABLES)

    def find(self) -> tuple[Sequence[Address], bytes] | None:
        """Return rank 0's addresses and the secret; None while they are unknown.

        Raises:
            SettingError: Other users may read the rendezvous file.
        """
        if self.secret is not None:
            return self.membership.addresses, self.secret
        try:
            content = json.loads(_read_private(self.file, follows=False))
            addresses = tuple((str(host), int(port)) for host, port in content["addresses"])
            return addresses, bytes.fromhex(content["secret"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def listen(self) -> tuple[socket.socket, bytes]:
        """Return a socket that listens for the peers, and the secret; write the rendezvous file.

        Raises:
            SettingError: A secret is given, but no address for rank 0; or another user has made
                the rendezvous file.
            LaunchError: No address can be listened at.
        """
        membership = self.membership
        self.check_file()
        if self.secret is not None and not membership.addresses:
            raise SettingError(
                f"{SECRET} is set, but {membership.source} does not give the address of rank 0",
                remedy="Set PYTEST_MULTIHOST_ADDRESS=HOST:PORT in every process.",
            )
        if self.secret is not None or membership.port is not None:
            stream = _listen_at(membership.addresses)
        else:
            host = "127.0.0.1" if membership.is_one_machine else "0.0.0.0"  # noqa: S104 - sealed
            stream = _listen_at([(host, 0)])
        if self.secret is not None:
            return stream, self.secret
        secret = secrets.token_bytes(32)
        content = {"secret": secret.hex(), "addresses": _reachable(stream)}
        files.claim(self.file.parent)
        files.write(self.file, json.dumps(content), mode=0o600)
        return stream, secret

    def check_file(self) -> None:
        """Check that no other user has made the rendezvous file.

        The other processes refuse such a file and end, so rank 0 must not wait for them.

        Raises:
            SettingError: Another user has made the file, or may read or write it.
        """
        if self.secret is None:
            with contextlib.suppress(OSError):
                _check_private(self.file, self.file.lstat())


def _read_private(path: Path, *, follows: bool) -> bytes:
    """Return the content of a file that holds a secret.

    Args:
        follows: Whether the file may be a symbolic link, as in a mounted Kubernetes secret.

    Raises:
        SettingError: Other users may read or write the file.
        OSError: The file cannot be read.
    """
    if not follows:
        _check_private(path, path.lstat())
    # O_NONBLOCK, because opening a FIFO with this name would block.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows else os.O_NOFOLLOW)
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - the checked file is read
        _check_private(path, os.fstat(file.fileno()))
        return file.read(_MAX_FILE)


def _check_private(path: Path, found: os.stat_result) -> None:
    """Check that only this user, or root, may read and write a file that holds a secret.

    Raises:
        SettingError: Other users may.
    """
    remedy = f"Remove it: rm {path}"
    if not stat.S_ISREG(found.st_mode):
        problem = "it is a symbolic link" if stat.S_ISLNK(found.st_mode) else "it is not a file"
    elif found.st_uid not in (os.getuid(), 0):
        problem = f"it belongs to another user, {found.st_uid}"
    elif stat.S_IMODE(found.st_mode) & 0o077:
        problem, remedy = (
            "users other than its owner may read or write it",
            f"Run: chmod 600 {path}",
        )
    else:
        return
    raise SettingError(f"{path} cannot hold a secret, because {problem}", remedy=remedy)


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
    """Yield the addresses to bind: the given one, then the wildcard in case it is only an alias."""
    host, port = address
    with contextlib.suppress(OSError):
        for family, _, _, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            yield family, (str(target[0]), port)
    if not host.startswith("127."):
        yield socket.AF_INET, ("0.0.0.0", port)  # noqa: S104 - sealed


def _reachable(stream: socket.socket) -> list[Address]:
    """Return the addresses at which others may reach a listening socket."""
    host, port = stream.getsockname()[:2]
    if host not in ("0.0.0.0", "::"):  # noqa: S104 - only compared
        return [(host, port)]
    found = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
    hosts = [each.address for each in found if each.family == socket.AF_INET]
    return [(each, port) for each in sorted(hosts, key=lambda each: each.startswith("127."))]


# Authentication of two processes and of their frames


Role = Literal["controller", "peer"]

VERSION = 3
MAGIC = f"pytest-multihost-hangs/{VERSION}\n".encode()
_NONCE = 32
CHALLENGE = struct.Struct(f"!{len(MAGIC)}s{_NONCE}s")
"""`MAGIC`, and the controller's random number."""

PROOF = struct.Struct(f"!{len(MAGIC)}s{_NONCE}sII32s")
"""`MAGIC`, the peer's random number, its rank, the number of processes, and the proof."""

_VALUES = struct.Struct(f"!{_NONCE}s{_NONCE}sII")

_SILENCE_S = 20
"""Seconds without any answer after which the connection to a machine counts as lost."""


class RefusedError(Exception):
    """The other end is not a process of this run, or a third party altered the messages."""


def new_nonce() -> bytes:
    """Return a random number that is used once."""
    return secrets.token_bytes(_NONCE)


class Greeting:
    """Receives the one message that precedes all frames, and not a byte more.

    Args:
        layout: The layout of the message, which begins with `MAGIC`.
    """

    def __init__(self, layout: struct.Struct) -> None:
        self._layout = layout
        self._received = b""

    def receive(self, connection: socket.socket) -> tuple[Any, ...] | None:
        """Read once; return the message's fields, or None while it is incomplete.

        Raises:
            RefusedError: The data are not such a message.
            OSError: The connection is broken, or nothing has arrived.
        """
        data = connection.recv(self._layout.size - len(self._received))
        self._received += data
        if self._received[: len(MAGIC)] != MAGIC[: len(self._received)]:
            raise RefusedError(
                f"it does not speak the protocol of pytest-multihost-hangs, version {VERSION}"
            )
        if not data:
            raise ConnectionError("it closed the connection")
        if len(self._received) < self._layout.size:
            return None
        return self._layout.unpack(self._received)[1:]


@dataclass(frozen=True, slots=True)
class Handshake:
    """The values that both sides of one connection know.

    Attributes:
        rank: The rank that the peer claims.
        size: The number of processes according to the peer's launcher.
    """

    challenge: bytes
    answer: bytes
    rank: int
    size: int

    def proof(self, secret: bytes) -> bytes:
        """Return the peer's proof that it knows the secret."""
        return self._derive(secret, b"proof")

    def stream(self, connection: socket.socket, secret: bytes, *, role: Role) -> FrameStream[Any]:
        """Return a stream whose frames carry tags for this one connection."""
        _enable_keepalive(connection)
        down, up = (self._derive(secret, use) for use in (b"to the peer", b"to the controller"))
        if role == "controller":
            return FrameStream(connection, FromPeer, keys=(up, down))
        return FrameStream(connection, ToPeer, keys=(down, up))

    def proves(self, secret: bytes, proof: bytes) -> bool:
        """Return whether `proof` could only be made by a process that knows the secret."""
        return hmac.compare_digest(self.proof(secret), proof)

    def _derive(self, secret: bytes, use: bytes) -> bytes:
        values = _VALUES.pack(self.challenge, self.answer, self.rank, self.size)
        return hmac.digest(secret, MAGIC + values + use, "sha256")


def _enable_keepalive(connection: socket.socket) -> None:
    """Make the kernel end a connection to a machine that has disappeared (tcp(7)).

    TCP_KEEPIDLE and similar options apply to an idle connection, TCP_USER_TIMEOUT to unacknowledged
    data. With the defaults, the end would take hours for the first, a quarter of an hour for the
    second.
    """
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    )
    for level, name, value in options:
        with contextlib.suppress(OSError):  # a pair of unix sockets, in a test
            connection.setsockopt(level, name, value)
