"""Gives adopted tests the marker `multihost`, and reports the outcome of each test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_multihost.core.option import TIMEOUT
from pytest_multihost.core.pytest_plugin.marks import RANKS_PARAM
from pytest_multihost.core.pytest_plugin.tally import TALLY
from pytest_multihost.extensions.adopt.adopted import OUTCOME, Adopted, Refused

_NAMES = ("multihost", "no_multihost")


def outcome_of(item: pytest.Item) -> Adopted | Refused | None:
    """Return how a collected test, or the definition of a test function, is adopted."""
    if any(item.get_closest_marker(name) is not None for name in _NAMES):
        return None
    found: Adopted | Refused | None = item.ihook.pytest_multihost_adopt(item=item)
    return found


def adopt_definition(metafunc: pytest.Metafunc) -> None:
    """Mark the definition of a test function that is to run with several sizes."""
    found = outcome_of(metafunc.definition)
    if isinstance(found, Adopted) and len(found.sizes) > 1:
        marker = _marker(metafunc.config, found)
        metafunc.definition.add_marker(pytest.mark.multihost(**marker))


def adopt_items(items: Iterable[pytest.Item]) -> None:
    """Mark each test that is adopted, and keep the reason for each refusal."""
    for item in items:
        found = outcome_of(item)
        if found is None:
            continue
        is_list = isinstance(found, Adopted) and len(found.sizes) > 1
        if is_list and RANKS_PARAM not in _params(item):
            found = Refused("several sizes that are known only after its collection")
        item.stash[OUTCOME] = found
        if isinstance(found, Adopted):
            item.add_marker(pytest.mark.multihost(**_marker(item.config, found)))


def _marker(config: pytest.Config, adopted: Adopted) -> Mapping[str, Any]:
    """Return the keys of a test's marker; a timeout of the run counts more than its harness's."""
    is_set = TIMEOUT.name in config.stash[TALLY].settings.sources
    return {
        name: value for name, value in adopted.marker.items() if name != "timeout" or not is_set
    }


def announcement(items: Sequence[pytest.Item], *, lists_tests: bool) -> list[str]:
    """Return the lines about adopted tests, in total or for each test; none if there are none."""
    outcomes = {item.nodeid: item.stash.get(OUTCOME, None) for item in items}
    known = {nodeid: each for nodeid, each in outcomes.items() if each is not None}
    if not known:
        return []
    refused = Counter(each.why for each in known.values() if isinstance(each, Refused))
    adopted = len(known) - refused.total()
    total = f"multihost: {adopted} {'test is' if adopted == 1 else 'tests are'} adopted"
    if refused:
        reasons = ", ".join(f"{why} ({count})" for why, count in refused.most_common())
        total += f"; {refused.total()} run in their own harness: {reasons}"
    if not lists_tests:
        return [total]
    shown = [item for item in items if item.nodeid in known]
    return [total, *(f"  {each.nodeid}  {_described(each, known[each.nodeid])}" for each in shown)]


def _described(item: pytest.Item, outcome: Adopted | Refused) -> str:
    if isinstance(outcome, Refused):
        return f"not adopted: {outcome.why}"
    size = _params(item).get(RANKS_PARAM, outcome.sizes[0])
    return "1 rank" if size == 1 else f"{size} ranks"


def _params(item: pytest.Item) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return found
