"""An S3 endpoint that tests can make slow or failing, and a fixture for it.

`fixture` has the fixture, `store` is the client that a test uses, and `server` is the store's own
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixture."""
    from pytest_multihost.extensions.object_store import fixture

    config.pluginmanager.register(fixture, "multihost_object_store_fixture")


@hookimpl
def pytest_multihost_collected(session: pytest.Session) -> None:
    """Start the store if a selected test requests it."""
    from pytest_multihost.extensions.object_store.fixture import (
        requests_object_store,
        start_object_store,
    )

    if any(map(requests_object_store, session.items)):
        start_object_store(session.config)


@hookimpl(optionalhook=True)
def pytest_multihost_needs_one_machine(item: pytest.Item) -> str | None:
    """Refuse tests with a store in runs on several machines; a hook of `engines`."""
    from pytest_multihost.extensions.object_store.fixture import requests_object_store

    why = "the object store runs on one machine, and the others cannot reach it"
    return why if requests_object_store(item) else None
