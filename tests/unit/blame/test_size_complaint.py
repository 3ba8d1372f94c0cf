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
ENDED = (
    "gloo ended rank 2 because the data that it received has another size: another rank's tensor"
    " differs"
)


def diagnosed(*inside: tuple[Operation, ...], words: str = COMPLAINT) -> Diagnosis:
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
    assert (diagnosis.kind, diagnosis.culprits) == ("died", (died,))
    return diagnosis


SHORT, LONG = (collective(2, detail="f32[4]"),), (collective(2, detail="f32[64]"),)


def test_the_tensors_that_differ_are_told() -> None:
    """The rank that died is only likely the cause: its own tensor is as most ranks'."""
    found = diagnosed(LONG, SHORT, SHORT)
    assert found.confidence == "likely"
    tensors = "rank 0 entered all_reduce f32[64]; ranks 1,2 entered all_reduce f32[4]"
    assert found.notes == (f"{ENDED} in all_reduce #2: {tensors}",)


def test_of_several_open_operations_the_one_with_different_tensors_is_told() -> None:
    """Gloo does not say which it was in."""
    later = collective(3, detail="f32[9]")
    found = diagnosed((*LONG, later), (*SHORT, later), (*SHORT, later))
    assert found.notes[0].startswith(f"{ENDED} in all_reduce #2: rank 0 entered")


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
