"""Hooks that other plugins and conftest files implement: the extension guide.

The built-in backends and faults are registered through the same hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_multihost.backends import Backend
    from pytest_multihost.nemesis import FaultKind


@pytest.hookspec
def pytest_multihost_backends() -> Sequence[Backend]:  # type: ignore[empty-body]
    """Return backends to offer under ``@pytest.mark.multihost(backend=...)``.

    Called when the first multihost test is known, in pytest's own process and in every interpreter
    that works for it. Of two with one name the plugin registered last wins, so a project can
    replace a built-in one.
    """


@pytest.hookspec
def pytest_multihost_faults() -> Sequence[FaultKind]:  # type: ignore[empty-body]
    """Return kinds of faults to offer as ``faults.other("name", rank=..., ...)``.

    Called in pytest's own process when the first multihost test is known, and in each rank of a
    world that has faults. Of two with one name the plugin registered last wins. What a fault
    changes it gives to ``strike.healing``, which is undone when the test's body is over.
    """


@pytest.hookspec
def pytest_multihost_server_start(config: pytest.Config) -> None:
    """Load heavy things once; every rank starts with them, copy-on-write.

    Runs in the server, after collection and before the first rank is forked; where every rank is an
    interpreter of its own there is no such server, and it does not run. The server must stay a
    process with one thread: import modules and read data, but start no threads, no runtime and no
    parallel computation.
    """
