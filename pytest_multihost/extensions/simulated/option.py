"""The option `semantics`: whose rules a simulated group of NCCL follows."""

from __future__ import annotations

from typing import Any

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.option import MarkerKey, Option

GLOO, NCCL = "gloo", "nccl"


def _parse(text: str) -> str:
    if text not in (GLOO, NCCL):
        raise SettingError(f"must be one of {GLOO}, {NCCL}, not {shown(text)}")
    return text


def _check(value: object) -> str | None:
    is_known = isinstance(value, str) and value in (GLOO, NCCL)
    return None if is_known else f"must be {GLOO!r} or {NCCL!r}, not {shown(value)}"


def _read(value: Any) -> str:  # noqa: ANN401 - `_check` has accepted it
    return str(value)


SEMANTICS: Option[str] = Option(
    name="semantics",
    metavar="gloo|nccl",
    help="Whose rules the NCCL groups of backend simulated follow",
    parse=_parse,
    default=GLOO,
    key=MarkerKey(_check, _read),
    is_replayed=True,
)
