"""Faults where no plugin performs them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_multihost import faults
from pytest_multihost.core.fault_planner import offered_planner
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.testing import SettingError


def test_a_fault_that_no_plugin_performs_is_refused_with_the_reason() -> None:
    """Whether a marker, a token or the command line asks for it; a world without faults runs."""
    manager = new_plugin_manager()
    manager.unregister(name="multihost_faults")
    planner = offered_planner(manager.hook)
    given: Any = {"size": 2, "seed": 0, "hosts": (), "roles": ()}
    assert planner.plan([], **given).problems == []
    [problem] = planner.plan([faults.kill(rank=0)], **given).problems
    assert problem.startswith("faults.kill(rank=0): no plugin performs faults")
    assert "multihost_faults" in str(planner.lacking(faults.kill(rank=0)))
    with pytest.raises(SettingError, match="no plugin performs faults"):
        planner.parse("kill(rank=0)")
