"""How many runs it takes to disturb everything: what a plan is measured by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.model.sweep import Family
from pytest_multihost.sweep.classes import is_of_the_test
from pytest_multihost.sweep.roles import Records
from pytest_multihost.sweep.sharing import Sharing


def count_all(
    points: Records,
    families: Iterable[Family],
    sharing: Sharing,
    decisions: Sequence[str],
    values: Sequence[str],
) -> int:
    """Return how many runs it takes to disturb all ranks at all points in all ways.

    That is at each point: to hold the rank until the others wait, and for some seconds at least; to
    let a call on a file fail once, and from then on; other listings, hidden files, less data and
    none, another clock, another result of what the user has named; on request an error, and death.
    And other hashes of each rank.
    """
    passed = [each for found in points.values() for each in found if is_of_the_test(each)]
    wanted = frozenset(families)
    count = len(points) if "differs" in wanted else 0  # hashes
    for each in passed:
        kind, name = each.point.point, each.point.name
        count += 2 * ("late" in wanted) + ("killed" in wanted)
        count += 2 * (kind == "io" and "fails" in wanted)
        count += kind in ("batch", "collective") and "errors" in wanted
        if "differs" in wanted:
            count += 1 + 2 * (kind == "batch")  # clocks, data
            count += 2 * (name in decisions) + (name in values) if kind == "call" else 0
            count += each.point.call == "listdir"
            count += len([*sharing.made_by_others(each)]) if kind == "io" else 0
    return count
