"""Services of a world, with a clock that only we move and a service of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import (
    Action,
    Opening,
    Service,
    ServiceKind,
    Turn,
    open_services,
)
from pytest_multihost.core.watch import Watchdog, WorldObserver
from pytest_multihost.testing import (
    Event,
    Exited,
    FaultChanged,
    FaultPerformed,
    FaultRequest,
    HoldEnded,
    LaunchError,
    Parked,
    Pause,
    PauseRank,
    ServicePart,
    ServiceRecord,
    Step,
    make_spec,
    well_behaved,
)

Run = Callable[..., Any]
TWO = [*well_behaved(0), *well_behaved(1)]
HANGS = [*well_behaved(0), *well_behaved(1, stays_in="call")]


@dataclass
class Mine:
    """What a service wants, and what it was asked.

    Attributes:
        wanted: What `due` returns, one after the other, then nothing.
        turns: For each question the deadline, and whether that is the last.
        done: When actions were performed.
    """

    wanted: list[Sequence[Action]] = field(default_factory=list)
    turns: list[tuple[float, bool]] = field(default_factory=list)
    done: list[float] = field(default_factory=list)

    def due(self, turn: Turn) -> Sequence[Action]:
        self.turns.append((turn.deadline_s, turn.is_last))
        return self.wanted.pop(0) if self.wanted else ()

    def service(self, **more: Any) -> Service:  # noqa: ANN401 - fields of Service
        return Service(name="mine", due=self.due, **more)

    def action(self, **more: Any) -> Action:  # noqa: ANN401 - fields of Action
        return Action(perform=self.done.append, **more)


def test_an_action_is_done_when_it_is_due(run: Run) -> None:
    """As soon as no event of a rank is unread."""
    mine = Mine([(), (), ()])
    mine.wanted.append([mine.action()])
    run(HANGS, services=[mine.service()])
    assert len(mine.done) == 1


def test_an_action_is_dropped_if_a_rank_sends_something_first(run: Run) -> None:
    """What it was decided from is not true any more; one that is certain is done all the same."""
    both = {}
    for is_certain in (False, True):
        mine = Mine()
        mine.wanted.append([mine.action(is_certain=is_certain)])
        run(TWO, services=[mine.service()])  # the first turn is before the first event
        both[is_certain] = len(mine.done)
    assert both == {False: 0, True: 1}


def test_what_an_action_says_is_sent_asked_for_and_recorded(run: Run) -> None:
    """A message to a rank, a request to the server, and an event in the history."""
    mine = Mine([()] * 5)
    ended = HoldEnded(0, "max_s")
    mine.wanted.append(
        [
            Action(
                events=((1, ended),),
                to_ranks=((1, FaultPerformed(0, "")),),
                to_server=(PauseRank(1, None),),
            )
        ]
    )
    ran = run(HANGS, services=[mine.service()])
    assert ended in [each.body for each in ran.result.history if each.rank == 1]
    assert FaultPerformed(0, "") in [each.message for _, rank, each in ran.launcher.sent if rank]
    assert ran.launcher.paused == [(1, None)]


def test_an_action_may_open_gates_for_one_rank(run: Run) -> None:
    """The others wait on."""
    mine = Mine([()] * 5)
    mine.wanted.append([Action(gates=((0, "teardown"),))])
    ran = run(HANGS, services=[mine.service()])
    assert [gate for _, gate in ran.gates(rank=0)] == ["go", "teardown"]
    assert [gate for _, gate in ran.gates(rank=1)] == ["go"]


def test_an_action_follows_from_an_event_at_once(run: Run) -> None:
    """With facts that include the event."""
    seen: list[bool] = []

    def after(event: Event, facts: Sequence[RankFacts]) -> Sequence[Action]:
        if isinstance(event.body, Parked):
            seen.append(facts[event.rank].is_past_body)
        return ()

    run(TWO, services=[Mine().service(after=after)])
    assert seen == [True, True]


def pausing(event: Event, _facts: Sequence[RankFacts]) -> Sequence[Action]:
    """Ask the server to pause a rank whose fault says so."""
    pause = event.body.pause if isinstance(event.body, FaultChanged) else None
    return [Action(to_server=(PauseRank(event.rank, pause),))] if pause else ()


def test_events_and_requests_are_as_a_service_wants_them(run: Run) -> None:
    """Say with the times of another clock."""

    def later(event: Event) -> Event:
        is_late = isinstance(event.body, Exited)
        return replace(event, at_s=event.at_s + 500.0) if is_late else event

    def forever(request: FaultRequest) -> FaultRequest:
        return replace(request, pause=None) if isinstance(request, PauseRank) else request

    pause = {"pause": {"stopped_s": None, "until_s": 1005.0}}
    begun = {"index": 0, "fault": "freeze", "phase": "begun", **pause}
    script = [*TWO, Step(0, "fault", begun, on="go")]
    mine = Mine().service(on_event=later, on_request=forever, after=pausing)
    ran = run(script, services=[mine])
    exits = [each.at_s for each in ran.result.history if isinstance(each.body, Exited)]
    assert min(exits) >= 1500.0
    assert ran.launcher.paused == [(0, None)]


def test_a_request_that_no_service_changes_is_as_its_service_wants_it(run: Run) -> None:
    """The test above can fail."""
    pause = {"pause": {"stopped_s": None, "until_s": 1005.0}}
    begun = {"index": 0, "fault": "freeze", "phase": "begun", **pause}
    script = [*TWO, Step(0, "fault", begun, on="go")]
    ran = run(script, services=[Mine().service(after=pausing)])
    assert ran.launcher.paused == [(0, Pause(until_s=1005.0))]


def test_until_the_ranks_are_ready_the_deadline_is_the_startups(run: Run) -> None:
    """And the last: nothing but the end of the world comes after it."""
    mine = Mine()
    run([*well_behaved(0, stays_in="startup"), *well_behaved(1)], services=[mine.service()])
    assert set(mine.turns) == {(1030.0, True)}


def test_the_fixtures_are_torn_down_when_every_service_agrees(run: Run) -> None:
    """What one has done must not fail them."""
    asked: list[bool] = []

    def may_end() -> bool:
        asked.append(len(asked) > 3)
        return asked[-1]

    ran = run(TWO, services=[Mine().service(may_end=may_end)])
    assert ran.result.ending == "self"
    assert asked == [False] * 4 + [True] + asked[5:]


def test_while_a_service_acts_no_other_is_asked(run: Run) -> None:
    """Two that influence ranks at once would mislead each other."""
    acts, rests = Mine(), Mine()
    services = [acts.service(is_acting=lambda _: True), replace(rests.service(), name="other")]
    run(HANGS, services=services, timeout_s=5.0)
    assert acts.turns != []
    assert rests.turns == []


def test_what_a_service_only_observes_comes_before_the_decision_of_an_acting_one(run: Run) -> None:
    """A port that listens lets more ranks start, so that a held rank is held longer."""
    acts, observes = Mine(), Mine()
    acts.wanted.append([acts.action(is_certain=True)])
    observes.wanted.append([observes.action(is_certain=True)])
    services = [
        acts.service(is_acting=lambda _: True),
        replace(observes.service(only_observes=True), name="other"),
    ]
    run(HANGS, services=services, timeout_s=5.0)
    assert len(observes.done) == 1
    assert acts.done == []


def test_patience_counts_from_what_an_acting_service_did_last(run: Run) -> None:
    """The ranks have only just been let go on."""
    mine = Mine([()] * 6)
    mine.wanted.append([mine.action()])
    acts = [True]

    def is_acting(_: float) -> bool:
        return acts[0] and not mine.done

    ran = run(HANGS, services=[mine.service(is_acting=is_acting)], patience_s=3.0)
    assert ran.result.ended_s >= mine.done[0] + 3.0


def test_the_record_of_a_service_is_part_of_the_result(run: Run) -> None:
    """The page and the verdict say what it has done; one that has done nothing has none."""
    record = ServiceRecord({"jumps": 3}, ("jumped",))
    services = [Mine().service(record=lambda *_: record), Service(name="quiet")]
    assert run(TWO, services=services).result.records == {"mine": record}


def opening(**services: ServicePart) -> Opening:
    """Return a world that names services."""
    spec = replace(make_spec(2), services=services)
    watchdog = Watchdog(WorldObserver(Path("/nowhere"), 2))
    return Opening(spec=spec, scratch=Path("/nowhere"), watchdog=watchdog)


def kind(name: str, **more: Any) -> ServiceKind:  # noqa: ANN401 - fields of ServiceKind
    """Return a kind that is opened as a service of its name."""
    return ServiceKind(name=name, **{"open": lambda _: Service(name=name), **more})


def test_a_world_has_the_services_that_it_names_and_those_that_all_have() -> None:
    """Those that all have come first; one may find that it is not needed."""
    kinds = [
        kind("b"),
        kind("a"),
        kind("z", is_implied=True),
        kind("y", is_implied=True, open=lambda _: None),
    ]
    assert [each.name for each in open_services(kinds, opening(a=ServicePart()))] == ["z", "a"]


def test_the_plugin_registered_last_replaces_a_service() -> None:
    """It comes first in what a hook returns."""
    other = Service(name="a", interval_s=lambda: 7.0)
    [found] = open_services([kind("a", open=lambda _: other), kind("a")], opening(a=ServicePart()))
    assert found is other


def test_a_world_cannot_have_a_service_that_nobody_offers() -> None:
    """Its plugin may be switched off."""
    with pytest.raises(LaunchError, match="'a', which no plugin offers"):
        open_services([kind("b")], opening(a=ServicePart()))


def test_deadlines_are_later_by_the_time_that_a_service_holds_up(run: Run) -> None:
    """Timeout and grace count only the time in which the ranks could run."""
    mine = Mine()
    held = mine.service(held_s=lambda since_s, until_s: min(40.0, until_s - since_s))
    assert run(HANGS, timeout_s=5, services=[mine.service()]).seconds == pytest.approx(5, abs=0.5)
    assert run(HANGS, timeout_s=5, services=[held]).seconds == pytest.approx(45, abs=0.5)


@pytest.mark.parametrize("early", ["fail", "warn"])
def test_what_a_service_does_not_permit_is_no_evidence(
    early: Literal["fail", "warn"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it with a warning alone."""
    monkeypatch.setattr(Watchdog, "_is_due", lambda *_args, **_more: True)
    monkeypatch.setattr(Watchdog, "_ground", lambda *_args: "proof")
    watch = Watchdog(WorldObserver(tmp_path, 2), early=early)
    assert watch.check(1.0, [], deadline_s=9.0, permits=lambda: False) is None
    assert watch.warned is None
    found = watch.check(2.0, [], deadline_s=9.0, permits=lambda: True)
    assert (found, watch.warned) == (("proof", None) if early == "fail" else (None, "proof"))
