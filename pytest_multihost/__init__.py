"""Runs tests as N ranks of a real world, and names the culprit of a hang.

Importing this package does not import pytest, torch or jax.

PYTEST_DONT_REWRITE: no assertion in this package appears in test results, and interpreters that a
controller starts import this package before pytest.
"""

from typing import TYPE_CHECKING

from pytest_multihost.core.model.errors import MultihostError as MultihostError
from pytest_multihost.core.model.errors import MultihostHazardWarning as MultihostHazardWarning
from pytest_multihost.core.model.errors import NoWorldError as NoWorldError
from pytest_multihost.core.model.errors import WorldBrokenError as WorldBrokenError

if TYPE_CHECKING:
    from pytest_multihost.core.model.role import Role as Role
    from pytest_multihost.core.pytest_plugin.calls import spawn as spawn
    from pytest_multihost.core.rank import World as World
    from pytest_multihost.core.rank import current_world as current_world
    from pytest_multihost.core.rank import operation as operation

__all__ = [
    "MultihostError",
    "MultihostHazardWarning",
    "NoWorldError",
    "Role",
    "World",
    "WorldBrokenError",
    "current_world",
    "operation",
    "spawn",
]


def __getattr__(name: str) -> object:
    """Import names for ranks and roles lazily, because every run imports this package."""
    if name == "Role":
        from pytest_multihost.core.model.role import Role

        return Role
    if name in ("World", "current_world", "operation"):
        from pytest_multihost.core import rank

        return getattr(rank, name)
    if name == "spawn":
        from pytest_multihost.core.pytest_plugin.calls import spawn

        return spawn
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
