"""The order that a peer gets from the driver: the first bytes on its standard input.

It carries the secret of the run, which therefore is in no command line, no environment and no
record of a job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NoReturn

from pytest_multihost.core.launch.launcher_env import Membership
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.json_values import from_json, message, to_json

_DIGITS = 8
_MAX_BYTES = 1 << 24


@message
class PeerOrder:
    """The order to a peer, with all that it needs to run the tests.

    Attributes:
        plugin: Version of this package in the driver.
        secret: Proves to either side that the other belongs to the run, in hexadecimal digits.
        rank: The peer's number, from 1.
        size: The number of processes, including the driver.
        args: The driver's command line for pytest.
        landmarks: Files, relative to that directory, by which the peer recognises the project.
        silent_s: How long the peer waits for a heartbeat.
        path: Entries of `sys.path` to add, relative to the directory.
    """

    plugin: str
    secret: str
    rank: int
    size: int
    engine: str
    args: tuple[str, ...]
    directory: str
    landmarks: tuple[str, ...]
    environment: Mapping[str, str]
    silent_s: float
    path: tuple[str, ...] = ()

    @property
    def membership(self) -> Membership:
        """The peer's membership."""
        return Membership(rank=self.rank, size=self.size, source=self.engine, job=self.directory)


def encode_order(order: PeerOrder) -> bytes:
    """Return the bytes of an order: its length in hexadecimal digits, and JSON."""
    data = json.dumps(to_json(order)).encode()
    return b"%0*x" % (_DIGITS, len(data)) + data


def read_order(descriptor: int, version: str) -> PeerOrder:
    """Read an order, and not a byte more.

    Raises:
        LaunchError: There is none, or it comes from another version.
    """
    length = _read(descriptor, _DIGITS)
    try:
        size = int(length, 16)
    except ValueError:
        size = _MAX_BYTES + 1
    if size > _MAX_BYTES:
        _refuse(f"its first bytes are {length!r}")
    try:
        content = json.loads(_read(descriptor, size))
        theirs = str(content["plugin"])
    except (ValueError, TypeError, KeyError) as error:
        _refuse(str(error))
    if theirs != version:
        raise LaunchError(
            "pytest-multihost-hangs has another version on this node",
            seen=f"{version} here, {theirs} where pytest was started.",
            remedy="Install one version in both places.",
        )
    order: PeerOrder = from_json(PeerOrder, content)
    return order


def _refuse(seen: str) -> NoReturn:
    raise LaunchError(
        "the standard input holds no order from pytest",
        seen=seen,
        remedy="`pytest --multihost-on` starts this program; do not start it by hand.",
    )


def _read(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            _refuse("its input has ended")
        data += more
    return data
