"""Whether two processes of an attached run hold the same tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_multihost.pytest_plugin.plan import Plan

Listed = Sequence[Sequence[Any]]
"""For each world its test's node id, number of ranks and backend, in order."""


def listed(plans: Mapping[str, Plan]) -> Listed:
    """Return what is compared."""
    return [[plan.nodeid, plan.size, plan.backend.name] for plan in plans.values()]


def first_difference(ours: Listed, theirs: Listed) -> str | None:
    """Return in one sentence where two collections part, None where they do not.

    Their order is free: rank 0 says which test is next.
    """
    here, there = ({each[0]: list(each) for each in items} for items in (ours, theirs))
    for nodeid in [*here, *there]:
        if here.get(nodeid) != there.get(nodeid):
            says = f"{_say(here.get(nodeid))} and there {_say(there.get(nodeid))}"
            counts = f"{len(here)} multihost tests here, {len(there)} there"
            return f"{nodeid}: here {says} ({counts})."
    return None


def _say(listed: Sequence[Any] | None) -> str:
    if listed is None:
        return "it was not collected"
    _, size, backend = listed
    return f"ranks={size}, backend={backend!r}"
