"""The fixtures that a test uses inside a rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_multihost.core.model.errors import NoWorldError

if TYPE_CHECKING:
    from pytest_multihost.core.rank import World


@pytest.fixture
def world() -> World:
    """The ranks of this test, seen from one of them: rank, size, barrier, gather, ..."""
    from pytest_multihost.core.rank import current_world

    try:
        return current_world()
    except NoWorldError as error:
        why = str(error)
    pytest.fail(why, pytrace=False)  # outside, so that pytest prints no chain of two errors


@pytest.fixture
def shared_tmp_path(world: World) -> Path:
    """One temporary directory for all ranks of the world; `tmp_path` is each rank's own."""
    return world.shared_directory
