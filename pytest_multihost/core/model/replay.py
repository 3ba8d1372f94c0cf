"""The token that replays a world: how it is written and read."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.fault import Fault, Point
from pytest_multihost.core.model.json_values import (
    JsonError,
    JsonObject,
    from_json,
    parse_json,
    to_json,
)
from pytest_multihost.core.model.setting_values import MAX_RANKS, MAX_SEED
from pytest_multihost.core.model.spec import WorldSpec

VERSION = 1
_CRC_BYTES = 4
_ShortFault = tuple[str, tuple[int, ...] | str, Point, JsonObject, int]


@dataclass(frozen=True, slots=True)
class Replay:
    """The content of a token.

    Attributes:
        test: Checksum of the test's node id.
        services: Names of the services that it needs.
        options: Texts of the options that shaped the test's world, by the option's name.
    """

    test: int
    size: int
    seed: int
    faults: tuple[Fault, ...]
    services: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def is_of(self, nodeid: str) -> bool:
        """Whether it replays the test with this node id."""
        return self.test == checksum(nodeid)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token's JSON: version, test, size, seed, faults, services (c) and options."""

    omits_defaults: ClassVar = True

    v: int
    t: int = 0
    n: int = 0
    s: int = 0
    f: tuple[_ShortFault, ...] = ()
    c: tuple[str, ...] = ()
    o: tuple[tuple[str, str], ...] = ()


def checksum(nodeid: str) -> int:
    """Return the checksum of a node id."""
    return zlib.crc32(nodeid.encode("utf-8", "surrogatepass"))


def token(spec: WorldSpec) -> str:
    """Return the token that replays a world."""
    faults = tuple(
        (f.kind, f.ranks, f.at, f.params, f.must_fire + 2 * f.is_first) for f in spec.faults
    )
    test, services = checksum(spec.nodeid), spec.replayed_services
    options = tuple(spec.options.items())
    content = _Token(VERSION, test, spec.size, spec.seed, faults, services, options)
    text = json.dumps(to_json(content), separators=(",", ":")).encode()
    sealed = text + zlib.crc32(text).to_bytes(_CRC_BYTES, "big")
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def replay_command(spec: WorldSpec) -> str:
    """Return the shell command that repeats a world, to be typed where pytest was started."""
    if spec.argv:
        return shlex.join(spec.argv)
    return test_command(spec.selected_by or (spec.nodeid,), token(spec))


def test_command(selected_by: Sequence[str], token: str) -> str:
    """Return the shell command that repeats a test's world.

    Args:
        selected_by: pytest's arguments that select the test.
    """
    return shlex.join(["pytest", *selected_by, "--multihost-replay", token])


def read_token(text: str) -> Replay:
    """Return the content of a token.

    Raises:
        SettingError: It is not a token, or one of another version.
    """
    try:
        sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        sealed = b""
    content, crc = sealed[:-_CRC_BYTES], sealed[-_CRC_BYTES:]
    if not content or zlib.crc32(content).to_bytes(_CRC_BYTES, "big") != crc:
        raise SettingError(
            "the token cannot be replayed: it is damaged",
            seen=f"{shown(text)} does not end in the checksum of its content.",
            remedy="Copy all of it from the line that begins with 'replay'.",
        )
    try:
        found = from_json(_Token, parse_json(content))
        is_usable = 0 <= found.n <= MAX_RANKS and abs(found.s) <= MAX_SEED
        problem = "" if is_usable else "its number of ranks or its seed is out of range"
    except JsonError as error:
        problem = str(error)
    if problem:
        raise SettingError(
            "the token cannot be replayed: it does not describe a run",
            seen=f"Its content: {problem}.",
            remedy="Copy the one that was printed in the line that begins with 'replay'.",
        )
    if found.v != VERSION:
        raise SettingError(
            "the token cannot be replayed by this version of pytest-multihost-hangs",
            seen=f"It is of format {shown(found.v)}, and this version reads {VERSION}.",
            remedy="Run the test with the version that has printed it, or find a new failure.",
        )
    faults = tuple(
        Fault(kind, ranks, at, params, must_fire=bool(flags & 1), is_first=bool(flags & 2))
        for kind, ranks, at, params, flags in found.f
    )
    return Replay(found.t, found.n, found.s, faults, found.c, dict(found.o))
