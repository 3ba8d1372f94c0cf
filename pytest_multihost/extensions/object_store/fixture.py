"""The fixture `object_store`, and the start of the store behind it.

One S3 store serves the run, or an xdist worker. pytest's own process starts it if a selected test
requests it; ranks find it by an environment variable.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import urllib.parse
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_multihost.core.model.errors import NoWorldError
from pytest_multihost.core.pytest_private import fixture_definitions

if TYPE_CHECKING:
    from pytest_multihost.extensions.object_store.store import ObjectStore

_ENDPOINT = "PYTEST_MULTIHOST_OBJECT_STORE"
"""Environment variable with the store's URL, for ranks and their children."""


@pytest.fixture
def object_store() -> Iterator[ObjectStore]:
    """An S3 store with an empty bucket for this test, shared by all ranks of a world.

    A rule that one rank sets with `slow`, `throttle` or `fail` applies to all ranks until the test
    is over.
    """
    from pytest_multihost.core.rank import current_world
    from pytest_multihost.extensions.object_store.store import ObjectStore, why_no_store

    if _ENDPOINT not in os.environ:
        pytest.fail(why_no_store() or "no object store was started for this run", pytrace=False)
    url = urllib.parse.urlsplit(os.environ[_ENDPOINT])
    with socket.socket() as probe:  # the kernel accepts even if the store's process is busy
        is_reachable = probe.connect_ex((url.hostname, url.port)) == 0
    if not is_reachable:
        why = "its store listens on the machine's loopback, which a host of its own cannot reach"
        pytest.skip(f"object_store: {why}; use hosts='one'")
    ranks, bucket = None, f"test-{secrets.token_hex(8)}"
    with contextlib.suppress(NoWorldError):
        ranks = current_world()
    if ranks is not None:
        bucket = ranks.broadcast(bucket, "object_store")
    store = ObjectStore(os.environ[_ENDPOINT], bucket)
    if is_primary := ranks is None or ranks.is_primary:
        store.heal()
        store.create_bucket()
    if ranks is not None:
        ranks.broadcast("ready", "object_store")
    yield store
    if is_primary:
        store.heal()


def requests_object_store(item: pytest.Item) -> bool:
    """Return whether a test requests this `object_store`, not a fixture of its own project."""
    found = fixture_definitions(item, "object_store")
    return any(each.func.__module__ == __name__ for each in found[-1:])


def start_object_store(config: pytest.Config) -> None:
    """Start the store before the first world, unless an enclosing run of pytest has started one."""
    from pytest_multihost.extensions.object_store.store import serving, why_no_store

    if config.option.collectonly or _ENDPOINT in os.environ or why_no_store():
        return
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    os.environ[_ENDPOINT] = stack.enter_context(serving())
    stack.callback(os.environ.pop, _ENDPOINT, None)
