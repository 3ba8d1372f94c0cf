"""The first line of a diagnosis, word for word: one cause of each kind, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import builders
import pytest
from builders import in_tests, lock_wait

from pytest_multihost import faults
from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.headline import headline, waiting_line
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.testing import (
    Activity,
    Dump,
    Effect,
    Frame,
    Kind,
    Operation,
    RankPlace,
    RankSnapshot,
    WorldResult,
    WorldSnapshot,
    exited,
    make_event,
    make_spec,
    raised,
    report,
)

SIZE = 4
operation = partial(builders.operation, group=(0, 1, 2, 3), sequence=3)
"""A collective of all ranks."""


REDUCE = operation("all_reduce")
OF_PAIR = operation("all_reduce", group=(0, 2))
RECEIVE = operation("recv", kind="transfer", peer=1)
KEY = operation("store.get", kind="wait", detail="ready")
OTHER_KEY = operation("store.get", kind="wait", detail="done")
FROM_2 = operation("broadcast", root=2)
IN_PROGRAM = operation(
    "all_gather", sequence=0, root=1, frame=Frame("/t/step.py", 9, "step"), source="native-frames"
)


def waits(*found: tuple[int, Operation | None, set[int]]) -> tuple[Wait, ...]:
    """Return waits: rank, operation, ranks that it lacks."""
    return tuple(Wait(rank, each, frozenset(missing)) for rank, each, missing in found)


def cause(kind: Kind, culprits: Sequence[int] = (), **more: Any) -> Cause:  # noqa: ANN401
    """Return a cause in which all that wait are in its operation, unless `waits` says more."""
    operation, waiting = more.get("operation"), more.get("waiting", ())
    if operation is not None:
        more.setdefault("waits", waits(*((rank, operation, {*culprits}) for rank in waiting)))
    return builders.cause(kind, culprits, **more)


LOCKS = Dump(1, "scripted", (), locks=(lock_wait(1, 2, "b"), lock_wait(2, 1, "a")))
ONE_LOCK = Dump(1, "scripted", (), locks=(lock_wait(1, 2, "a"), lock_wait(2, 1, "a")))
THREE_THREADS = Dump(
    1, "scripted", (), locks=(lock_wait(1, 2, "a"), lock_wait(2, 3, ""), lock_wait(3, 1, "c"))
)


def world(**more: object) -> WorldResult:
    """Return a world that was seen to hang in its tests; rank 3 raised, and rank 2 was killed."""
    error = raised("ValueError: no such step")
    history = [
        *in_tests(SIZE),
        make_event(5.0, 3, "report", report("call", "failed", error=error)),
        make_event(6.0, 2, "exited", exited(signal=9)),
    ]
    return builders.world(SIZE, **{"history": history, **more})


def frozen(*ranks: int) -> WorldResult:
    """Return the world in which faults have frozen these ranks for good."""
    planned = tuple(faults.freeze(rank=rank) for rank in ranks)
    begun = [
        make_event(1.0, rank, "fault", {"index": n, "fault": "freeze", "phase": "begun"})
        for n, rank in enumerate(ranks)
    ]
    result = world(spec=replace(make_spec(SIZE), faults=planned))
    return replace(result, history=(*result.history, *begun))


def labelled(*labels: str | None) -> WorldResult:
    """Return the world with a last snapshot in which the main threads have these labels."""
    seen = tuple(RankSnapshot(rank=rank, label=each) for rank, each in enumerate(labels))  # type: ignore[arg-type]
    return world(snapshots=(WorldSnapshot(at_s=9.0, reason="end", ranks=seen),))


def words(found: Cause, result: WorldResult) -> str:
    """Return the headline as plain text."""
    spans = headline(found, judge(result, Symptoms()), result)
    return "".join(each.text for each in spans)


TRACED = WorldSnapshot(
    at_s=9.0,
    reason="end",
    ranks=(RankSnapshot(rank=1, label="STOPPED", activity=Activity("held by a tracer")),),
)
CUT = Effect("group 0 is cut off from group 1", ((0, 1), (1, 0)))
ENTERED = waits((0, REDUCE, set()), (3, None, {1}), (2, REDUCE, set()))
CYCLE = waits((2, REDUCE, {0}), (1, REDUCE, {3}), (0, RECEIVE, {1}), (1, None, {0}))
OF_TWO_GROUPS = waits((0, OF_PAIR, set()), (2, OF_PAIR, set()), (1, REDUCE, {0}))
LEFT_BY_0 = waits((0, RECEIVE, {1}), (1, REDUCE, set()), (2, REDUCE, set()))
LONG_CYCLE = waits((0, RECEIVE, {1}), (1, REDUCE, {2}), (2, OF_PAIR, {0}))
IN_BROADCAST = waits(
    (0, FROM_2, {1}), (2, FROM_2, {1}), (1, RECEIVE, set()), (3, IN_PROGRAM, set())
)

CASES = {
    "ranks 0,1 wait for each other: rank 0 waits in recv #3 for rank 1, rank 1 waits in the lock"
    " of a file for rank 0": (cause("deadlock", waiting=(0, 1, 2), cycle=(0, 1), waits=CYCLE),),
    "ranks 0-2 wait for each other: rank 0 waits in recv #3 for rank 1, rank 1 waits in"
    " all_reduce #3 (world group) for rank 2, rank 2 waits in all_reduce #3 (group 0,2)"
    " for rank 0": (cause("deadlock", waiting=(0, 1, 2), cycle=(0, 1, 2), waits=LONG_CYCLE),),
    "threads T1 and T2 of rank 1 wait for each other (locks a, b); ranks 0,2 wait for rank 1 in"
    " all_reduce #3 (world group)": (
        cause("deadlock", waiting=(0, 1, 2), cycle=(1,), operation=REDUCE),
        world(dumps=(LOCKS,)),
    ),
    "threads T1 and T2 of rank 1 wait for each other (lock a); rank 0 waits for rank 1": (
        cause("deadlock", waiting=(0, 1), cycle=(1,)),
        world(dumps=(ONE_LOCK,)),
    ),
    "threads T1, T2 and T3 of rank 1 wait for each other (locks a, c)": (
        cause("deadlock", waiting=(1,), cycle=(1,)),
        world(dumps=(THREE_THREADS,)),
    ),
    "rank 1 is stuck in the test, and no other rank waits for it": (cause("stuck", [1]),),
    "ranks 0,1 are stuck in the test: rank 0 in all_reduce #3 (world group), and no other rank"
    " waits for them": (
        cause("stuck", [0, 1], waits=waits((3, KEY, set()), (0, REDUCE, set()))),
        labelled("SLEEPING", "BLOCKED", None, None),
    ),
    "rank 1 sleeps in the test, and no other rank waits for it": (
        cause("stuck", [1]),
        labelled(None, "SLEEPING", None, None),
    ),
    "ranks 0,1 sleep in the test, and no other rank waits for them": (
        cause("stuck", [0, 1]),
        labelled("SLEEPING", "SLEEPING", "BLOCKED", None),
    ),
    "ranks 0,1 have entered all_reduce #3 (world group), and nothing moves": (
        cause("transport", waiting=(0, 1), operation=REDUCE),
    ),
    "ranks 0,2 have entered all_reduce #3 (group 0,2), and nothing moves": (
        cause("transport", waiting=(0, 1, 2), operation=OF_PAIR, waits=OF_TWO_GROUPS),
    ),
    "ranks 0-2 have entered all_reduce #3 (world group), and nothing moves": (
        cause("transport", waiting=(1, 2), operation=REDUCE, begun=(0,)),
    ),
    "ranks 1,2 wait in all_reduce #3 (world group), which rank 0 has left; rank 0 now waits in"
    " recv #3": (
        cause("transport", waiting=(0, 1, 2), operation=REDUCE, left=(0,), waits=LEFT_BY_0),
    ),
    "ranks 1,2 wait in all_reduce #3 (world group), which ranks 0,3 have left, and nothing moves": (
        cause("transport", waiting=(1, 2), operation=REDUCE, left=(0, 3)),
    ),
    "rank 0 has entered recv #3, and nothing moves": (
        cause(
            "transport",
            waiting=(0, 1, 2),
            operation=RECEIVE,
            waits=waits((0, RECEIVE, set()), (1, REDUCE, {0}), (2, REDUCE, {0})),
        ),
    ),
    "ranks 0,1 wait, and nothing moves": (cause("transport", waiting=(0, 1)),),
    "rank 1 left all_reduce #3 (world group) by OSError: gone; ranks 0,2 wait for it": (
        cause("transport", [1], waiting=(0, 2), operation=REDUCE, error="OSError: gone"),
    ),
    "rank 0 has entered all_reduce #3 (world group), and group 0 is cut off from group 1": (
        cause("transport", waiting=(0, 1, 3), operation=REDUCE, cut=CUT, waits=ENTERED),
    ),
    "ranks 0,2 have entered all_reduce #3 (world group), and group 0 is cut off from group 1": (
        cause("transport", waiting=(0, 2), operation=REDUCE, cut=CUT, waits=ENTERED),
    ),
    "rank 1 never reached all_reduce #3 (world group)": (
        cause("straggler", [1], waiting=(0, 2), operation=REDUCE),
    ),
    "ranks 1,3 never reached all_reduce #3 (group 0,2)": (
        cause("straggler", [1, 3], waiting=(0, 2), operation=OF_PAIR),
    ),
    "rank 1 never did its part in recv #3 of rank 2": (
        cause(
            "straggler",
            [1],
            waiting=(0, 2),
            operation=RECEIVE,
            waits=waits((0, REDUCE, {1}), (2, RECEIVE, {1})),
        ),
    ),
    "rank 1 never did its part in recv #3 of rank 0": (
        cause("straggler", [1], waiting=(0, 2), operation=RECEIVE),
    ),
    "ranks 0,2 wait in store.get ready for something that rank 1 did not provide": (
        cause("straggler", [1], waiting=(0, 2), operation=KEY),
    ),
    "rank 2 waits in store.get ready for something that rank 1 did not provide": (
        cause("straggler", [1], waiting=(2,), operation=KEY),
    ),
    "ranks 0,2 wait for something that rank 1 did not provide: rank 0 in store.get ready, rank 2 in"
    " store.get done": (
        cause(
            "straggler",
            [1],
            waiting=(0, 2),
            operation=KEY,
            waits=waits((0, KEY, {1}), (2, OTHER_KEY, {1})),
        ),
    ),
    "ranks 0,2 wait for ranks 1,3, of which nothing was recorded: rank 0 in store.get ready, rank 2"
    " in all_reduce #3 (group 0,2)": (
        cause(
            "straggler",
            [1, 3],
            waiting=(0, 2),
            operation=KEY,
            is_silent=True,
            waits=waits((0, KEY, {1}), (2, OF_PAIR, {3})),
        ),
    ),
    "rank 0 waits for a lock that rank 1 holds": (
        cause("straggler", [1], waiting=(0, 2), waits=waits((0, None, {1}), (2, REDUCE, {0}))),
    ),
    "ranks 0,2 wait for a lock that rank 1 holds": (cause("straggler", [1], waiting=(0, 2)),),
    "rank 2 waits for a lock that rank 1 holds": (cause("straggler", [1], waiting=(2,)),),
    "rank 1 never reached all_reduce #3 (world group): it is busy, or waits again and again": (
        cause("livelock", [1], waiting=(0, 2), operation=REDUCE),
    ),
    "rank 1 returned from the test; rank 0 waits for it in all_reduce #3 (world group)": (
        cause("finished", [1], waiting=(0,), operation=REDUCE),
    ),
    "ranks 0,1 returned from the test; ranks 2,3 wait for them": (
        cause("finished", [0, 1], waiting=(2, 3)),
    ),
    "rank 3 raised ValueError: no such step; ranks 0,1 wait for it in all_reduce #3"
    " (world group)": (cause("raised", [3], waiting=(0, 1), operation=REDUCE),),
    "rank 2 was killed by SIGKILL in the test; ranks 0,1 wait for it: rank 0 in all_reduce #3"
    " (group 0,2)": (
        cause(
            "died",
            [2],
            waiting=(0, 1),
            operation=OF_PAIR,
            waits=waits((0, OF_PAIR, {2}), (1, None, {2})),
        ),
    ),
    "rank 0 returned from the test; ranks 1-3 wait for it: ranks 1,3 in store.get ready, rank 2 in"
    " recv #3": (
        cause(
            "finished",
            [0],
            waiting=(1, 2, 3),
            operation=KEY,
            waits=waits((1, KEY, {0}), (2, RECEIVE, {1}), (3, RECEIVE, {1}), (3, KEY, {0})),
        ),
    ),
    "rank 5 returned from the test; ranks 0-4 wait for it: rank 0 in store.get ready, rank 1 in"
    " store.get done, rank 2 in all_reduce #3 (group 0,2), ranks 3,4 in other operations": (
        cause(
            "finished",
            [5],
            waiting=(0, 1, 2, 3, 4),
            operation=KEY,
            waits=waits(
                (0, KEY, {5}),
                (1, OTHER_KEY, {5}),
                (2, OF_PAIR, {5}),
                (3, RECEIVE, {5}),
                (4, FROM_2, {5}),
            ),
        ),
        builders.world(6, history=in_tests(6)),
    ),
    "rank 2 was killed by SIGKILL in the test": (cause("died", [2]),),
    "rank 1 is stopped by a signal such as SIGSTOP; rank 0 waits for it": (
        cause("stopped", [1], waiting=(0,)),
    ),
    "ranks 0,1 are stopped by a signal such as SIGSTOP; ranks 2,3 wait for them": (
        cause("stopped", [0, 1], waiting=(2, 3)),
    ),
    "rank 1 is held by a debugger or another tracer; rank 0 waits for it": (
        cause("stopped", [1], waiting=(0,)),
        world(snapshots=(TRACED,)),
    ),
    "ranks 1,2 are stopped by a signal such as SIGSTOP; rank 0 waits for them": (
        cause("stopped", [1, 2], waiting=(0,)),
        world(snapshots=(TRACED,)),
    ),
    "native code in rank 1 holds the GIL in torch.save (file a); rank 0 waits for it in store.get"
    " ready": (cause("gil_held", [1], waiting=(0,), operation=KEY, call="in torch.save (file a)"),),
    "native code in rank 1 holds the GIL; rank 0 waits for it": (
        cause("gil_held", [1], waiting=(0,)),
    ),
    "rank 1 is frozen by faults.freeze(rank=1); ranks 0,2 wait for it in recv #3": (
        cause("straggler", [1], waiting=(0, 2), operation=RECEIVE),
        frozen(1),
    ),
    "ranks 1,2 are frozen by faults.freeze(rank=1)": (cause("stuck", [1, 2]), frozen(1, 2)),
    "ranks 1,3 never reached all_reduce #3 (world group)": (
        cause("straggler", [1, 3], waiting=(0,), operation=REDUCE),
        frozen(1),
    ),
    "rank 1 returned from the test": (cause("finished", [1]), frozen(1)),
    "rank 1 is in recv #3, rank 3 is in all_gather (world group) from rank 1 at step.py:9,"
    " ranks 0,2 are in broadcast #3 (world group) from rank 2": (
        cause("mismatch", [1], waiting=(0, 2, 3), operation=FROM_2, waits=IN_BROADCAST),
    ),
    "the world did not end": (cause("unknown"),),
    "no rank answered": (cause("unknown"), world(reason="no rank answered")),
    "ranks 0-3 did not end; it is unknown which rank is waited for": (
        cause("unknown"),
        world(ending="overrun", reason="no rank answered", history=tuple(in_tests(SIZE))),
    ),
}
"""Each headline, and what it says in words: a cause, and the world if more than `world()`."""


@pytest.mark.parametrize("expected", CASES)
def test_each_cause_has_its_sentence(expected: str) -> None:
    """Ranks, operation and number agree."""
    found, *result = CASES[expected]
    assert words(found, *result or [world()]) == expected


def test_the_culprits_and_no_others_are_marked() -> None:
    """Pages colour them."""
    result = world(dumps=(LOCKS,))
    for found, marked in (
        (cause("finished", [0, 1], waiting=(2, 3)), ["ranks 0,1"]),
        (cause("mismatch", [1], waiting=(0, 2), operation=FROM_2, waits=IN_BROADCAST), ["rank 1"]),
        (cause("deadlock", waiting=(0, 1), cycle=(1,)), ["rank 1"]),
        (cause("deadlock", waiting=(0, 1), cycle=(0, 1), waits=CYCLE), []),
    ):
        spans = headline(found, judge(result, Symptoms()), result)
        assert [each.text for each in spans if each.names == "culprit"] == marked


def test_a_culprit_that_is_gone_leaves_the_line_of_who_waits_for_it() -> None:
    """It has none of its own."""
    found = cause(
        "died",
        [2],
        waiting=(0, 1),
        operation=REDUCE,
        waits=waits((2, REDUCE, set()), (0, OF_PAIR, {2}), (1, REDUCE, {2}), (0, REDUCE, {2})),
    )
    places = [RankPlace(rank, f"train{rank}.py", 5, "save", "") for rank in range(SIZE)]
    assert waiting_line(found, places) == " at train1.py:5"
    assert waiting_line(replace(found, kind="finished"), places) == " at train1.py:5"
    assert waiting_line(replace(found, kind="raised"), places) == ""
    assert waiting_line(found, places[2:]) == ""
    assert waiting_line(replace(found, operation=None), places) == ""
