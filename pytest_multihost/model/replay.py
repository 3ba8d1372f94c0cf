"""A short text by which a run can be repeated: whom the faults struck, and with which seed."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.json_values import Json, from_json
from pytest_multihost.model.spec import WorldSpec

VERSION = 1
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class Replay:
    """What a token says.

    Attributes:
        test: Checksum of the node id of its test.
        size: Ranks of the world.
        seed: The world's.
        faults: The world's; ranks are numbers.
    """

    test: int
    size: int
    seed: int
    faults: tuple[Fault, ...]

    def is_of(self, nodeid: str) -> bool:
        """Whether it repeats the test with this node id."""
        return self.test == checksum(nodeid)


def checksum(nodeid: str) -> int:
    """Return a number that tells node ids apart."""
    return zlib.crc32(nodeid.encode("utf-8", "surrogatepass"))


def token(spec: WorldSpec) -> str:
    """Return the text that repeats a world."""
    data = {
        "v": VERSION,
        "t": checksum(spec.nodeid),
        "n": spec.size,
        "s": spec.seed,
        "f": [_short(each) for each in spec.faults],
    }
    text = json.dumps(data, separators=(",", ":")).encode()
    sealed = text + zlib.crc32(text).to_bytes(_CRC_BYTES, "big")
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def read_token(text: str) -> Replay:
    """Return what a token says.

    Raises:
        SettingError: It is none, or one of another version.
    """
    data = _opened(text)
    if data.get("v") != VERSION:
        raise SettingError(
            "the token cannot be replayed by this version of pytest-multihost-hangs",
            seen=f"It is of format {data.get('v')}, and this version reads {VERSION}.",
            remedy="Run the test with the version that has printed it, or find a new failure.",
        )
    return Replay(data["t"], data["n"], data["s"], tuple(_long(each) for each in data["f"]))


def _opened(text: str) -> Mapping[str, Any]:
    try:
        sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        content, crc = sealed[:-_CRC_BYTES], sealed[-_CRC_BYTES:]
        if zlib.crc32(content).to_bytes(_CRC_BYTES, "big") == crc:
            data: Mapping[str, Any] = json.loads(content)
            return data
    except (binascii.Error, ValueError):
        pass
    raise SettingError(
        "the token cannot be replayed: it is damaged",
        seen=f"{text[:40]!r} does not end in the checksum of what it says.",
        remedy="Copy all of it from the line that begins with 'replay'.",
    )


def _short(fault: Fault) -> list[Json]:
    data = fault.record()
    return [data["kind"], data["ranks"], data["at"], data["params"], int(fault.must_fire)]


def _long(data: Sequence[Json]) -> Fault:
    names = ("kind", "ranks", "at", "params", "must_fire")
    fields = dict(zip(names, data, strict=True))
    return from_json(Fault, {**fields, "must_fire": bool(fields["must_fire"])})
