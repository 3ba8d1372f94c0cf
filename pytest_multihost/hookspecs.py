"""Hooks that other plugins and conftest files implement: the extension guide.

The built-in backends and faults are registered through the same hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.launch import HostKind
    from pytest_multihost.core.nemesis import FaultKind
    from pytest_multihost.core.services import ServiceKind

hookspec = pluggy.HookspecMarker("pytest")
"""Marks a function as the specification of a hook. pytest's own marker, without pytest."""

hookimpl = pluggy.HookimplMarker("pytest")
"""Marks a function as an implementation of a hook: `pytest.hookimpl`, without pytest."""


@hookspec
def pytest_multihost_backends() -> Sequence[Backend]:  # type: ignore[empty-body]
    """Return backends to offer under ``@pytest.mark.multihost(backend=...)``.

    Called when the first multihost test is known, in pytest's own process and in every interpreter
    that it starts. If two have the same name, the plugin registered last wins, so a project can
    replace a built-in backend.
    """


@hookspec
def pytest_multihost_faults() -> Sequence[FaultKind]:  # type: ignore[empty-body]
    """Return kinds of faults to offer as ``faults.other("name", rank=..., ...)``.

    Called in pytest's own process when the first multihost test is known, and in each rank of a
    world that has faults. If two have the same name, the plugin registered last wins. A fault
    registers with ``strike.healing`` how to undo its changes when the test's body is over.
    """


@hookspec
def pytest_multihost_services() -> Sequence[ServiceKind]:  # type: ignore[empty-body]
    """Return services of worlds: what takes part in a world while it runs, beside its ranks.

    Called in the controller, in pytest and in ``multihost run``. A world has those that its spec
    names and those that are implied. If two have the same name, the plugin registered last wins.
    """


@hookspec
def pytest_multihost_hosts() -> Sequence[HostKind]:  # type: ignore[empty-body]
    """Return kinds of emulated hosts, for ``hosts="name"`` and ``hosts="name:2"``.

    Called in the controller, in pytest and in ``multihost run``, before markers are read.
    """


@hookspec
def pytest_multihost_server_start(config: pytest.Config) -> None:
    """Load large modules and data once; every rank inherits them, copy-on-write.

    Runs in the server, after collection and before the first rank is forked; it does not run if
    every rank collects by itself (launch `spawn`, `hash_seed`). The server must stay
    single-threaded: import modules and read data, but start no threads, no runtime and no parallel
    computation.
    """
