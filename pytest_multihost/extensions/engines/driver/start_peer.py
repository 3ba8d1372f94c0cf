"""Starts a peer on a node: reads its order from standard input, and runs pytest."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from pytest_multihost.core.model.errors import LaunchError, MultihostError
from pytest_multihost.extensions.engines.driver.carrier import socket_of_streams
from pytest_multihost.extensions.engines.driver.order import PeerOrder, read_order
from pytest_multihost.extensions.engines.driver.versions import PACKAGE

CODE = "from pytest_multihost.extensions.engines.driver.start_peer import main; main()"
"""The code of a peer, as for ``python -c``."""

IN_COPY = "here"
"""An argument of a peer that an engine has started in a copy of the project."""

_REFUSED = 4
"""pytest's exit code for an error of usage."""


def main() -> NoReturn:
    """Follow the order on standard input; never returns."""
    try:
        order = read_order(0, version(PACKAGE))
        connection = socket_of_streams(order.silent_s)
        place = find_project(order, Path.cwd(), is_copy=IN_COPY in sys.argv)
    except MultihostError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_REFUSED)
    os.chdir(place)
    os.environ.update(order.environment)
    wanted = [str(place / each) for each in order.path]
    sys.path[:0] = [each for each in wanted if each not in sys.path]
    sys.argv[:] = ["pytest", *order.args]

    import pytest

    from pytest_multihost.extensions.engines.driver.ordered_peer import OrderedPeer

    sys.exit(pytest.main([*order.args], plugins=[OrderedPeer(order, connection)]))


def find_project(order: PeerOrder, started_in: Path, *, is_copy: bool = False) -> Path:
    """Return the directory on this node from which pytest is to be started.

    It is the driver's directory, or where the engine has started this process: for example, in a
    copy of the project.

    Args:
        is_copy: Whether the engine has made such a copy, which then comes first.

    Raises:
        LaunchError: The project is in neither.
    """
    places = list(dict.fromkeys([Path(order.directory), started_in]))
    for place in reversed(places) if is_copy else places:
        if place.is_dir() and not _missing(place, order.landmarks):
            return place
    seen = [f"{each}: {_why_not(each, order.landmarks)}" for each in places]
    raise LaunchError(
        f"this node does not have the project of {order.directory}",
        seen="\n".join(seen),
        remedy="Share the directory with the nodes, or start their processes in a copy of it.",
    )


def _missing(place: Path, landmarks: Sequence[str]) -> list[str]:
    return [each for each in landmarks if not (place / each).exists()]


def _why_not(place: Path, landmarks: Sequence[str]) -> str:
    if not place.is_dir():
        return "there is no such directory"
    return f"it has no {', '.join(_missing(place, landmarks))}"
