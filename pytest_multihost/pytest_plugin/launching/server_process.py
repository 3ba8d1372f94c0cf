"""What a server does with pytest's items and configuration, in whichever process it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence

import pytest

from pytest_multihost.backends import Backend
from pytest_multihost.model.errors import CollectedDifferentlyError
from pytest_multihost.rank import prepare_recording, thread_variables
from pytest_multihost.rank.agent import FindItem, prepare_pytest

TMP_PATH_PATTERN = r"[\W]"
"""What pytest's tmp_path replaces in the name of a test."""

ORIGINAL = pytest.StashKey[tuple[type[pytest.Item], Callable[..., object] | None]]()
"""The class that pytest collected an item with, and the test function where it was replaced."""


def _restore(item: pytest.Item) -> pytest.Item:
    """Undo `item.convert`: in a rank, the item runs as what pytest collected."""
    item.__class__, function = item.stash.get(ORIGINAL, (type(item), None))
    if isinstance(item, pytest.Function) and function is not None:
        item.obj = function
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
        problems: The collection errors, for the case that an item is missing.
    """
    found = {plain_nodeid(item): item for item in items}

    def find_item(nodeid: str) -> pytest.Item:
        if nodeid not in found:
            raise _missing(nodeid, problems)
        return _restore(found[nodeid])

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
    """Do once, in the server, what every rank that is forked from it would have to do.

    Each page of memory that is written here is shared by all ranks instead of copied in each one;
    such copies are most of what a rank costs. Libraries get one thread: a process must have one
    when it forks, since threads do not exist in the child and their locks stay taken.

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
        _limit_threads()


def _limit_threads() -> None:
    """Set the thread pools of native libraries that are already loaded to one thread.

    N ranks with a pool of all cores each would fight for the machine. OMP_NUM_THREADS and its kin
    are read when a library is loaded, which for a forked rank was before its fork. So the server
    sets the loaded libraries, once, and the ranks inherit it.
    """
    import threadpoolctl

    threadpoolctl.threadpool_limits(1)
