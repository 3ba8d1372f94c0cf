"""A rank that gloo ends because of a size: it died, but another rank's tensor may be the cause."""

from __future__ import annotations

import signal
from dataclasses import replace

from builders import collective, ended, in_tests, page, world

from pytest_multihost.core.blame import judge_world
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.testing import (
    Diagnosis,
    Operation,
    SourceContext,
    exited,
    make_event,
)

COMPLAINT = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes."
    " 44 vs 4. Received data size doesn't match expected size.\n"
)
OTHER = "terminate called after throwing\n  what():  [enforce fail at x.cc:1] a == b. 1 vs 2.\n"
ENDED = "gloo ended rank 2 because it received data of another size than it expected"


def diagnosed(*inside: tuple[Operation, ...], words: str = COMPLAINT) -> Diagnosis:
    """Return the diagnosis of a world whose last rank died, and is named for it; see `judged`."""
    found = judged(*inside, words=words)
    assert (found.kind, found.culprits) == ("died", (len(inside) - 1,))
    return found


def judged(*inside: tuple[Operation, ...], words: str = COMPLAINT) -> Diagnosis:
    """Return the diagnosis of a world whose last rank aborted; each rank was in these operations.

    Args:
        inside: Of each rank.
        words: What the log of the last rank ends with.
    """
    died = len(inside) - 1
    history = in_tests(len(inside))
    history.append(make_event(5.0, died, "exited", exited(signal=int(signal.SIGABRT))))
    result = world(
        len(inside),
        [*history, *ended(died, 9.0)],
        ended_s=9.0,
        ending="settled",
        last_words={died: words},
        operations=tuple(page(rank, *known) for rank, known in enumerate(inside)),
    )
    diagnosis = judge_world(result, Symptoms(), SourceContext("/t", lambda *_: "")).diagnosis
    assert diagnosis is not None
    return diagnosis


SHORT, LONG = (collective(2, detail="f32[4]"),), (collective(2, detail="f32[64]"),)


def test_the_rank_whose_tensor_differs_is_named_and_not_the_one_that_died() -> None:
    """Gloo ends the rank with the smaller tensor, which is as most ranks' here."""
    found = judged(LONG, SHORT, SHORT)
    assert (found.kind, found.culprits, found.waiting) == ("mismatch", (0,), (1, 2))
    assert (found.confidence, found.detected_by) == ("likely", "exit")
    assert found.summary == "rank 0 entered all_reduce #2 f32[64] (world group), ranks 1,2 f32[4]"
    assert found.notes == (
        "gloo ended rank 2 because it received data of another size than it expected",
    )


def test_a_rank_that_died_with_the_only_small_tensor_is_named() -> None:
    """Then it is the odd one itself."""
    found = judged(LONG, LONG, SHORT)
    assert (found.kind, found.culprits) == ("mismatch", (2,))


def test_of_two_ranks_with_other_tensors_none_is_named() -> None:
    """Either may be right, whichever of them gloo ended."""
    found = judged(LONG, SHORT)
    assert (found.kind, found.culprits, found.waiting) == ("mismatch", (), (0, 1))


def test_of_several_open_operations_the_one_with_different_tensors_is_told() -> None:
    """Gloo does not say which it was in."""
    later = collective(3, detail="f32[9]")
    found = judged((*LONG, later), (*SHORT, later), (*SHORT, later))
    assert found.summary.startswith("rank 0 entered all_reduce #2 f32[64]")


def test_nothing_is_told_of_tensors_that_were_not_recorded() -> None:
    """The operation alone is named; of two that look alike, none."""
    assert diagnosed(SHORT, SHORT, SHORT).notes == (f"{ENDED} in all_reduce #2",)
    both = (*SHORT, replace(SHORT[0], sequence=3))
    assert diagnosed(both, both, both).notes == (ENDED,)
    assert diagnosed((), (), ()).notes == (ENDED,)


def test_another_abort_is_certain() -> None:
    """Whatever the others were in."""
    found = diagnosed(LONG, SHORT, SHORT, words=OTHER)
    assert (found.confidence, found.notes) == ("certain", ())
