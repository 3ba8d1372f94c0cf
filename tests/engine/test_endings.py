"""How a world ends, and that it always does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.core.engine import SIGTERM_GRACE_S
from pytest_multihost.core.launch import Ending
from pytest_multihost.core.outcome import RankFacts, fold_history
from pytest_multihost.testing import (
    Exited,
    LaunchError,
    ReportMade,
    ScriptedLauncher,
    Step,
    exited,
    make_event,
    raised,
    report,
    well_behaved,
)

Run = Callable[..., Any]

HANGS = [*well_behaved(0, stays_in="call"), *well_behaved(1, stays_in="call")]


def test_a_world_whose_ranks_leave_ends_by_itself(run: Run) -> None:
    """Nothing is to be explained, and nothing has taken time."""
    ran = run([*well_behaved(0), *well_behaved(1)])
    assert (ran.result.ending, ran.result.reason, ran.seconds) == ("self", None, 0)


def test_a_world_without_survivors_needs_no_grace(run: Run) -> None:
    """When the last rank is gone there is nobody to wait for, and nobody to take stacks of."""
    died = [
        Step(0, "exited", exited(signal=9), after_s=1, on="go"),
        Step(1, "exited", exited(3), after_s=1, on="go"),
    ]
    ran = run([*HANGS, *died])
    assert (ran.result.ending, ran.seconds, ran.launcher.dumped) == ("self", 1, [])


CASES: dict[str, dict[str, Any]] = {
    "self": {"script": [*well_behaved(0), *well_behaved(1)]},
    "overrun": {"script": HANGS},
    "startup-overrun": {"script": well_behaved(0)},  # there are two ranks
    "settled": {"script": [*HANGS, Step(0, "exited", exited(signal=9), on="go")]},
    "lost": {"script": HANGS, "error": LaunchError("gone"), "error_at_s": 2},
    "interrupted": {"script": HANGS, "error": KeyboardInterrupt(), "error_at_s": 2},
}


@pytest.mark.parametrize("ending", CASES)
def test_a_world_is_ended_once_whatever_happens(run: Run, ending: str) -> None:
    """Nothing of it may be left, and nothing is ended twice."""
    ran = run(**CASES[ending])
    assert ran.result.ending == ending
    assert ran.launcher.ended == [SIGTERM_GRACE_S]


def test_a_lost_server_is_the_reason(run: Run) -> None:
    """All three beats of the error are kept, and so is what had happened before."""
    error = LaunchError("the server is gone", seen="it closed its connection", remedy="Rerun.")
    ran = run(HANGS, error=error, error_at_s=2)
    assert ran.result.reason == "the server is gone\nit closed its connection\nRerun."
    assert ran.seconds == 2
    assert {event.kind for event in ran.result.history} >= {"ready", "released", "exited"}


def test_a_machine_that_cannot_go_on_ends_the_world(run: Run) -> None:
    """In the turn in which that is seen."""

    def check_machine(facts: Sequence[RankFacts]) -> None:
        if all(each.phase == "call" for each in facts):
            raise LaunchError("no memory is left")

    ran = run(HANGS, check_machine=check_machine)
    assert (ran.result.ending, ran.result.reason) == ("lost", "no memory is left")
    assert ran.launcher.ended == [SIGTERM_GRACE_S]


def test_a_world_that_cannot_be_started_is_lost(run: Run) -> None:
    """There is a result all the same, and no world to be ended."""
    ran = run([], error=LaunchError("no ports"))
    assert (ran.result.ending, ran.result.reason) == ("lost", "no ports")
    assert ran.launcher.ended == []


def test_ctrl_c_gives_a_result(run: Run) -> None:
    """So that a verdict can be written before pytest stops."""
    ran = run(HANGS, error=KeyboardInterrupt(), error_at_s=2)
    assert (ran.result.ending, ran.seconds) == ("interrupted", 2)
    assert [event.rank for event in ran.result.history if event.kind == "exited"] == [0, 1]


class Lost(ScriptedLauncher):
    """Cannot be asked to end anything any more."""

    def end(self, *, grace_s: float) -> Ending:
        super().end(grace_s=grace_s)
        message = "the server is gone"
        raise LaunchError(message)


def test_ctrl_c_is_not_lost_where_the_server_is(run: Run) -> None:
    """Ctrl-C stops pytest even where ending the world fails, too."""
    ran = run(HANGS, error=KeyboardInterrupt(), error_at_s=2, launched_by=Lost)
    assert ran.result.ending == "interrupted"


def test_a_defect_of_ours_leaves_no_rank_behind(run: Run) -> None:
    """Whatever is raised while a world runs ends it before it goes on its way."""
    launchers = []

    class Noted(ScriptedLauncher):
        def start(self, *args: Any, **kwargs: Any) -> ScriptedLauncher:  # noqa: ANN401
            launchers.append(self)
            return super().start(*args, **kwargs)

    def on_tick(_: float, __: Sequence[RankFacts]) -> None:
        message = "a defect"
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="a defect"):
        run(HANGS, launched_by=Noted, on_tick=on_tick)
    assert [launcher.ended for launcher in launchers] == [[SIGTERM_GRACE_S]]


def test_exits_found_at_the_end_are_no_deaths(run: Run) -> None:
    """A rank that we end has not died on its own, whatever its status says."""
    ran = run(HANGS)
    found = [event for event in ran.result.history if event.kind == "exited"]
    assert [isinstance(each.body, Exited) and each.body.by_harness for each in found] == [
        True,
        True,
    ]
    assert all(isinstance(each.body, Exited) and each.body.signal == 15 for each in found)
    assert [facts.has_died for facts in fold_history(ran.result.history, 2)] == [False, False]


@pytest.mark.parametrize("error", [RuntimeError("a defect"), LaunchError("the first")], ids=repr)
def test_what_broke_first_is_told(run: Run, error: Exception) -> None:
    """A server that cannot end the world hides neither a defect nor why it is gone."""
    told = ""
    try:
        told = run(HANGS, error=error, error_at_s=2, launched_by=Lost).result.reason
    except RuntimeError as raised_on:
        told = str(raised_on)
    assert told == str(error)


class Parting(ScriptedLauncher):
    """Finds two reports that were under way, and a process that a rank had started."""

    def end(self, *, grace_s: float) -> Ending:
        before, after = (
            make_event(
                self.clock.now() + late_s, rank, "report", report("call", "failed", error=error)
            )
            for late_s, rank, error in (
                (0.0, 1, raised("ValueError: boom")),
                (0.1, 0, raised("SystemExit: 15")),
            )
        )
        return Ending((before, after, *super().end(grace_s=grace_s).events), ("sleep 600",))


def test_what_is_found_at_the_end_counts(run: Run) -> None:
    """A report that was under way is heard, but not what a rank makes of being ended by us."""
    result = run(HANGS, launched_by=Parting).result
    reports = (each.body for each in result.history if isinstance(each.body, ReportMade))
    [error] = (each.error for each in reports if each.error is not None)
    assert error.message == "boom"
    assert result.leftovers == ("sleep 600",)


def test_the_last_words_of_a_dead_rank_are_kept(run: Run, tmp_path: Path) -> None:
    """Its log may say that it only lost another; only of ranks that died, and only the end."""
    (tmp_path / "rank-0.log").write_text("I live\n")
    (tmp_path / "rank-1.log").write_text("first" + "." * 30_000 + "Terminating process\n")
    ran = run([*HANGS, Step(1, "exited", exited(signal=6), on="go")])
    words = ran.result.last_words
    assert set(words) == {1}
    assert words[1].endswith("Terminating process\n")
    assert "first" not in words[1]


def test_a_dead_rank_without_a_log_has_no_last_words(run: Run) -> None:
    """It may have died before it opened the file."""
    ran = run([*HANGS, Step(1, "exited", exited(signal=6), on="go")])
    assert ran.result.last_words == {1: ""}


def longest_pause_s(times: Sequence[float]) -> float:
    """Return the longest time between two of `times`."""
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def test_the_live_line_is_told_every_second(run: Run) -> None:
    """With the seconds since the start and what is known of each rank."""
    ticks = []

    def on_tick(seconds: float, facts: Sequence[RankFacts]) -> None:
        ticks.append((seconds, [each.phase for each in facts]))

    run(HANGS, on_tick=on_tick, timeout_s=3)
    assert ticks[-1] == (3.0, ["call", "call"])
    assert longest_pause_s([seconds for seconds, _ in ticks]) == pytest.approx(1.0)


def test_the_live_line_can_be_told_more_often(run: Run) -> None:
    """Output that is shown as it is printed should not come in lumps."""
    ticks = []
    run(HANGS, on_tick=lambda seconds, _: ticks.append(seconds), timeout_s=1, tick_s=0.25)
    assert ticks[-1] == 1.0
    assert longest_pause_s(ticks) == pytest.approx(0.25)
