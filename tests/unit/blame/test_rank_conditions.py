"""The condition of a rank at the instant that is judged, on hand-made histories."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import builders
import pytest

from pytest_multihost import faults
from pytest_multihost.core.backends import BUILT_IN_BACKENDS, find_backend
from pytest_multihost.core.blame.rank_states import (
    RankState,
    left_by_own_error,
    rank_states_of,
    states_from_slots,
)
from pytest_multihost.core.outcome import judge
from pytest_multihost.testing import (
    RUNTIME_SCOPE,
    Event,
    Operations,
    RankSnapshot,
    Symptoms,
    WorldSnapshot,
    exited,
    make_event,
    make_spec,
    raised,
    report,
    well_behaved,
)

LOST = "RuntimeError: peer is gone"
SYMPTOMS = Symptoms((r"^RuntimeError: peer is gone",))
OURS = ((0, 1), 0, RUNTIME_SCOPE)


def life(rank: int, stays_in: str | None = "call") -> list[Event]:
    """Return what a rank has sent that is in this phase, or is done."""
    steps = well_behaved(rank, stays_in=stays_in)  # type: ignore[arg-type]
    return [make_event(float(n), rank, step.kind, step.detail) for n, step in enumerate(steps)]


def fails(rank: int, at_s: float, error: str) -> Event:
    """Return the report of a test that has failed."""
    return make_event(at_s, rank, "report", report("call", "failed", error=raised(error)))


operation = partial(builders.operation, group=(0, 1))


def states(*events: list[Event], **more: object) -> tuple[RankState, ...]:
    """Return where the ranks stood that have sent these."""
    size = len(events)
    seen = tuple(RankSnapshot(rank=rank, label="BLOCKED") for rank in range(size))
    given = {
        "ending": "overrun",
        "snapshots": (WorldSnapshot(at_s=50.0, reason="end", ranks=seen),),
    }
    history = [event for each in events for event in each]
    result = builders.world(size, history, **{**given, **more})
    return rank_states_of(result, judge(result, SYMPTOMS))


def seen(*given: dict[str, object], at_s: float = 50.0, reason: str = "end") -> WorldSnapshot:
    """Return a snapshot: the fields of each rank."""
    ranks = tuple(RankSnapshot(rank=rank, **each) for rank, each in enumerate(given))  # type: ignore[arg-type]
    return WorldSnapshot(at_s=at_s, reason=reason, ranks=ranks)  # type: ignore[arg-type]


def condition(*events: Event, **snapshot: object) -> tuple[str, float | None]:
    """Return the condition of rank 0 beside a rank that is in its test, and since when."""
    state, _ = states([*events], life(1), snapshots=(seen(snapshot, {}),))
    return state.condition, state.since_s


def test_a_rank_in_its_test_is_alive_whatever_it_does() -> None:
    """And since when is not said."""
    for label in ("BLOCKED", "SLEEPING", "RUNNING", None):
        assert condition(*life(0), label=label) == ("alive", None)


def test_a_stopped_rank_is_stopped_and_one_whose_native_code_holds_the_gil_does_so() -> None:
    """Stopped comes first."""
    assert condition(*life(0), label="STOPPED") == ("stopped", None)
    assert condition(*life(0), label="RUNNING", holds_gil=True) == ("gil_held", None)
    assert condition(*life(0), label="STOPPED", holds_gil=True) == ("stopped", None)


def test_a_rank_that_left_its_test_has_finished_when_it_did() -> None:
    """It waits at the gate, or its process has ended."""
    parked = [
        *life(0),
        make_event(20.0, 0, "report", report("call")),
        make_event(21.0, 0, "parked"),
    ]
    assert condition(*parked) == ("finished", 21.0)
    gates = [
        make_event(21.5, 0, "released", {"gate": "teardown"}),
        make_event(22.0, 0, "done"),
        make_event(22.5, 0, "released", {"gate": "exit"}),
    ]
    gone = [*parked, *gates, make_event(23.0, 0, "exited", exited())]
    assert condition(*gone) == ("finished", 21.0)


def test_a_rank_that_the_harness_ended_in_its_test_has_not_finished() -> None:
    """It was in it to the end."""
    ended = make_event(59.0, 0, "exited", {**exited(signal=15), "by_harness": True})
    assert condition(*life(0), ended) == ("alive", None)


def test_a_rank_that_raised_did_so_when_it_reported() -> None:
    """Parked or not."""
    failed = [*life(0), fails(0, 30.0, "ValueError: mine")]
    assert condition(*failed) == ("raised", 30.0)
    assert condition(*failed, make_event(31.0, 0, "parked")) == ("raised", 30.0)


def test_a_rank_that_died_did_so_when_its_process_ended() -> None:
    """Stopped or not."""
    assert condition(*life(0), make_event(33.0, 0, "exited", exited(signal=9)))[0] == "died"
    assert condition(*life(0), make_event(33.0, 0, "exited", exited(1)))[1] == 33.0


def test_a_rank_that_was_killed_as_planned_has_died_of_it_in_a_world_that_hangs() -> None:
    """The others were to survive that."""
    begun = {"index": 0, "fault": "kill", "phase": "begun", "kills": True}
    dead = [make_event(32.0, 0, "fault", begun), make_event(33.0, 0, "exited", exited(signal=9))]
    spec = replace(make_spec(2), faults=(faults.kill(rank=0),))
    killed, other = states([*life(0), *dead], life(1), spec=spec)
    assert (killed.condition, killed.since_s, killed.is_killed) == ("died", 33.0, True)
    assert (other.condition, other.is_killed) == ("alive", False)


def test_the_first_trouble_is_judged_if_it_was_a_symptom() -> None:
    """At the end nobody waits any more; a failure of its own is judged at the end."""
    trouble = seen({"label": "RUNNING"}, {"label": "SLEEPING"}, at_s=30.1, reason="trouble")
    end = seen({"label": "EXITED"}, {"label": "RUNNING"})
    for error, label, lost in ((LOST, "SLEEPING", True), ("ValueError: mine", "RUNNING", False)):
        both = states(
            [*life(0), fails(0, 30.0, error)], life(1), snapshots=(trouble, end), ending="settled"
        )
        assert both[1].seen.label == label
        assert both[0].is_lost == lost
    calm = states(life(0), life(1), snapshots=(trouble, end))
    assert calm[1].seen.label == "RUNNING"
    alone = states([*life(0), fails(0, 30.0, LOST)], life(1), snapshots=(end,), ending="settled")
    assert alone[1].seen.label == "RUNNING"


def test_the_slot_pages_tell_of_the_end_and_not_of_the_first_trouble() -> None:
    """A rank has entered more since."""
    trouble = seen({}, {"entered": ((OURS, 1),)}, at_s=30.1, reason="trouble")
    end = seen({}, {"entered": ((OURS, 1),)})
    pages = (Operations(0, ()), Operations(1, (), {OURS: 4}))
    lost = [*life(0), fails(0, 30.0, LOST)]
    early = states(lost, life(1), snapshots=(trouble, end), operations=pages, ending="settled")
    assert early[1].entered == {OURS: 1}
    late = states(life(0), life(1), snapshots=(trouble, end), operations=pages)
    assert late[1].entered == {OURS: 4}
    unseen = states(life(0), life(1), snapshots=(), operations=pages)
    assert (unseen[1].entered, unseen[1].seen) == ({OURS: 4}, RankSnapshot(rank=1))


@pytest.mark.parametrize("label", ["SLEEPING", "BLOCKED"])
def test_a_rank_polls_if_it_sleeps_again_and_again(label: str) -> None:
    """Whatever ended the world; restless it is only at a deadline."""
    busy = {"label": label, "recent_runs": (True,) * 8}
    for ending, restless in (("overrun", True), ("proof", False)):
        one, two = states(life(0), life(1), snapshots=(seen(busy, {}),), ending=ending)
        assert (one.polls, one.is_restless) == (label == "SLEEPING", restless)
        assert not two.polls


def test_a_rank_whose_runtime_gave_up_still_waits_in_what_it_lost() -> None:
    """In what was open, or failed at that instant; of several, the collectives."""
    struck = operation(ended_s=29.8, failed=True, error=LOST)
    long_ago = operation(sequence=1, ended_s=29.4, failed=True, error=LOST)
    key = operation(name="store.get", kind="wait", ended_s=29.9, failed=True)
    send = operation(name="send", kind="transfer", peer=1, ended_s=29.9, failed=True)
    over = operation(ended_s=29.9)
    open_ = operation(sequence=3)
    for recent, expected in (
        ((long_ago, struck), (struck,)),
        ((long_ago, over, open_), (open_,)),
        ((send, key), (key,)),
        ((key, send), (send,)),
        ((struck, key), (struck,)),
        ((long_ago,), (long_ago,)),  # its last collective
        ((over,), ()),
    ):
        lost, _ = states(
            [*life(0), fails(0, 30.0, LOST)],
            life(1),
            operations=(Operations(0, recent),),
            ending="settled",
        )
        assert lost.pending == expected
        assert lost.known == recent


def test_a_rank_waits_in_what_its_threads_wait_in() -> None:
    """Work beside is none, nor an operation of one rank; a main thread that works clears others."""
    beside = operation(waited_s=None)
    alone = operation(group=(0,))
    key = operation(name="store.get", kind="wait")
    main, other = operation(thread=1000), operation(thread=7)
    for label, given, expected in (
        ("BLOCKED", (beside, alone, other), (other,)),
        ("BLOCKED", (key, other), (other,)),
        ("BLOCKED", (key,), (key,)),
        ("SLEEPING", (other,), ()),
        ("SLEEPING", (main, other), (main, other)),
        ("IO", (other,), ()),
        ("DISK", (other,), ()),
        ("CHILD", (other,), ()),
        ("RUNNING", (other,), ()),
        (None, (other,), (other,)),
    ):
        first, _ = states(
            life(0), life(1), snapshots=(seen({"label": label, "operations": given}, {}),)
        )
        assert first.pending == expected
        assert first.known == given


def test_slot_pages_alone_tell_what_ranks_wait_in() -> None:
    """Of a running world, whatever its main threads do."""
    recent = (operation(sequence=1, ended_s=2.0), operation(sequence=2), operation(waited_s=None))
    found = states_from_slots([Operations(3, recent, {OURS: 2})])
    assert found == {3: builders.stands(3, *recent)}


GLOO = find_backend("gloo", BUILT_IN_BACKENDS)
TCP = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"


def test_only_who_left_an_operation_by_an_error_of_its_own_is_held_to_have_broken_it() -> None:
    """Whoever gave up for want of another rank has not, caught or not."""
    own = "DistStoreError: Too many open files"
    errors = (
        own,
        f"RuntimeError: {TCP}/pair.cc:553] Connection closed by peer [127.0.0.1]",
        "",
    )
    left = tuple(
        operation(sequence=sequence, ended_s=2.0, failed=True, error=error)
        for sequence, error in enumerate(errors, start=1)
    )
    broken = left_by_own_error(Operations(0, left), Symptoms(GLOO.symptoms))
    assert [each.error for each in broken] == [own]
