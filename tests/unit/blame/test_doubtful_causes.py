"""When a cause is told as unknown, because too little was seen to be sure of it."""

from __future__ import annotations

from typing import Any

import pytest
from builders import history_of_a_hang, operation, seen, world

from pytest_multihost.core.blame.judge_world import diagnose
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.testing import (
    Activity,
    Diagnosis,
    Dump,
    Ending,
    Frame,
    Known,
    Operations,
    RankSnapshot,
    SourceContext,
    WorldSnapshot,
    make_dump,
)


def judged(
    *ranks: RankSnapshot,
    dumps: tuple[Dump, ...] = (),
    unseen: frozenset[int] = frozenset(),
    ending: Ending = "proof",
) -> Diagnosis | None:
    """Return the diagnosis of a world that ended so, and whose ranks were seen so at the end."""
    size = len(ranks)
    result = world(
        size,
        history_of_a_hang(size),
        ended_s=19.0,
        ending=ending,
        detected_s=18.0,
        snapshots=(WorldSnapshot(at_s=18.0, reason="end", ranks=ranks),),
        operations=tuple(
            Operations(each.rank, each.operations, dict(each.entered)) for each in ranks
        ),
        dumps=dumps,
        known=Known(unseen=unseen),
    )
    context = SourceContext("/t", lambda *_: "")
    return diagnose(result, judge(result, Symptoms()), context)


def diagnosed(*seen: RankSnapshot, **more: Any) -> Diagnosis:  # noqa: ANN401
    """Return the diagnosis of a world that hung."""
    found = judged(*seen, **more)
    assert found is not None
    return found


def waits(rank: int, group: tuple[int, ...] = (0, 1, 2)) -> RankSnapshot:
    """Return a rank in the first collective of a group."""
    return seen(rank, operation(group=group))


IDLE = RankSnapshot(rank=2)


def test_an_operation_of_a_rank_that_was_not_seen_may_lack_it() -> None:
    """All others have entered it; that one may be late."""
    seen = (waits(0), waits(1), IDLE)
    assert diagnosed(*seen, unseen=frozenset({2})).kind == "unknown"
    assert diagnosed(*seen).kind == "straggler"


def test_an_operation_without_that_rank_lacks_nobody() -> None:
    """Nothing moves in it."""
    seen = (waits(0, (0, 1)), waits(1, (0, 1)), IDLE)
    found = diagnosed(*seen, unseen=frozenset({2}))
    assert (found.kind, found.waiting) == ("transport", (0, 1))


def blocked(rank: int, activity: str, label: str = "BLOCKED") -> RankSnapshot:
    """Return a rank without an operation, in this system call."""
    return RankSnapshot(rank=rank, label=label, activity=Activity(activity))  # type: ignore[arg-type]


LINE, OTHER = "/t/train.py:5 step", "/t/train.py:9 other"


@pytest.mark.parametrize("activity", ["sleep", "futex", "futex_wait", "futex_waitv"])
def test_ranks_that_all_wait_for_themselves_at_one_line_are_stuck(activity: str) -> None:
    """At two lines they may wait for each other in a way that nobody has seen."""
    seen = (blocked(0, activity), blocked(1, activity))
    found = diagnosed(*seen, dumps=(make_dump(0, LINE), make_dump(1, LINE)))
    assert (found.kind, found.culprits) == ("stuck", (0, 1))
    apart = diagnosed(*seen, dumps=(make_dump(0, LINE), make_dump(1, OTHER)))
    assert (apart.kind, apart.culprits) == ("unknown", ())


def test_ranks_that_may_wait_for_each_other_are_not_stuck_each() -> None:
    """One of them reads from something."""
    dumps = (make_dump(0, LINE), make_dump(1, LINE))
    found = diagnosed(blocked(0, "futex"), blocked(1, "recvfrom"), dumps=dumps)
    assert (found.kind, found.culprits) == ("unknown", ())
    none = diagnosed(blocked(0, "futex"), RankSnapshot(rank=1, label="BLOCKED"), dumps=dumps)
    assert none.kind == "unknown"


def test_a_minority_at_another_line_of_a_jitted_program_is_in_another_program() -> None:
    """All are in a collective that has no number, and nothing moves."""
    at = [Frame("/t/step.py", line, "step") for line in (9, 9, 31)]
    inside = [operation(sequence=0, frame=frame, source="native-frames") for frame in at]
    ranks = [seen(rank, each, entered=()) for rank, each in enumerate(inside)]
    found = diagnosed(*ranks)
    assert (found.kind, found.culprits, found.waiting) == ("mismatch", (2,), (0, 1))


@pytest.mark.parametrize("ending", ["lost", "interrupted"])
def test_a_world_that_the_harness_gave_up_has_no_diagnosis(ending: Ending) -> None:
    """Its ranks did not end it."""
    assert judged(waits(0), waits(1), IDLE, ending=ending) is None
    assert judged(waits(0), waits(1), IDLE, ending="overrun") is not None
