"""Prepares a rank of an adopted test, before the test's setup."""

from __future__ import annotations

import tempfile

import pytest

from pytest_multihost.core.model.errors import NoWorldError
from pytest_multihost.core.rank import current_world
from pytest_multihost.extensions.adopt.adopted import OUTCOME, Adopted


def enter(item: pytest.Item) -> None:
    """Put this rank in the place of the harness's processes; outside of a rank, do nothing.

    Temporary files go to the world's directory, because harnesses of one parent leave some behind.
    """
    found = item.stash.get(OUTCOME, None)
    if not isinstance(found, Adopted):
        return
    try:
        world = current_world()
    except NoWorldError:
        return
    tempfile.tempdir = str(world.shared_directory)
    if found.enter is not None:
        found.enter(item)
