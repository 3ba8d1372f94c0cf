"""Where the processes of an attached run find each other, and the secret that they share.

Either both are given: a secret in the environment or in a file, and rank 0's address by the
launcher. Or rank 0 makes a secret, listens on any free port, and writes both into the rendezvous
file, which only its user may read. The others look for it in the artifacts directory, under the
run's name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_multihost.launch.attach.launcher_env import Address, Membership, read_membership
from pytest_multihost.model.errors import LaunchError, SettingError

SECRET, SECRET_FILE = "PYTEST_MULTIHOST_SECRET", "PYTEST_MULTIHOST_SECRET_FILE"
MIN_SECRET = 16
"""Characters of the shortest secret accepted: a recorded greeting allows guessing offline."""

_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """How this process finds the others.

    Attributes:
        membership: Its membership, and rank 0's addresses where its launcher names them.
        secret: The secret given by the user; None where rank 0 makes one.
        file: The rendezvous file, for a secret that rank 0 has made.
    """

    membership: Membership
    secret: bytes | None
    file: Path

    @classmethod
    def read(cls, environment: Mapping[str, str], folder: Path) -> Rendezvous:
        """Read this process's membership, and the secret if the user has given one.

        Args:
            environment: The variables.
            folder: Where the rendezvous file goes.

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
                secret = _read_private(Path(source)).strip()
            except OSError as error:
                raise SettingError(f"{SECRET_FILE} cannot be read", seen=str(error)) from error
        else:
            return cls(membership, None, file)
        if len(secret) < MIN_SECRET:
            happened = f"the secret in {source} is shorter than {MIN_SECRET} characters"
            raise SettingError(happened, remedy="Make one: openssl rand -hex 32")
        return cls(membership, secret, file)

    def find(self) -> tuple[Sequence[Address], bytes] | None:
        """Return rank 0's addresses and the secret; None while they are not known.

        Raises:
            SettingError: Other users may read the rendezvous file.
        """
        if self.secret is not None:
            return self.membership.addresses, self.secret
        try:
            content = json.loads(_read_private(self.file))
            addresses = tuple((str(host), int(port)) for host, port in content["addresses"])
            return addresses, bytes.fromhex(content["secret"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def listen(self) -> tuple[socket.socket, bytes]:
        """Return a socket that listens for the peers, and the secret; write the rendezvous file.

        Raises:
            SettingError: A secret is given, but no address for rank 0.
            LaunchError: It cannot listen there.
        """
        membership = self.membership
        if self.secret is not None and not membership.addresses:
            raise SettingError(
                f"{SECRET} is set, but {membership.source} does not tell where rank 0 is",
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
        self._write_file({"secret": secret.hex(), "addresses": _reachable(stream)})
        return stream, secret

    def _write_file(self, content: Mapping[str, object]) -> None:
        """Write the rendezvous file atomically, so that no reader sees half of it."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - made above, private
            json.dump(content, file)
        new.replace(self.file)


def _read_private(path: Path) -> bytes:
    """Return the content of a file that holds a secret.

    Raises:
        SettingError: Other users may read or write it.
        OSError: It cannot be read.
    """
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
        happened = f"{path} holds a secret, and others than its user may read or write it"
        raise SettingError(happened, remedy=f"Run: chmod 600 {path}")
    return path.read_bytes()


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
