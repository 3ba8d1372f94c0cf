"""Read what the ranks of a world that has passed have recorded, and look for hazards in it."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_multihost.blame import Judgement
from pytest_multihost.hazards import accept_hazards, find_hazards
from pytest_multihost.model.hazard import Hazards, Passed, RankRecord, Rule
from pytest_multihost.model.sweep import Acceptance
from pytest_multihost.outcome.passed_points import (
    frames_of_points,
    recorded_points,
    unrecorded_points,
)
from pytest_multihost.slots import slots_path
from pytest_multihost.slots.archive import plain_calls, read_programs, read_record


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
    if "unguarded" not in rules:
        calls = {plain_calls(page, since_s=go_s) for page in pages}
        if len(calls) == 1 and None not in calls:  # all ranks have launched the same, in one order
            return Hazards(tuple(rules))
    passed = _passed(judged) if "unguarded" in rules else {}
    pids = {each.facts.rank: each.facts.pid or 0 for each in judged.finding.ranks}
    records = {
        rank: replace(
            _of_test(read_record(page, rank=rank), go_s),
            main_thread=pids.get(rank, 0),  # its native id is that of the process
            programs=read_programs(page, rank=rank, near_s=go_s) if "programs" in rules else (),
            passed=passed.get(rank, ()),
        )
        for rank, page in enumerate(pages)
    }
    root = Path(judged.context.root)
    found = find_hazards(
        records,
        rules,
        size=spec.size,
        place_of=judged.context.place,
        text_of=lambda file: "".join(linecache.getlines(str(root / file))),
    )
    return accept_hazards(found, accepted, nodeid=spec.nodeid)


def _passed(judged: Judgement) -> Mapping[int, tuple[Passed, ...]]:
    """Return the points that ranks have passed and that are the test's, with their lines."""
    from pytest_multihost.sweep.classes import is_of_the_test  # for one rule, which is no default

    history = judged.result.history
    if unrecorded_points(history):
        return {}
    points, frames = recorded_points(history), frames_of_points(history)
    return {
        rank: tuple(
            Passed(each, lines)
            for each, lines in zip(passed, frames[rank], strict=True)
            if is_of_the_test(each)
        )
        for rank, passed in points.items()
    }


def _of_test(record: RankRecord, go_s: float) -> RankRecord:
    """Return what was launched since the test began, numbered by name as points are."""
    counts = Counter[str]()
    launches = []
    for each in record.launches:
        if each.operation.since_s >= go_s:
            counts[each.operation.name] += 1
            launches.append(replace(each, nth=counts[each.operation.name]))
    return replace(record, launches=tuple(launches))
