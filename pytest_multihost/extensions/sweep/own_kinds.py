"""The kinds of faults that this package offers, with their sentences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.faults.kind import FaultKind, kinds_by_name


@cache
def own_kinds() -> Mapping[str, FaultKind]:
    """Return the kinds by name."""
    return kinds_by_name(new_plugin_manager().hook.pytest_multihost_faults())
