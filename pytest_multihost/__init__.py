"""Tests that run as N ranks of a real world, and hangs that name their culprit.

Importing this package does not import pytest, torch or jax.

PYTEST_DONT_REWRITE: no assertion of ours is for a reader of test results, and interpreters that
work for a controller import this package before pytest.
"""

from typing import TYPE_CHECKING

from pytest_multihost.model.errors import MultihostError as MultihostError
from pytest_multihost.model.errors import NoWorldError as NoWorldError
from pytest_multihost.model.errors import WorldBrokenError as WorldBrokenError

if TYPE_CHECKING:
    from pytest_multihost.rank.recorder import operation as operation
    from pytest_multihost.rank.world import World as World
    from pytest_multihost.rank.world import current_world as current_world

__all__ = [
    "MultihostError",
    "NoWorldError",
    "World",
    "WorldBrokenError",
    "current_world",
    "operation",
]


def __getattr__(name: str) -> object:
    """Import what a rank needs when it is asked for: every run of pytest imports this package."""
    if name in ("World", "current_world"):
        from pytest_multihost.rank import world

        return getattr(world, name)
    if name == "operation":
        from pytest_multihost.rank.recorder import operation

        return operation
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
