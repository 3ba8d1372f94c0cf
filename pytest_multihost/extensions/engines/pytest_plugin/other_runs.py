"""The marks of a run on several machines: its plugins, and processes that another run started."""

from __future__ import annotations

import os

import pytest

ATTACHED_PLUGIN = "multihost_attached"
"""Name of the plugin that attached runs register."""


DRIVER_PLUGIN = "multihost_driver"
"""Name of the plugin of a run whose ranks an engine's nodes start."""

IS_ORDERED = pytest.StashKey[bool]()
"""Set in a process that an engine has started for another run of pytest."""


def is_started_by_pytest(config: pytest.Config) -> bool:
    """Return whether another run of pytest has started this process for its own ranks."""
    return IS_ORDERED in config.stash or "PYTEST_MULTIHOST_SERVER" in os.environ
