"""What a server needs from pytest, in whichever process it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from pytest_multihost.backends import Backend
from pytest_multihost.model.errors import CollectedDifferentlyError
from pytest_multihost.rank import limit_threads, prepare_recording, thread_variables
from pytest_multihost.rank.agent import FindItem, prepare_pytest

TMP_PATH_PATTERN = r"[\W]"
"""What pytest's tmp_path replaces in the name of a test."""

ORIGINAL = pytest.StashKey[type[pytest.Item]]()
"""The class that pytest collected an item with."""


FUNCTION = pytest.StashKey[Any]()
"""The test function, where something stands in for it in the controller."""


def restore(item: pytest.Item) -> pytest.Item:
    """Make `item` again what pytest collected: in a rank it runs the ordinary way."""
    item.__class__ = item.stash.get(ORIGINAL, type(item))
    if isinstance(item, pytest.Function) and FUNCTION in item.stash:
        item.obj = item.stash[FUNCTION]
    return item


def plain_nodeid(item: pytest.Item) -> str:
    """Return an item's node id as it was collected.

    xdist's ``--dist loadgroup`` appends the group's name in its workers, and nowhere else.
    """
    group = item.get_closest_marker("xdist_group")
    name = (group.args or (group.kwargs.get("name", "default"),))[0] if group else None
    return item.nodeid.removesuffix(f"@{name}") if name else item.nodeid


def offered_backends(config: pytest.Config) -> list[Backend]:
    """Return all backends, those of the plugin registered last first."""
    groups: list[Sequence[Backend]] = config.hook.pytest_multihost_backends()
    return [backend for group in groups for backend in group]


def find_item_in(items: Iterable[pytest.Item], problems: Sequence[str] = ()) -> FindItem:
    """Return a function that finds an item by node id, as pytest collected it.

    Args:
        items: What was collected.
        problems: What went wrong in collecting, for the case that an item is missing.
    """
    found = {plain_nodeid(item): item for item in items}

    def find_item(nodeid: str) -> pytest.Item:
        if nodeid not in found:
            raise _missing(nodeid, problems)
        return restore(found[nodeid])

    return find_item


def _missing(nodeid: str, problems: Sequence[str]) -> CollectedDifferentlyError:
    if problems:
        happened = "the rank could not collect the test"
        return CollectedDifferentlyError(happened, seen="\n".join(problems))
    return CollectedDifferentlyError(
        "the rank did not collect the test that the controller has collected",
        seen=f"There is no {nodeid} here.",
        remedy=(
            "Make collection depend on nothing that differs between processes: random values,"
            " the time, process ids, or an object's repr in a parameter's id."
        ),
    )


def prepare_server(
    config: pytest.Config,
    items: Iterable[pytest.Item],
    backends: Iterable[Backend],
) -> None:
    """Load and do what every rank needs, with one thread, in the server that all are forked from.

    What is done here is done once, and ranks need no copies of the memory that it touches: that is
    most of what a rank costs.

    Args:
        config: pytest's configuration.
        items: What was collected.
        backends: Those of the tests to come.
    """
    variables = thread_variables(os.environ)
    os.environ.update(variables)
    for backend in backends:
        backend.preload()
    config.hook.pytest_multihost_server_start(config=config)
    prepare_recording()
    prepare_pytest(config)
    re.sub(TMP_PATH_PATTERN, "_", "")  # compiled
    for item in items:
        _ = item.location  # computed once
    if variables:  # the user has not said otherwise
        limit_threads(1)
