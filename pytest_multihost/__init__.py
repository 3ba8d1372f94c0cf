"""Tests that run as N ranks of a real world, and hangs that name their culprit.

Importing this package does not import pytest, torch or jax.

PYTEST_DONT_REWRITE: no assertion of ours is for a reader of test results, and interpreters that
work for a controller import this package before pytest.
"""

from pytest_multihost.model.errors import MultihostError as MultihostError
from pytest_multihost.model.errors import NoWorldError as NoWorldError
from pytest_multihost.model.errors import WorldBrokenError as WorldBrokenError
from pytest_multihost.rank.world import World as World
from pytest_multihost.rank.world import current_world as current_world

__all__ = ["MultihostError", "NoWorldError", "World", "WorldBrokenError", "current_world"]
