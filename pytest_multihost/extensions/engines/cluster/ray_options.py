"""The option of Ray's engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.option import Option

_KEYS = ("runtime_env", "resources")


def parse_ray_options(text: str) -> Mapping[str, Any]:
    """Read a JSON object with `runtime_env` and `resources`.

    Raises:
        SettingError: The text is something else.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingError(f"must be JSON, not {shown(text)}: {error}") from None
    if not isinstance(found, dict) or not set(found) <= {*_KEYS}:
        raise SettingError(f"must be an object with {' and '.join(_KEYS)}, not {shown(text)}")
    if not all(isinstance(each, dict) for each in found.values()):
        raise SettingError(f"{' and '.join(_KEYS)} must be objects, not {shown(text)}")
    return found


RAY: Option[Mapping[str, Any]] = Option(
    name="ray",
    metavar="JSON",
    help=(
        "For --multihost-on ray: runtime_env, and the resources of each node, as in"
        ' \'{"resources": {"CPU": 8, "GPU": 4}}\' (default: one CPU)'
    ),
    parse=parse_ray_options,
    default={},
)
