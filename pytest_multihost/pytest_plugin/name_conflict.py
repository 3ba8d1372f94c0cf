"""Notice FreeIPA's pytest-multihost, which installs the same import name.

pip installs both without a word. The one that comes last owns `pytest_multihost/__init__.py`, and
uninstalling it deletes the file; our other modules stay and half of us works.
"""

from __future__ import annotations

import pytest

import pytest_multihost


def check_package() -> None:
    """Make sure that `pytest_multihost` is this package.

    Raises:
        pytest.UsageError: Its `__init__` is somebody else's or gone; says how to repair it.
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
