"""Where the processes of an attached run find each other, and the secret that they share.

Either both are given: a secret in the environment or in a file, and rank 0's address by the
launcher. Or rank 0 makes a secret, listens where it likes, and leaves both in a file that only its
user may read, the rendezvous file. The others look for it in the artifacts directory, under the
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

from pytest_multihost.launch.attach.launcher_env import Address, Membership
from pytest_multihost.model.errors import LaunchError, SettingError

SECRET, SECRET_FILE = "PYTEST_MULTIHOST_SECRET", "PYTEST_MULTIHOST_SECRET_FILE"
MIN_SECRET = 16
"""Characters of the shortest secret that is taken; who records a greeting can try out guesses."""

_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Rank 0's addresses, and the secret to prove there."""

    addresses: tuple[Address, ...]
    secret: bytes


def given_secret(environment: Mapping[str, str]) -> bytes | None:
    """Return the secret that the user has given; None where one is to be made.

    Raises:
        SettingError: It is too short, or others may read its file.
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
    """Return where rank 0 of a run leaves its address and secret."""
    name = hashlib.sha256(membership.key.encode()).hexdigest()[:16]
    return folder / f"attach-{name}.json"


def find_rendezvous(
    membership: Membership, secret: bytes | None, rendezvous_file: Path
) -> Rendezvous | None:
    """Return where rank 0 is; None as long as that is not known.

    Raises:
        SettingError: Others may read the rendezvous file.
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
    """Return a socket that listens for the peers, and the secret that they must know.

    Raises:
        SettingError: A secret is given, and nobody has said where rank 0 is to listen.
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
    """Yield what to bind for an address: itself, or all of them where it is somebody's alias."""
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
    """Write the rendezvous file in one step: nobody reads half of it."""
    rendezvous_file.parent.mkdir(parents=True, exist_ok=True)
    new = rendezvous_file.with_name(f"{rendezvous_file.name}.{os.getpid()}")
    content = json.dumps({"secret": secret.hex(), "addresses": addresses})
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - made above, private
        file.write(content)
    new.replace(rendezvous_file)
