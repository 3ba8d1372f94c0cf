"""Fixtures that a test uses inside a rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_multihost.model.errors import NoWorldError
from pytest_multihost.pytest_private import fixture_definitions

if TYPE_CHECKING:
    from pytest_multihost.nemesis.object_store.store import ObjectStore
    from pytest_multihost.rank.world import World


@pytest.fixture
def world() -> World:
    """The ranks of this test, seen from one of them: rank, size, barrier, gather, ..."""
    from pytest_multihost.rank.world import current_world

    try:
        return current_world()
    except NoWorldError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def shared_tmp_path(world: World) -> Path:
    """One temporary directory for all ranks of the world; `tmp_path` is each rank's own."""
    return world.shared_directory


@pytest.fixture
def object_store() -> Iterator[ObjectStore]:
    """An S3 store with an empty bucket of the test's own, the same for all ranks of a world.

    What one rank sets - `slow`, `throttle`, `fail` - holds for all, until the test is over.
    """
    from pytest_multihost.pytest_plugin.object_store import the_store

    yield from the_store()


def asks_for_store(item: pytest.Item) -> bool:
    """Whether a test asks for our `object_store`, and not for one of its project's own."""
    found = fixture_definitions(item, "object_store")
    return any(each.func.__module__ == __name__ for each in found[-1:])
