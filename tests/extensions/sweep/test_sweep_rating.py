"""How much a weakness matters: from worlds and weaknesses that are written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import builders
import pytest
import sweeps

from pytest_multihost.extensions.sweep.rating.launcher import (
    NAME,
    LauncherModel,
    RankEnd,
    read_launcher_record,
)
from pytest_multihost.extensions.sweep.rating.wait_end import timeout_name, wait_end
from pytest_multihost.extensions.sweep.rating.weigh import ends_soon, rate, rate_all
from pytest_multihost.extensions.sweep.result import DisturbedRun, WaitEnd, Weakness
from pytest_multihost.extensions.sweep.sayings import first_saying, usual_lines
from pytest_multihost.extensions.sweep.words import hidden_text, rating_text, survives_text
from pytest_multihost.testing import (
    Ending,
    Event,
    Fault,
    Point,
    WorldResult,
    exited,
    make_event,
    make_spec,
    raised,
    report,
)

pytestmark = pytest.mark.unit

FAULT = Fault("fails", (0,), Point("io", "*/done", call="write"))
DISTURBED_S = 2.0
SOON = WaitEnd(by="launcher", after_s=0.3)
LATE = WaitEnd(by="timeout", name="gloo's timeout", after_s=1800.1)
NEVER = WaitEnd(by="nothing", after_s=7200.0)
CHANGE = {"index": 0, "fault": "fails", "at": {"point": "io", "name": "*/done"}}
DISTURBED = make_event(DISTURBED_S, 0, "fault", {**CHANGE, "phase": "begun"})
OS_ERROR = raised("OSError: no space", file="/t/train.py", line=20)
TIMED_OUT = raised("RuntimeError: Timed out waiting 1800000ms for recv", file="/t/a.py", line=4)


def failed(rank: int, at_s: float, error: Any = OS_ERROR) -> Event:  # noqa: ANN401
    """Return the report of a test that has failed in a rank."""
    return make_event(at_s, rank, "report", report("call", "failed", error=error))


def gone(rank: int, at_s: float, code: int = 1) -> Event:
    """Return the end of a rank's process."""
    return make_event(at_s, rank, "exited", exited(code))


def measured(
    events: Sequence[Event],
    *,
    ending: Ending = "overrun",
    detected_s: float | None = None,
    ends_all: bool = True,
    is_slow: bool = False,
    logs: dict[int, str] | None = None,
    disturbed: Sequence[Event] = (DISTURBED,),
) -> WaitEnd:
    """Return what has ended the wait of a world with these events."""
    times = iter([0.0, *[100.0 if is_slow else 1.0] * 9])
    model = LauncherModel(ends_all, 30.0, real_now=lambda: next(times))
    history = [model.on_event(each) for each in (*disturbed, *events)]
    model.held_s(0.0, 1.0)
    spec = replace(make_spec(size=2), faults=(FAULT,))
    result: WorldResult = replace(
        builders.world(2, history),
        spec=spec,
        ending=ending,
        ended_s=9.0,
        detected_s=detected_s,
        records={NAME: model.record(0.0, 9.0)},
    )
    return wait_end(result, FAULT, logs or {})


def test_a_launcher_ends_the_others_when_a_process_has_ended() -> None:
    """The time counts from the disturbance to the launcher's next look."""
    found = measured([failed(0, 2.1), gone(0, 2.4)])
    assert found == WaitEnd(by="launcher", after_s=0.5)


def test_the_time_counts_from_the_first_of_several_disturbances() -> None:
    """A fault may strike again while ranks wait already."""
    again = make_event(DISTURBED_S + 0.2, 0, "fault", {**CHANGE, "phase": "begun"})
    found = measured([failed(0, 2.3), gone(0, 2.4)], disturbed=(DISTURBED, again))
    assert found == WaitEnd(by="launcher", after_s=0.5)


def test_a_failed_rank_that_does_not_end_ends_nothing() -> None:
    """Its destructor or its handler waits; the horizon is over, and nothing has happened."""
    assert measured([failed(0, 2.1)]).by == "nothing"


def test_a_process_that_the_harness_has_ended_ends_nothing() -> None:
    """It ends all processes once the world is over."""
    found = measured([failed(0, 2.1), gone(0, 8.9), gone(1, 8.9)], detected_s=8.5)
    assert found.by == "nothing"


def test_a_timeout_is_named_if_the_first_process_ends_by_one() -> None:
    """What a launcher does afterwards is not what has ended the wait."""
    found = measured([failed(1, 1802.0, TIMED_OUT), gone(1, 1802.0)])
    assert found == WaitEnd(by="timeout", name="gloo's timeout", after_s=1800.1)


def test_without_a_launcher_the_last_process_counts() -> None:
    """The runtime ends the others itself, and says why in their logs."""
    log = "F1127 Terminating process: Shutdown barrier timed out"
    found = measured(
        [failed(0, 2.1), gone(0, 302.0), gone(1, 302.5)],
        ending="self",
        ends_all=False,
        logs={1: log},
    )
    assert found == WaitEnd(by="timeout", name="jax's timeout at exit", after_s=300.5)


def test_without_a_launcher_one_ended_process_ends_nothing() -> None:
    """The other one waits on until the horizon is over."""
    found = measured([failed(0, 2.1), gone(0, 2.4)], ends_all=False)
    assert found.by == "nothing"


def test_what_took_too_long_to_measure_is_not_measured() -> None:
    """It is no world in which nothing has happened for two hours."""
    for ending in ("overrun", "settled"):
        found = measured([], ending=ending, is_slow=True)  # type: ignore[arg-type]
        assert found.by == "not measured"
        assert found.after_s is None


def test_a_disturbance_that_did_not_happen_measures_nothing() -> None:
    """Nor does a world in which all went well."""
    assert measured([failed(0, 2.1), gone(0, 2.4)], disturbed=()).by == "not measured"
    assert measured([gone(0, 3.0, 0), gone(1, 3.0, 0)], ending="self").by == "not measured"


def test_a_launcher_hides_failures_from_the_engine_and_keeps_them() -> None:
    """The engine would end the world."""
    model = LauncherModel(ends_all=False, most_s=30.0)
    seen = [model.on_event(each) for each in (failed(0, 2.1), gone(0, 2.4))]
    assert seen[0].body.outcome == "passed"  # type: ignore[union-attr]
    assert seen[1].body.by_harness  # type: ignore[union-attr]
    record = read_launcher_record(
        replace(builders.world(2), records={NAME: model.record(0.0, 9.0)})
    )
    assert record.ends == (
        RankEnd(0, 2.1, "raised", "OSError: no space"),
        RankEnd(0, 2.4, "exited", "exited with code 1"),
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("OSError: [Errno 5] Input/output error: 'a'", ""),
        ("RuntimeError: Connection closed by peer [127.0.0.1]:3", ""),
        ("RuntimeError: [transport/tcp/x.cc:84] Timed out waiting 1800000ms for recv", "gloo's"),
        ("DistStoreError: wait timeout after 300000ms, keys: /default_pg", "the store's"),
        ("Polled an error from coordination service: heartbeat timeout", "jax's timeout for hear"),
    ],
)
def test_timeouts_are_known_by_what_they_say(text: str, name: str) -> None:
    """An error of a file or of a closed connection is no timeout."""
    assert timeout_name(text).startswith(name) if name else timeout_name(text) == ""


def weakness(run: DisturbedRun = sweeps.FAILS) -> Weakness:
    """Return a weakness that each repeat has shown again."""
    return Weakness(witness=run, shown_by=(0,), repeated=(5, 5))


def rated(run: DisturbedRun, end: WaitEnd | None, show: Any = "lasting") -> Weakness:  # noqa: ANN401
    """Return a weakness with its rating."""
    ends = {} if end is None else {run.disturbance: end}
    (found,) = rate_all([weakness(run)], ends, show)
    return found


def test_what_a_launcher_ends_soon_is_hidden_and_does_not_fail_the_test() -> None:
    """The error is in a log, and nothing wrong stays."""
    found = rated(sweeps.FAILS, SOON)
    assert found.is_hidden
    assert not found.fails_test


def test_all_weaknesses_are_shown_on_request() -> None:
    """They make the test fail then, and have the same rating."""
    found = rated(sweeps.FAILS, SOON, "all")
    assert found.fails_test
    assert found.rating == rated(sweeps.FAILS, SOON).rating


@pytest.mark.parametrize("end", [LATE, NEVER, None, replace(SOON, after_s=61.0)])
def test_what_lasts_or_was_not_measured_is_shown(end: WaitEnd | None) -> None:
    """Nobody argues that a wait probably ends."""
    assert rated(sweeps.FAILS, end).fails_test


def test_ranks_that_part_are_shown_however_soon_gloo_ends_them() -> None:
    """With NCCL, or where the program goes on, nothing would end them so soon."""
    assert rated(sweeps.DIFFERS, SOON).fails_test


def test_a_failure_that_nobody_mentions_is_shown() -> None:
    """A log line is enough to find it."""
    silent = replace(sweeps.FAILS, error=None)
    assert rated(silent, SOON).fails_test
    assert rated(replace(silent, said="WARNING: no space"), SOON).is_hidden


def test_what_is_wrong_stays() -> None:
    """Whatever ends the job: the values are what the next one begins with."""
    wrong = replace(sweeps.DIFFERS, outcome="wrong", summary="ranks differ in 'step'")
    rating = rate(wrong, None)
    assert rating.stays == "ranks differ in 'step'"
    assert not ends_soon(replace(sweeps.FAILS), replace(rating, says="x", end=SOON))


def test_hidden_weaknesses_are_counted_in_one_line() -> None:
    """The line names the option that shows them."""
    result = replace(sweeps.SWEEP, weaknesses=(rated(sweeps.FAILS, SOON),))
    assert hidden_text(result).startswith("1 more weakness: ")
    assert hidden_text(result).endswith("--multihost-sweep-show=all shows them")
    assert "(0 weaknesses; 1 more that is short;" in survives_text(result)
    assert hidden_text(replace(result, weaknesses=(rated(sweeps.FAILS, LATE),))) == ""


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (SOON, "the launcher ends all ranks after 0.3 s"),
        (LATE, "gloo's timeout ends the wait after 30 minutes"),
        (NEVER, "nothing ends the wait within 2 hours"),
        (WaitEnd(by="not measured", name="no clock"), "was not measured: no clock"),
    ],
)
def test_a_rating_answers_three_questions(end: WaitEnd, text: str) -> None:
    """What stays, who says something, what ends it: in this order."""
    found = rating_text(rated(sweeps.FAILS, end))
    assert found.startswith("nothing wrong is known to stay; the error is logged; ")
    assert found.endswith(text)


def test_a_saying_is_a_severe_line_that_the_undisturbed_run_did_not_have() -> None:
    """Numbers, addresses and paths differ from run to run; progress is no saying."""
    usual = usual_lines({0: "step 1\nWARNING: slow disk /tmp/a/1, 12 ms\n"})
    logs = {0: "step 1\nWARNING: slow disk /tmp/b/2, 99 ms\n", 1: "step 2\n"}
    assert first_saying(logs, usual) == ""
    assert first_saying({**logs, 1: "could not save: OSError: full\n"}, usual) == (
        "could not save: OSError: full"
    )
