"""How a simulated world stands, as its exchange tells the controller: a small file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_multihost.core import files

_NAME = "service-simulated.json"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a world stands.

    Attributes:
        is_still: Whether no rank can go on: each waits for others, or has returned from the test.
        until_s: When the first timeout of a wait ends that, on the monotonic clock.
    """

    is_still: bool = False
    until_s: float = math.inf


def write_standing(folder: Path, standing: Standing) -> None:
    """Replace the file of a world."""
    until_s = None if standing.until_s == math.inf else standing.until_s
    files.write(folder / _NAME, json.dumps({**asdict(standing), "until_s": until_s}))


def read_standing(folder: Path) -> Standing:
    """Return how a world stands; that it moves if nothing else is known."""
    try:
        found = json.loads((folder / _NAME).read_text())
    except (OSError, ValueError):
        return Standing()
    until_s = math.inf if found["until_s"] is None else found["until_s"]
    return Standing(found["is_still"], until_s)
