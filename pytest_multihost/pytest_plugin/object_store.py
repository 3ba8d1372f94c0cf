"""Behind the `object_store` fixture: an S3 endpoint of the run, slow or failing on demand.

One store serves the run, or an xdist worker; it is started when the tests that were selected ask
for it, by pytest's own process, and ranks know it by an environment variable.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import urllib.parse
from collections.abc import Iterator

import pytest

from pytest_multihost.model.errors import NoWorldError
from pytest_multihost.nemesis.object_store.store import ObjectStore, serving, why_no_store

VARIABLE = "PYTEST_MULTIHOST_OBJECT_STORE"
"""Holds the endpoint, for ranks and whatever they start."""


def start_store(config: pytest.Config) -> None:
    """Start the store before the first world, unless somebody above us has one."""
    if config.option.collectonly or VARIABLE in os.environ or why_no_store():
        return
    held = contextlib.ExitStack()
    config.add_cleanup(held.close)
    os.environ[VARIABLE] = held.enter_context(serving())
    held.callback(os.environ.pop, VARIABLE, None)


def the_store() -> Iterator[ObjectStore]:
    """Yield the run's store with an empty bucket of the test's own, the same for all ranks."""
    if VARIABLE not in os.environ:
        pytest.fail(why_no_store() or "no object store was started for this run", pytrace=False)
    if not _is_reachable(os.environ[VARIABLE]):
        why = "its store listens on the machine's loopback, which a host of its own cannot reach"
        pytest.skip(f"object_store: {why}; use hosts='one'")
    store = ObjectStore(os.environ[VARIABLE], _agree_on(f"test-{secrets.token_hex(8)}"))
    if _is_primary():
        store.heal()
        store.create_bucket()
    _agree_on("ready")
    yield store
    if _is_primary():
        store.heal()


def _is_reachable(endpoint: str) -> bool:
    """Whether somebody listens there: the kernel answers, however busy the store is."""
    place = urllib.parse.urlsplit(endpoint)
    with socket.socket() as probe:
        return probe.connect_ex((place.hostname, place.port)) == 0


def _is_primary() -> bool:
    from pytest_multihost.rank.world import current_world

    with contextlib.suppress(NoWorldError):
        return current_world().is_primary
    return True


def _agree_on(text: str) -> str:
    """Return the primary's text in all ranks; outside of a world, the text."""
    from pytest_multihost.rank.world import current_world

    with contextlib.suppress(NoWorldError):
        return current_world().broadcast(text, "object_store")
    return text
