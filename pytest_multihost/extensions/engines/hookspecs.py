"""A hook of attached runs, for other extensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookspec

if TYPE_CHECKING:
    import pytest


@hookspec
def pytest_multihost_needs_one_machine(item: pytest.Item) -> str | None:
    """Return why a test cannot be part of a run on several machines; None if it can.

    Implement it with ``hookimpl(optionalhook=True)``: there may be no attached runs.

    Args:
        item: A test that will run as a world.
    """
