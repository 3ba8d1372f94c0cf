"""The values that hooks exchange."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_multihost import hookspecs


@pytest.mark.parametrize("name", hookspecs.__all__)
def test_a_value_that_hooks_exchange_can_be_imported_from_hookspecs(name: str) -> None:
    """Extensions need to know no other module, so modules can be moved."""
    assert getattr(hookspecs, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = hookspecs.Nothing


def test_hookspecs_load_no_value_that_nobody_has_asked_for() -> None:
    """Every run of pytest imports them; the package's own errors are all that comes along."""
    program = (
        "import sys, pytest_multihost; before = {*sys.modules};"
        " import pytest_multihost.hookspecs;"
        " print(*(name for name in {*sys.modules} - before if name.startswith('pytest_multi')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["pytest_multihost.hookspecs"]
