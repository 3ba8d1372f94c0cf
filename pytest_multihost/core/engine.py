"""Run one world: start its ranks, open their gates, enforce deadlines, end the remaining ranks.

The engine depends neither on pytest nor on any runtime. Everything that happens is an `Event` in
the world's history; a rank's events are summarised in its `RankFacts`, and the engine decides from
these facts and the clock alone. It judges nothing: it returns the observations, a `WorldResult`.

Beside the ranks a world has services (`services.service`). They see every event, and request
actions when no event is unread. The engine knows no service by name.

Ranks stop at three gates. The engine opens each for all of them at once, except where a service
opens one for single ranks:

* `go`: all are ready, so that the test's timeout does not include any rank's start-up;
* `teardown`: all test bodies are over. A rank that tore down its fixtures while others still
  communicate would make them fail, and they would look like culprits;
* `exit`: all fixtures are torn down. If rank 0 hosts a service of the runtime, it exits last.

The engine ends a world early for one of these reasons: a timeout, a rank that has failed while the
others continue (they get a grace period), a proof that no rank can make progress, a mismatch of
operations, a stopped rank, a rank that has waited for longer than the user's patience, a lost
server, a machine about to run out of memory, or Ctrl-C.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_multihost.core.blame.program_members import with_stacks
from pytest_multihost.core.launch import HarnessCollectives, Launcher, RunningWorld
from pytest_multihost.core.launch.ending_signals import end_in_spite_of_signals, interrupted_once
from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.model.end import Ending
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import (
    Done,
    Event,
    ExchangeEntered,
    Exited,
    FaultAnswered,
    Gate,
    Interrupted,
    Parked,
    Released,
    ReportMade,
)
from pytest_multihost.core.model.messages import (
    FaultPerformed,
    FaultRequest,
    ToRank,
)
from pytest_multihost.core.model.messages import Release as OpenGate
from pytest_multihost.core.model.result import RankSnapshot, WorldResult, utc_text
from pytest_multihost.core.model.spec import Subject, WorldSpec, phase_name
from pytest_multihost.core.model.stack import Dump
from pytest_multihost.core.outcome import RankFacts, advance, describe_exit
from pytest_multihost.core.outcome.active_faults import (
    active_fault_events,
    continued_by_plan,
    has_pending_actions,
)
from pytest_multihost.core.services.service import Action, Service, Turn
from pytest_multihost.core.watch import NoWatch, Observations, Watchdog, collection_put_off

GRACE_AFTER_DEATH_S = 0.75
"""Grace period after a rank has died, in which the others can report its loss."""

GRACE_AFTER_RAISE_S = 5.0
"""Grace period after a rank has raised: the test has failed in any case."""

QUIET_PERIOD_S = 0.02
"""The time without any event after which a snapshot is taken.

A rank that sends an event is making progress, so a snapshot would only cost it time.
"""

MAX_SNAPSHOT_DELAY_S = 0.5
"""The longest time for which events can delay a snapshot."""

_COLLECTION_S = 60.0
"""Time between two collections of garbage while a world runs: see `collection_put_off`."""

_MANY = 32
"""In a world of more ranks, whose hang a service has proven, only some ranks write their stacks."""

SIGTERM_GRACE_S = 0.5
"""How long a rank's own SIGTERM handler may run before the rank is killed."""

Dumper = Callable[[RunningWorld, Sequence[int], Path, Sequence[RankSnapshot]], tuple[Dump, ...]]
"""Takes stacks. Arguments: ranks, directory for their answers, the last snapshot of each rank."""

OnTick = Callable[[float, Sequence[RankFacts]], None]
"""Shows progress. Arguments: seconds since the start, facts about the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything that a run of a world needs besides its spec.

    Attributes:
        dumper: Takes the stacks of the ranks before these are ended.
        now: Returns the world's monotonic time in seconds.
        directory: Where logs, stacks and the verdict go.
        scratch: The world's own directory for everything else.
        primary_leaves_last: Whether rank 0 may exit only after the others.
        on_start: Called with the world once its ranks have been started.
        on_tick: Called after every event, and every `tick_s` seconds without events, with the
            elapsed seconds and the facts.
        tick_s: The longest time without a call of `on_tick`.
        on_hang: Called before the harness ends ranks that did not end by themselves.
        patience_s: Ends the world this many seconds after the test has begun, or after the last
            action of a service that was influencing ranks, unless its timeout comes first. A proof
            of a hang still covers the time until the timeout.
        check_machine: Called in every turn; raises LaunchError if the world cannot go on here.
    """

    launcher: Launcher
    dumper: Dumper
    now: Callable[[], float]
    directory: Path
    scratch: Path
    primary_leaves_last: bool = False
    on_start: Callable[[RunningWorld], None] | None = None
    on_tick: OnTick | None = None
    tick_s: float = 1.0
    watch: Watchdog | NoWatch = field(default_factory=NoWatch)
    services: Sequence[Service] = ()
    on_hang: Callable[[Sequence[RankFacts]], None] | None = None
    patience_s: float | None = None
    check_machine: Callable[[Sequence[RankFacts]], None] = lambda _facts: None


def run_world(spec: WorldSpec, surroundings: Surroundings) -> WorldResult:
    """Run a world to its end and return the observations.

    On an exception, including Ctrl-C and SIGTERM, the ranks are ended before it propagates.
    """
    world_run = _WorldRun(spec, surroundings, started_s=surroundings.now())
    started_at = utc_text()
    try:
        with collection_put_off():
            ending, reason = world_run.run()
    except LaunchError as error:
        ending, reason = "lost", str(error)
    except KeyboardInterrupt as error:  # while ranks were started or ended; the server ends them
        ending, reason = "interrupted", _interruption(error)
    finally:
        surroundings.watch.release()
    ended_s = surroundings.now()
    found = {e.name: e.record(world_run.started_s, ended_s) for e in surroundings.services}
    return WorldResult(
        spec=spec,
        launch=surroundings.launcher.name,
        started_at=started_at,
        started_s=world_run.started_s,
        ended_s=ended_s,
        history=tuple(world_run.history),
        ending=ending,
        reason=reason,
        dumps=world_run.dumps,
        leftovers=world_run.leftovers,
        last_words={
            # A runtime that ends its process may have logged why.
            each.rank: _tail(surroundings.directory / f"rank-{each.rank}.log")
            for each in world_run.facts
            if each.has_died
        },
        snapshots=with_stacks(world_run.observed.snapshots, world_run.dumps),
        operations=world_run.observed.operations,
        partings=world_run.observed.partings,
        progress_s=world_run.observed.progress_s,
        detected_s=world_run.detected_s,
        is_quiescent=world_run.observed.is_quiescent,
        native=world_run.observed.native,
        records={name: record for name, record in found.items() if record is not None},
    )


@dataclass(slots=True)
class _WorldRun:
    """A running world.

    Attributes:
        started_s: When it began; all times are on the monotonic clock.
        history: All events so far, in the order of arrival.
        facts: The facts about each rank, summarised from the history.
        failed: The times at which ranks died or raised, by rank.
        leftovers: Command lines of processes that ranks had left behind.
        observed: The watchdog's observations, once it is closed.
        decided_s: When the harness decided to end the world.
        detected_s: When all evidence for that decision had been collected.
        snapshot_s: When the last snapshot was taken.
        influenced_s: When a service that was influencing ranks last did something.
        is_proven: Whether a service has proven that it hangs.
        collected_s: When the garbage was last collected, on the machine's own clock.
    """

    spec: WorldSpec
    surroundings: Surroundings
    started_s: float
    history: list[Event] = field(default_factory=list)
    facts: list[RankFacts] = field(default_factory=list)
    failed: dict[int, float] = field(default_factory=dict)
    dumps: tuple[Dump, ...] = ()
    leftovers: tuple[str, ...] = ()
    opened: dict[str, float] = field(default_factory=dict)
    observed: Observations = field(default_factory=Observations)
    decided_s: float | None = None
    detected_s: float | None = None
    snapshot_s: float = 0.0
    influenced_s: float = 0.0
    is_proven: bool = False
    collected_s: float = field(default_factory=time.monotonic)

    def run(self) -> tuple[Ending, str | None]:
        """Start the ranks, follow them to the end, and return why the world ended."""
        self.facts = [RankFacts(rank) for rank in range(self.spec.size)]
        inside = frozenset(self.spec.testing_ranks)
        outside = frozenset(range(self.spec.size)) - inside
        exchange = HarnessCollectives(len(inside), outside, self.spec.names)
        world = self.surroundings.launcher.start(
            self.spec, directory=self.surroundings.directory, scratch=self.surroundings.scratch
        )
        try:
            if self.surroundings.on_start is not None:
                self.surroundings.on_start(world)
            ending = self._follow(world, exchange)
        except KeyboardInterrupt as error:
            end_in_spite_of_signals()
            with contextlib.suppress(LaunchError, KeyboardInterrupt), interrupted_once():
                self._take_stacks(world)  # the stacks show where it hung
            with contextlib.suppress(LaunchError):
                self._end(world)
            return "interrupted", _interruption(error)
        except BaseException:
            with contextlib.suppress(LaunchError):
                self._end(world)
            raise
        self._end(world)
        return ending

    def _follow(
        self, world: RunningWorld, exchange: HarnessCollectives
    ) -> tuple[Ending, str | None]:
        """Let the world run until it has ended or has to be ended; return why.

        Each turn decides from the facts, waits for events, and records them. Events that keep
        arriving delay snapshots by up to `MAX_SNAPSHOT_DELAY_S`. No snapshot is taken while parts
        of a frame arrive: the sending rank waits only for this process, and would seem to hang. For
        the same reason no hang is reported while an event is unread, or while a process between the
        ranks and this one is silent.
        """
        events: Sequence[Event] = ()
        is_moving = False
        while True:
            now = self.surroundings.now()
            self._check_services()
            if all(each.is_gone for each in self.facts):
                if self.failed:
                    self.observed = self.surroundings.watch.close(now, self.facts)
                return "self", None
            deadline_s, ending = self._next_deadline(is_patient=self._is_influenced(now))
            is_busy = is_moving or (bool(events) and now < self.snapshot_s + MAX_SNAPSHOT_DELAY_S)
            ending_found = None if is_busy else self._take_snapshot(now)
            is_over = ending_found is not None or now >= deadline_s
            news = _unread(world, is_last=now >= deadline_s) if is_over else ()
            if is_over and not news:  # else a rank may wait only for our answer
                self._dump(world)
                if self.surroundings.on_hang is not None:
                    self.surroundings.on_hang(self.facts)
                return ending_found or ending, self._why(ending_found or ending)
            due = () if is_busy else self._due(now)
            wait_s = 0.0 if due else min(deadline_s - now, self._tick_s(is_busy=is_busy))
            moved_bytes = world.moved_bytes
            events = news or world.wait(max(0.0, wait_s))
            is_moving = not events and world.moved_bytes != moved_bytes
            has_news = bool(events) or is_moving
            self._take_all(world, exchange, events)
            for each in due:
                if each.is_certain or not has_news:
                    self._do(world, each)
            self._open_gates(world, exchange)
            if self.surroundings.on_tick is not None:
                self.surroundings.on_tick(self.surroundings.now() - self.started_s, self.facts)
            self.surroundings.check_machine(self.facts)
            self._collect_garbage()

    def _check_services(self) -> None:
        """Check that no service has lost a process.

        Raises:
            LaunchError: One has.
        """
        for service in self.surroundings.services:
            service.check()

    def _collect_garbage(self) -> None:
        """Collect garbage if the last time is long ago: a script may run for days."""
        if time.monotonic() >= self.collected_s + _COLLECTION_S:
            gc.collect()
            self.collected_s = time.monotonic()

    def _take_all(
        self, world: RunningWorld, exchange: HarnessCollectives, events: Sequence[Event]
    ) -> None:
        """Record events, answer them, and perform the services' actions that follow from them."""
        for event in map(self._in_world_time, events):
            self._take(event)
            for rank, frame in _answers(
                exchange, event, self.facts[event.rank], self.spec.subject
            ).items():
                world.send(rank, frame)
            for service in self.surroundings.services:
                for action in service.after(event, self.facts):
                    self._do(world, action)

    def _in_world_time(self, event: Event) -> Event:
        """Return an event as the history is to have it, after every service has changed it."""
        for service in self.surroundings.services:
            event = service.on_event(event)
        return event

    def _tick_s(self, *, is_busy: bool) -> float:
        """Return how long to wait for events at most."""
        needs = self.surroundings
        own_s = QUIET_PERIOD_S if is_busy else min(needs.tick_s, needs.watch.interval_s)
        return min([own_s, *(each.interval_s() for each in needs.services)])

    def _is_influenced(self, now: float) -> bool:
        """Return whether a service influences ranks now, so that their waits are not a hang."""
        return any(each.is_acting(now) for each in self.surroundings.services)

    def _due(self, now: float) -> Sequence[Action]:
        """Return the actions of the first service with any; acting services exclude the others.

        Services that only observe are asked last, so that their observations come before the
        decisions of others.
        """
        services = self.surroundings.services
        deadline_s, ending = self._next_deadline()
        turn = Turn(
            now=now,
            facts=self.facts,
            deadline_s=deadline_s,
            horizon_s=self._within_horizon(now, deadline_s),
            is_last=ending in ("overrun", "startup-overrun"),
        )
        observing = [each for each in services if each.only_observes]
        others = [each for each in services if not each.only_observes]
        asked = [each for each in others if each.is_acting(now)] or others
        decided = next((actions for each in asked if (actions := each.due(turn))), ())
        return [action for each in observing for action in each.due(turn)] or decided

    def _do(self, world: RunningWorld, action: Action) -> None:
        """Perform an action of a service."""
        now = self.surroundings.now()
        if self._is_influenced(now):
            self.influenced_s = now
        action.perform(now)
        if action.moves_at_s is not None:
            self.surroundings.watch.begin_anew(action.moves_at_s)
        for rank, body in action.events:
            self._take(Event(now, rank, body))
        for rank, message in action.to_ranks:
            world.send(rank, WireFrame(message))
        for request in action.to_server:
            self._request(world, request)
        for rank, gate in action.gates:
            self._release(self.facts[rank], gate, world, now)

    def _request(self, world: RunningWorld, request: FaultRequest) -> None:
        """Send a request to the server, after every service has changed it."""
        for service in self.surroundings.services:
            request = service.on_request(request)
        world.request(request)

    def _take_snapshot(self, now: float) -> Ending | None:
        """Have the watchdog take a snapshot; return why the world must end now, None if not.

        Before `go` only the start-up timeout applies, because importing a runtime looks like a
        hang. A wait for a fault that is still to act is not a hang either.
        """
        self.snapshot_s, self.is_proven = now, False
        if "go" not in self.opened or self._is_influenced(now):
            return None
        deadline_s, _ = self._deadline()
        deadline_s = self._within_horizon(now, deadline_s)
        if self.failed:
            has_settled = self.surroundings.watch.has_settled(
                now, self.facts, deadline_s=deadline_s
            )
            return "settled" if has_settled else None
        events = active_fault_events(self.facts)
        if has_pending_actions(events, now):
            return None
        self.is_proven = any(each.has_proof(deadline_s) for each in self.surroundings.services)
        if self.is_proven:
            return "proof"
        services = self.surroundings.services
        ending_found = self.surroundings.watch.check(
            now,
            self.facts,
            deadline_s=deadline_s,
            permits=lambda: all(each.permits_proof(deadline_s) for each in services),
        )
        is_planned = ending_found == "stopped" and continued_by_plan(events)
        return None if is_planned else ending_found

    def _dump(self, world: RunningWorld) -> None:
        """Take the last snapshot, then the stacks, which disturb the ranks."""
        self.decided_s = self.surroundings.now()
        self.observed = self.surroundings.watch.close(
            self.decided_s, self.facts, is_proven=self.is_proven
        )
        self._take_stacks(world)
        self.detected_s = self.surroundings.now()

    def _take_stacks(self, world: RunningWorld) -> None:
        alive = [each.rank for each in self.facts if each.can_dump and not each.is_gone]
        last = self.observed.snapshots[-1].ranks if self.observed.snapshots else ()
        if self.is_proven and len(alive) > _MANY:
            alive = _one_of_each_kind(alive, last)
        self.dumps = self.surroundings.dumper(world, alive, self.surroundings.directory, last)

    def _take(self, event: Event) -> None:
        self.history.append(event)
        self.facts[event.rank] = advance(self.facts[event.rank], event)
        has_failed_before = event.rank in self.failed
        failed_s = _failed_s(self.facts[event.rank])
        if failed_s is None:
            self.failed.pop(event.rank, None)  # a fault had planned its death
            return
        self.failed[event.rank] = failed_s
        if not has_failed_before:
            self.surroundings.watch.note_failure(self.surroundings.now(), self.facts)

    def _open_gates(self, world: RunningWorld, exchange: HarnessCollectives) -> None:
        """Open each gate when all ranks wait at it or can no longer reach it."""
        now = self.surroundings.now()
        if "go" not in self.opened and all(each.ready_s is not None for each in self.facts):
            self._open("go", world, self.facts, now)
        if "teardown" not in self.opened and all(each.is_past_body for each in self.facts):
            exchange.readmit(each.rank for each in self.facts if not each.is_finished)
            if all(each.may_end() for each in self.surroundings.services):
                self._open("teardown", world, self.facts, now)
        if all(each.is_finished for each in self.facts):
            last = self._leave_last()
            others = [each for each in self.facts if each.rank not in last]
            self._open("exit", world, others, now)
            if all(each.is_gone for each in others):
                self._open("exit", world, self.facts, now)

    def _leave_last(self) -> frozenset[int]:
        """Return the ranks that may exit only after the others."""
        first = {0} if self.surroundings.primary_leaves_last else set()
        return self.spec.role_hosts | first

    def _open(
        self, gate: Gate, world: RunningWorld, ranks: Sequence[RankFacts], now: float
    ) -> None:
        for each in list(ranks):
            if self._release(each, gate, world, now):
                self.opened[gate] = now

    def _release(self, facts: RankFacts, gate: Gate, world: RunningWorld, now: float) -> bool:
        """Open a gate for one rank; return whether it was not open."""
        if gate in facts.released or facts.is_gone:
            return False
        world.send(facts.rank, WireFrame(OpenGate(gate)))
        self._take(Event(now, facts.rank, Released(gate)))
        return True

    def _next_deadline(self, *, is_patient: bool = False) -> tuple[float, Ending]:
        """Return the time of the next deadline, and the ending it causes.

        The grace period after a rank has failed restarts at each gate that opens, because the
        other ranks have only then continued.

        Args:
            is_patient: Whether to ignore `patience_s`.
        """
        last_gate_s = max(self.opened.values(), default=0.0)
        found = [self._deadline()]
        if self.surroundings.patience_s is not None and "go" in self.opened and not is_patient:
            since_s = max(self.opened["go"], self.influenced_s)
            found.append((self._later(since_s, self.surroundings.patience_s), "overrun"))
        for rank, failed_s in self.failed.items():
            has_died = self.facts[rank].has_died
            grace_s = GRACE_AFTER_DEATH_S if has_died else GRACE_AFTER_RAISE_S
            found.append((self._later(max(failed_s, last_gate_s), grace_s), "settled"))
        return min(found)

    def _deadline(self) -> tuple[float, Ending]:
        if "go" in self.opened:
            return self._later(self.opened["go"], self.spec.timeout_s), "overrun"
        return self._later(self.started_s, self.spec.startup_timeout_s), "startup-overrun"

    def _later(self, since_s: float, limit_s: float) -> float:
        """Return the time `limit_s` after `since_s`, without the time that services held up."""
        now = self.surroundings.now()
        held_s = sum(each.held_s(since_s, now) for each in self.surroundings.services)
        return since_s + limit_s + held_s

    def _within_horizon(self, now: float, deadline_s: float) -> float:
        """Return the deadline, or the world's horizon if that comes first."""
        horizon_s = self.spec.horizon_s
        return deadline_s if horizon_s is None else min(deadline_s, now + horizon_s)

    def _limit_s(self) -> float:
        patience_s = self.surroundings.patience_s
        return min(self.spec.timeout_s, patience_s or self.spec.timeout_s)

    def _why(self, ending: Ending) -> str:
        """Return in words why the harness ends the world now."""
        reasons = {
            "startup-overrun": f"start-up took longer than {self.spec.startup_timeout_s:g} s",
            "overrun": f"took longer than {self._limit_s():g} s",
            "proof": f"no rank can make progress {self._limit_text()}",
            "mismatch": "ranks are in operations that can never match",
            "stopped": "a rank is stopped",
        }
        if ending == "waited":
            return f"a rank has waited longer than the {self.spec.patience_s:g} s of --patience"
        if ending in reasons:
            return f"{reasons[ending]}: {self._unfinished()}"
        dead = [each.rank for each in self.facts if each.has_died]
        if dead:
            who = self.spec.names.of(dead)
            return f"{who} died, then {self._unfinished()}: ended after a grace period"
        # The first rank that raised may only have lost another: the culprit is found later.
        return "a rank failed, and the others were ended after a grace period"

    def _limit_text(self) -> str:
        """Return the time within which nothing can move if the world hangs, in words."""
        is_by_horizon = self.spec.is_by_horizon(self.surroundings.now(), self.opened.get("go"))
        return f"within {self.spec.horizon_s:g} s" if is_by_horizon else "before the timeout"

    def _unfinished(self) -> str:
        """Name the ranks that have not reached the gate at which the others wait."""
        if "go" not in self.opened:
            return (
                f"{self.spec.names.of(e.rank for e in self.facts if e.ready_s is None)} not ready"
            )
        late = [each for each in self.facts if not each.is_past_body]
        late = late or [each for each in self.facts if not each.is_finished]
        late = late or [each for each in self.facts if not each.is_gone]
        phase = phase_name(late[0].phase, self.spec.subject)
        return f"{self.spec.names.of(each.rank for each in late)} still in {phase}"

    def _end(self, world: RunningWorld) -> None:
        """End the world; of its last events, record only the events that the test itself caused.

        After the decision the harness influences the ranks: for example, a request for the stacks
        of a stopped rank continues it.
        """
        decided_s = self.decided_s or self.surroundings.now()
        ending = world.end(grace_s=SIGTERM_GRACE_S)
        self.leftovers = ending.leftovers
        for event in map(self._in_world_time, ending.events):
            if isinstance(event.body, Exited):
                body = replace(event.body, by_harness=True)
                self._take(Event(event.at_s, event.rank, body))
            elif event.at_s <= decided_s:
                self._take(event)


def _unread(world: RunningWorld, *, is_last: bool) -> Sequence[Event]:
    """Return the events that were sent while the ranks were read; none at the deadline.

    Raises:
        LaunchError: A process that passes them on is gone, or silent.
    """
    world.confirm()
    return () if is_last else world.wait(0.0)


def _interruption(error: KeyboardInterrupt) -> str:
    """Return the cause of an interruption: the signal if the exception names it, else Ctrl-C."""
    return f"interrupted by {str(error) or 'Ctrl-C'}"


def _failed_s(facts: RankFacts) -> float | None:
    """Return when a rank died or raised; None if it did neither."""
    return facts.exited_s if facts.has_died else facts.failed_s


def _one_of_each_kind(ranks: Sequence[int], last: Sequence[RankSnapshot]) -> list[int]:
    """Return some of the ranks: the first in each operation at each line, and in none.

    A thousand ranks that all write their stacks would take the machine's memory: each copies the
    pages it touches.
    """
    kinds: dict[object, int] = {}
    for each in last:
        waits = ((e.name, e.sequence, len(e.group), e.frame) for e in each.operations)
        if each.rank in ranks:
            kinds.setdefault((each.label, *waits), each.rank)
    return sorted(kinds.values())[:_MANY]


def _answers(
    exchange: HarnessCollectives, event: Event, facts: RankFacts, subject: Subject
) -> Mapping[int, WireFrame[ToRank]]:
    """Return the frames that answer `event`, by the rank that gets each."""
    match event.body:
        case ExchangeEntered() as entered:
            return exchange.enter(event.rank, entered, event.payload)
        case Exited() as status:
            return exchange.mark_lost(event.rank, describe_exit(status))
        case (ReportMade() | Interrupted()) as failure if facts.failure is failure:
            error = failure.error
            return exchange.mark_lost(event.rank, f"raised {error.type}" if error else "failed")
        case Parked():
            return exchange.mark_lost(event.rank, f"has returned from the {subject}")
        case Done():
            return exchange.mark_lost(event.rank, "has finished its teardown")
        case FaultAnswered(index=int() as index, error=error):
            return {event.rank: WireFrame(FaultPerformed(index, error))}
    return {}


def _tail(path: Path, size: int = 20_000) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", "backslashreplace")
    except OSError:
        return ""
