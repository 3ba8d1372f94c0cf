"""The hooks of runs over several processes, for other extensions and plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookspec

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.extensions.engines.engine import Engine


@hookspec
def pytest_multihost_needs_one_machine(item: pytest.Item) -> str | None:
    """Return why a test cannot be part of a run on several machines; None if it can.

    Implement it with ``hookimpl(optionalhook=True)``: there may be no attached runs.

    Args:
        item: A test that will run as a world.
    """


@hookspec
def pytest_multihost_engines() -> Sequence[Engine]:  # type: ignore[empty-body]
    """Return engines for ``--multihost-on NAME:TEXT``.

    Called when this option is given. If two engines have the same name, the plugin registered last
    wins. Implement it with ``hookimpl(optionalhook=True)``.
    """
