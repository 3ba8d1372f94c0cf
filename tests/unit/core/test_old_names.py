"""Names that plugins import from where they used to be."""

from __future__ import annotations

import importlib

import pytest

from pytest_multihost import hookspecs


def test_a_kind_of_fault_may_still_be_imported_from_its_old_home() -> None:
    """With a warning that names the new one."""
    old = importlib.import_module("pytest_multihost.core.nemesis")
    with pytest.warns(DeprecationWarning, match=r"pytest_multihost\.faults\.kind"):
        assert old.FaultKind is hookspecs.FaultKind
    with pytest.raises(AttributeError, match="no attribute 'kill'"):
        old.kill  # noqa: B018 - the access is the test
