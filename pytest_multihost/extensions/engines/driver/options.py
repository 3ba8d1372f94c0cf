"""The options of runs whose ranks an engine's nodes start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.setting_values import MAX_RANKS
from pytest_multihost.core.option import Option, parse_count, parse_names, parse_seconds

ON: Option[str | None] = Option(
    name="on",
    metavar="ENGINE[:TEXT]",
    help=(
        "Start the ranks on other machines: slurm[:OPTIONS], ray[:ADDRESS], ssh:HOST,HOST or"
        " exec:COMMAND {i}"
    ),
    parse=str,
    default=None,
)


def _parse_nodes(text: str) -> int:
    """Read a number of nodes: no world has more ranks, and each node has one at least.

    Raises:
        SettingError: The text is not such a number.
    """
    if len(text) > len(str(MAX_RANKS)) or parse_count(text) > MAX_RANKS:
        raise SettingError(f"must be a number from 1 to {MAX_RANKS}, not {shown(text)}")
    return int(text)


NODES: Option[int | None] = Option(
    name="nodes",
    metavar="N",
    help="Number of nodes for --multihost-on (default: all that the engine names; exec: 2)",
    parse=_parse_nodes,
    default=None,
)

QUEUE_TIMEOUT: Option[float | None] = Option(
    name="queue_timeout",
    metavar="SECONDS",
    help="How long --multihost-on may wait for nodes (default: no limit; with CI set: 600)",
    parse=parse_seconds,
    default=None,
)

PYTHON: Option[str | None] = Option(
    name="python",
    metavar="PATH",
    help="Python on the nodes of --multihost-on (default: the path of this one)",
    parse=str,
    default=None,
)

CARRY: Option[tuple[str, ...]] = Option(
    name="carry",
    metavar="NAME[,...]",
    help="Further variables of the environment that the nodes of --multihost-on get",
    parse=parse_names,
    default=(),
)

_RAY_KEYS = ("runtime_env", "resources")


def parse_ray_options(text: str) -> Mapping[str, Any]:
    """Read a JSON object with `runtime_env` and `resources`.

    Raises:
        SettingError: The text is something else.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingError(f"must be JSON, not {shown(text)}: {error}") from None
    if not isinstance(found, dict) or not set(found) <= {*_RAY_KEYS}:
        raise SettingError(f"must be an object with {' and '.join(_RAY_KEYS)}, not {shown(text)}")
    if not all(isinstance(each, dict) for each in found.values()):
        raise SettingError(f"{' and '.join(_RAY_KEYS)} must be objects, not {shown(text)}")
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


OPTIONS = (ON, NODES, QUEUE_TIMEOUT, PYTHON, CARRY, RAY)
