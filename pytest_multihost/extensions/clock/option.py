"""The option `clock`: how time passes in a world."""

from __future__ import annotations

from typing import Any

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.option import MarkerKey, Option

REAL, JUMP = "real", "jump"


def _parse(text: str) -> str:
    if text not in (REAL, JUMP):
        raise SettingError(f"must be one of {REAL}, {JUMP}, not {shown(text)}")
    return text


def _check(value: object) -> str | None:
    is_known = isinstance(value, str) and value in (REAL, JUMP)
    return None if is_known else f"must be {REAL!r} or {JUMP!r}, not {shown(value)}"


def _read(value: Any) -> str:  # noqa: ANN401 - `_check` has accepted it
    return str(value)


CLOCK_OPTION: Option[str] = Option(
    name="clock",
    metavar="real|jump",
    help="Clock of the ranks; jump: it jumps over waits that only a timeout can end",
    parse=_parse,
    default=REAL,
    key=MarkerKey(_check, _read),
    is_replayed=True,
)
