"""The users who may read artifacts.

Every run of pytest imports this module, because an option names the users.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_multihost.core.model.errors import SettingError

ACCESS: Mapping[str, int] = {"me": 0o700, "group": 0o750, "all": 0o755}
"""The modes of the artifacts' directories, by the users who may read them."""


def artifacts_access() -> int:
    """Return the mode of the directories of runs without pytest.

    Raises:
        SettingError: The environment names no such access.
    """
    name = os.environ.get("PYTEST_MULTIHOST_ARTIFACTS_ACCESS") or "me"
    if name not in ACCESS:
        raise SettingError(
            f"PYTEST_MULTIHOST_ARTIFACTS_ACCESS must be one of {', '.join(ACCESS)}, not {name!r}"
        )
    return ACCESS[name]
