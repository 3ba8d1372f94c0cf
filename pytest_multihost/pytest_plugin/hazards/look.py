"""Read what the ranks of a world that has passed have recorded, and look for hazards in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_multihost.blame import Judgement
from pytest_multihost.hazards import accept_hazards, find_hazards
from pytest_multihost.model.hazard import Hazards, RankRecord
from pytest_multihost.model.hazard_rules import Rule
from pytest_multihost.model.sweep import Acceptance
from pytest_multihost.slots import slots_path
from pytest_multihost.slots.archive import plain_calls, read_record


def look_for_hazards(
    judged: Judgement, scratch: Path, rules: Sequence[Rule], accepted: Sequence[Acceptance]
) -> Hazards | None:
    """Return the hazards of a world; None if it was disturbed, or has not passed.

    Args:
        judged: The world.
        scratch: Its directory, with the slot pages of its ranks.
        rules: The rules to apply.
        accepted: What the project accepts.
    """
    spec = judged.result.spec
    if judged.finding.status != "passed" or judged.diagnosis is not None or spec.faults:
        return None
    go_s = judged.result.go_s or 0.0
    pages = [slots_path(scratch, rank) for rank in range(spec.size)]
    calls = {plain_calls(page, since_s=go_s) for page in pages}
    if len(calls) == 1 and None not in calls:  # one group, and all were in it equally often
        return Hazards(tuple(rules))
    records = {
        rank: _of_test(read_record(page, rank=rank), go_s) for rank, page in enumerate(pages)
    }
    found = find_hazards(records, rules, size=spec.size, place_of=judged.context.place)
    return accept_hazards(found, accepted, nodeid=spec.nodeid)


def _of_test(record: RankRecord, go_s: float) -> RankRecord:
    """Return what was launched since the test began, numbered by name as points are."""
    counts = Counter[str]()
    launches = []
    for each in record.launches:
        if each.operation.since_s >= go_s:
            counts[each.operation.name] += 1
            launches.append(replace(each, nth=counts[each.operation.name]))
    return replace(record, launches=tuple(launches))
