"""Whether two processes of an attached run have collected the same tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_multihost.pytest_plugin.plan import Plan

CollectedTest = tuple[str, int, str]
"""Of each world: its test's node id, number of ranks, and backend."""


def collected_tests(plans: Mapping[str, Plan]) -> tuple[CollectedTest, ...]:
    """Return the collected tests, in the form to compare."""
    worlds = [plan.world for plan in plans.values()]
    return tuple((world.nodeid, world.size, world.backend) for world in worlds)


def first_difference(ours: Sequence[CollectedTest], theirs: Sequence[CollectedTest]) -> str | None:
    """Return one sentence on the first difference of two collections, None if they are equal.

    The order is ignored: rank 0 decides which test is next.
    """
    here, there = ({each[0]: each for each in tests} for tests in (ours, theirs))
    for nodeid in [*here, *there]:
        if here.get(nodeid) != there.get(nodeid):
            says = f"{_describe(here.get(nodeid))} and there {_describe(there.get(nodeid))}"
            counts = f"{len(here)} multihost tests here, {len(there)} there"
            return f"{nodeid}: here {says} ({counts})."
    return None


def _describe(test: CollectedTest | None) -> str:
    if test is None:
        return "it was not collected"
    _, size, backend = test
    return f"ranks={size}, backend={backend!r}"
