"""Detect FreeIPA's pytest-multihost, which installs the same import name.

pip installs both without a warning. The one installed last owns `pytest_multihost/__init__.py`, and
uninstalling it deletes that file; the other modules of this package stay, and half of them work.
"""

from __future__ import annotations

import pytest

import pytest_multihost


def check_package() -> None:
    """Check that `pytest_multihost` is this package.

    Raises:
        pytest.UsageError: Its `__init__` is another package's or deleted; says how to repair it.
    """
    if hasattr(pytest_multihost, "WorldBrokenError"):
        return
    where = getattr(pytest_multihost, "__file__", None) or "deleted"
    message = (
        "the package pytest_multihost is not what pytest-multihost-hangs has installed.\n"
        f"Its __init__.py is not ours ({where}): FreeIPA's pytest-multihost has the same import"
        " name, and the two cannot be installed together.\n"
        "Run: pip uninstall pytest-multihost && pip install --force-reinstall --no-deps"
        " pytest-multihost-hangs"
    )
    raise pytest.UsageError(message)
