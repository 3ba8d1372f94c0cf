"""Failures of several ranks that have one cause: who is named, whichever ranks raise."""

from __future__ import annotations

import signal
from dataclasses import replace

from builders import collective, ended, in_tests, page, world

from pytest_multihost.core.blame import judge_world
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.testing import (
    FLIGHT_SCOPE,
    Diagnosis,
    Operation,
    Operations,
    RankSnapshot,
    SourceContext,
    WorldSnapshot,
    exited,
    make_event,
    raised,
    report,
)

START = collective(1, name="sync_global_devices", detail="start", ended_s=1.0, waited_s=None)
SYNC = replace(START, sequence=2, detail="end")
LAST = collective(3, name="sync_global_devices", detail="end")


def left_by(operation: Operation, error: str) -> Operation:
    """Return the operation as left by an exception."""
    return replace(operation, ended_s=5.0, failed=True, error=error)


def mismatch(name: str, own: int) -> str:
    """Return the exception of jax of a rank whose hash is `own`."""
    return f"AssertionError: name mismatch ('{name}'). Expected: [4 4 7]; got: {own}."


def judged(errors: dict[int, str], *known: tuple[Operation, ...]) -> Diagnosis | None:
    """Return the diagnosis of a world in which these ranks raised, the first one first.

    Args:
        known: The operations of each rank.
    """
    size, history = len(known), in_tests(len(known))
    for number, (rank, error) in enumerate(errors.items()):
        failure = report("call", "failed", error=raised(error))
        history.append(make_event(5.0 + number / 10, rank, "report", failure))
    pending = [tuple(each for each in theirs if each.is_open) for theirs in known]
    ranks = tuple(
        RankSnapshot(rank=rank, label="BLOCKED", operations=theirs)
        for rank, theirs in enumerate(pending)
    )
    result = world(
        size,
        [*history, *ended(size, 9.0)],
        ended_s=9.0,
        ending="settled",
        snapshots=(WorldSnapshot(at_s=5.5, reason="trouble", ranks=ranks),),
        operations=tuple(page(rank, *theirs) for rank, theirs in enumerate(known)),
    )
    return judge_world(result, Symptoms(), SourceContext("/t", lambda *_: "")).diagnosis


def test_the_rank_with_another_name_is_named_although_all_raise() -> None:
    """Each rank sees that the names differ."""
    three, seven = mismatch("save_3", 4), mismatch("save_4", 7)
    odd = left_by(replace(SYNC, detail="save_4"), seven)
    most = left_by(replace(SYNC, detail="save_3"), three)
    found = judged({0: three, 2: seven, 1: three}, (START, most), (START, most), (START, odd))
    assert found is not None
    assert (found.kind, found.culprits, found.waiting) == ("mismatch", (2,), (0, 1))
    assert found.confidence == "certain"
    assert found.summary == (
        "rank 2 entered sync_global_devices #2 save_4 (world group), ranks 0,1 save_3"
    )


def test_the_rank_that_has_entered_another_operation_is_named_although_the_others_raise() -> None:
    """What it gathers once more looks to the others like their names."""
    error = mismatch("end", 4)
    gathered = replace(SYNC, name="process_allgather", detail="float32[]")
    raised_in = left_by(SYNC, error)
    found = judged({0: error, 2: error}, (START, raised_in), (START, gathered, LAST), (raised_in,))
    assert found is not None
    assert (found.kind, found.culprits, found.waiting) == ("mismatch", (1,), (0, 2))


def test_of_two_ranks_with_other_names_none_is_named() -> None:
    """Either may be right; both names are shown."""
    one, two = mismatch("a", 4), mismatch("b", 7)
    first, second = (
        left_by(replace(SYNC, detail=name), error) for name, error in (("a", one), ("b", two))
    )
    found = judged({0: one, 1: two}, (first,), (second,))
    assert found is not None
    assert (found.kind, found.culprits) == ("mismatch", ())
    assert found.summary == "rank 0 entered sync_global_devices #2 a (group 0,1,2), rank 1 b"


def test_the_rank_with_another_value_is_likely_the_culprit() -> None:
    """Each text ends with the rank's own value."""
    four, seven = mismatch("params", 4), mismatch("params", 7)
    check = replace(SYNC, name="assert_equal", detail="params")
    found = judged(
        {0: four, 1: four, 2: seven},
        *((left_by(check, error),) for error in (four, four, seven)),
    )
    assert found is not None
    assert (found.kind, found.culprits, found.confidence) == ("mismatch", (2,), "likely")
    assert found.summary == (
        "rank 2 entered assert_equal #2 params (world group) with another value than ranks 0,1"
    )


def test_ranks_that_all_have_other_values_are_not_named() -> None:
    """Nor is any of them if a test asserts something itself after the same collective."""
    errors = [mismatch("seed", own) for own in (1, 2, 3)]
    check = replace(SYNC, name="assert_equal", detail="seed")
    known = [(left_by(check, error),) for error in errors]
    assert judged(dict(enumerate(errors)), *known) is None
    own = "AssertionError: assert 3 == 4"
    assert judged({1: own}, (SYNC,), (replace(SYNC, detail="other"),), (SYNC,)) is None


def test_ranks_that_raise_the_same_at_one_line_are_named_together() -> None:
    """Whichever of them was first."""
    missing = "FileNotFoundError: step 3"
    waits = replace(LAST, sequence=2)
    for errors in ({1: missing, 2: missing}, {2: missing, 1: missing}):
        found = judged(errors, (START, waits), (START,), (START,))
        assert found is not None
        assert (found.kind, found.culprits, found.waiting) == ("raised", (1, 2), (0,))


def test_of_ranks_that_raise_something_else_the_first_is_named() -> None:
    """The second may have followed from it."""
    waits = replace(LAST, sequence=2)
    found = judged({2: "KeyError: 3", 1: "ValueError: 4"}, (START, waits), (START,), (START,))
    assert found is not None
    assert (found.kind, found.culprits) == ("raised", (2,))


def counted(sequence: int, detail: str) -> Operation:
    """Return a collective that C++ code has called."""
    made = collective(sequence, detail=detail, scope=FLIGHT_SCOPE, source="flight-recorder")
    return replace(made, ended_s=float(sequence), waited_s=None)


def of_native_code(
    dead: int, own: tuple[Operation, ...], native: dict[int, tuple[Operation, ...]]
) -> Diagnosis:
    """Return the diagnosis of three ranks, one of which gloo has ended for a size."""
    died = make_event(5.0, dead, "exited", exited(signal=int(signal.SIGABRT)))
    others = [rank for rank in range(3) if rank != dead]
    result = world(
        3,
        [*in_tests(3), died, *ended(others, 9.0)],
        ended_s=9.0,
        ending="settled",
        last_words={dead: COMPLAINT},
        operations=tuple(page(rank, *(own if rank == dead else ())) for rank in range(3)),
        native=tuple(Operations(rank, theirs) for rank, theirs in native.items()),
    )
    found = judge_world(result, Symptoms(), SourceContext("/t", lambda *_: "")).diagnosis
    assert found is not None
    return found


COMPLAINT = "  what():  op.preamble.length <= op.nbytes. 44 vs 4.\n"
STEPS = (counted(8, "f32[33]"), counted(9, "f32[33]"))


def test_a_size_is_compared_with_what_native_code_has_entered() -> None:
    """Rank 1 is at the end of its epoch, and the others' DDP reduces gradients."""
    own = (collective(1, detail="f32[1]"),)
    found = of_native_code(1, own, {0: STEPS, 2: STEPS})
    assert (found.kind, found.culprits, found.detected_by) == ("mismatch", (1,), "exit")
    told = "rank 1 entered all_reduce #9 f32[1] (world group), ranks 0,2 f32[33]"
    assert found.summary == told


def test_the_rank_that_was_ended_in_native_code_is_not_named_for_another() -> None:
    """What it was in is lost with it; of two others either may be right."""
    found = of_native_code(1, (), {0: STEPS, 2: (*STEPS[:1], counted(9, "f32[400]"))})
    assert (found.kind, found.culprits, found.waiting) == ("mismatch", (), (0, 2))


def test_an_earlier_step_of_a_slow_rank_is_no_other_size() -> None:
    """It has not entered the collective yet."""
    slow = (counted(8, "f32[400]"),)
    found = of_native_code(1, (), {0: STEPS, 2: slow})
    assert (found.kind, found.culprits, found.confidence) == ("died", (1,), "likely")


def test_a_rank_that_was_ended_in_native_code_has_expected_less_than_all_others() -> None:
    """They are in one operation, and gloo says that more came than it expected."""
    last = replace(counted(9, "f32[400]"), ended_s=None)
    found = of_native_code(1, (), {0: (*STEPS[:1], last), 2: (*STEPS[:1], last)})
    assert (found.kind, found.culprits, found.confidence) == ("mismatch", (1,), "likely")
    told = "ranks 0,2 entered all_reduce #9 f32[400] (world group), rank 1 a smaller one that"
    assert found.summary == f"{told} C++ code called"


def test_an_operation_that_the_death_has_ended_is_the_one_that_gloo_refused() -> None:
    """The dying rank closes its connections just before the harness sees its end, at 5 s."""
    last = replace(counted(9, "f32[400]"), ended_s=4.95)
    found = of_native_code(1, (), {0: (*STEPS[:1], last), 2: (*STEPS[:1], last)})
    assert (found.kind, found.culprits, found.confidence) == ("mismatch", (1,), "likely")


def test_operations_that_are_over_say_nothing_of_the_one_that_gloo_refused() -> None:
    """The rank that was ended may have been in the next one."""
    over = (*STEPS[:1], replace(STEPS[1], ended_s=4.0))
    found = of_native_code(1, (), {0: over, 2: over})
    assert (found.kind, found.culprits) == ("died", (1,))
