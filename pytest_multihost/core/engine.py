"""Run one world: start its ranks, open their gates, enforce deadlines, end the remaining ranks.

The engine depends neither on pytest nor on any runtime. Everything that happens is an `Event` in
the world's history; a rank's events are summarised in its `RankFacts`, and the engine decides from
these facts and the clock alone. It judges nothing: it returns the observations, a `WorldResult`.

Ranks stop at three gates. The engine opens each for all of them at once, but for ranks of a script
that others may wait for the end of:

* `go`: all are ready, so that the test's timeout does not include any rank's start-up;
* `teardown`: all test bodies are over. A rank that tore down its fixtures while others still
  communicate would make them fail, and those would look like culprits;
* `exit`: all are torn down. If rank 0 hosts a service of the runtime, it exits last.

The engine ends a world early for one of these reasons: a timeout, a rank that has failed while the
others continue (they get a grace period), a proof that no rank can make progress, ranks in
operations that do not match, a rank that somebody has stopped, a lost server, or Ctrl-C.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_multihost.core.blame.inferred import with_stacks
from pytest_multihost.core.launch import HarnessCollectives, Launcher, RunningWorld
from pytest_multihost.core.launch.wire import Frame
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import (
    Done,
    Event,
    ExchangeEntered,
    Exited,
    FaultChanged,
    Gate,
    HoldEnded,
    Interrupted,
    NetworkChanged,
    Parked,
    Pause,
    Released,
    ReportMade,
)
from pytest_multihost.core.model.messages import (
    Calm,
    Disturb,
    FaultPerformed,
    PauseRank,
    ToRank,
)
from pytest_multihost.core.model.messages import Release as OpenGate
from pytest_multihost.core.model.operation import rank_set
from pytest_multihost.core.model.result import Ending, WorldResult, utc_text
from pytest_multihost.core.model.spec import Subject, WorldSpec, phase_name
from pytest_multihost.core.model.stack import Dump
from pytest_multihost.core.outcome import RankFacts, advance, describe_exit
from pytest_multihost.core.outcome.points import continued_by_plan, has_pending_actions
from pytest_multihost.core.watch import HeldRanks, NoWatch, Observations, Release, Watchdog
from pytest_multihost.extensions.clock.jumps import Jumps, NoJumps, overdue_pauses

GRACE_AFTER_DEATH_S = 0.75
"""Grace period after a rank has died, in which the others can report its loss."""

QUIET_BEFORE_LEAVING_S = 15.0
"""How long nothing must have moved before ranks of a script that are over leave ahead of others.

What is proven to hang is proven by then, and has been judged with their connections open."""

LEAVE_S = 5.0
"""How long they may take before the others are judged without them."""

GRACE_AFTER_RAISE_S = 5.0
"""Grace period after a rank has raised: the test has failed in any case."""

QUIET_PERIOD_S = 0.02
"""How long no event must have arrived before a snapshot is taken.

A rank that sends an event is making progress, so a snapshot would only cost it time.
"""

MAX_SNAPSHOT_DELAY_S = 0.5
"""The longest time for which events can delay a snapshot."""

SIGTERM_GRACE_S = 0.5
"""How long a rank's own SIGTERM handler may run before the rank is killed."""

Dumper = Callable[[RunningWorld, Sequence[int], Path, Collection[int]], tuple[Dump, ...]]
"""Takes stacks. Arguments: the ranks, where they answer, and those that compute with the GIL."""

OnTick = Callable[[float, Sequence[RankFacts]], None]
"""Shows progress. Arguments: the seconds since the start, and the facts about the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything that a run of a world needs besides its spec.

    Attributes:
        launcher: Starts its ranks.
        dumper: Takes their stacks before they are ended.
        now: Returns the world's monotonic time in seconds.
        directory: Where logs, stacks and the verdict go.
        scratch: The world's own directory for everything else.
        primary_leaves_last: Whether rank 0 may exit only after the others.
        on_start: Called with the world when its ranks have been started.
        on_tick: Called after every event, and every `tick_s` seconds without events, with the
            elapsed seconds and the facts.
        tick_s: The longest time without a call of `on_tick`.
        watch: The watchdog: takes snapshots of the ranks from outside.
        held: Says when ranks that faults hold may go on.
        jumps: Says when the world's clock jumps.
        on_hang: Called before the harness ends ranks that did not end by themselves.
        patience_s: Ends the world so many seconds after the test has begun, or after a rank that
            a fault held was let go, if its timeout is later. What is proven to hang is still
            proven to do so until that timeout.
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
    held: HeldRanks = field(default_factory=HeldRanks)
    jumps: Jumps = field(default_factory=NoJumps)
    on_hang: Callable[[Sequence[RankFacts]], None] | None = None
    patience_s: float | None = None


def run_world(spec: WorldSpec, surroundings: Surroundings) -> WorldResult:
    """Run a world to its end and return the observations.

    On an exception, Ctrl-C or SIGTERM among them, the ranks are ended before it propagates.
    """
    world_run = _WorldRun(spec, surroundings, started_s=surroundings.now())
    started_at = utc_text()
    try:
        ending, reason = world_run.run()
    except LaunchError as error:
        ending, reason = "lost", str(error)
    except KeyboardInterrupt as error:  # while ranks were started or ended; the server ends them
        ending, reason = "interrupted", _interruption(error)
    finally:
        surroundings.watch.release()
    return WorldResult(
        spec=spec,
        launch=surroundings.launcher.name,
        started_at=started_at,
        started_s=world_run.started_s,
        ended_s=surroundings.now(),
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
        clock=surroundings.jumps.record(),
    )


@dataclass(slots=True)
class _WorldRun:
    """A running world.

    Attributes:
        started_s: When it began; all times are on the monotonic clock.
        history: All events so far, in the order of arrival.
        facts: The facts about each rank, summarised from the history.
        dumps: Stacks, once they have been taken.
        leftovers: Command lines of processes that ranks had left behind.
        opened: When each gate was opened.
        observed: The watchdog's observations, once it is closed.
        decided_s: When the harness decided to end the world.
        detected_s: When all evidence for that decision had been collected.
        is_restoring_network: Whether the network is being restored before the teardown.
        snapshot_s: When the last snapshot was taken.
        leaving: Ranks of a script that may leave before the others are over.
        leaving_s: When they were last told so.
    """

    spec: WorldSpec
    surroundings: Surroundings
    started_s: float
    history: list[Event] = field(default_factory=list)
    facts: list[RankFacts] = field(default_factory=list)
    dumps: tuple[Dump, ...] = ()
    leftovers: tuple[str, ...] = ()
    opened: dict[str, float] = field(default_factory=dict)
    observed: Observations = field(default_factory=Observations)
    decided_s: float | None = None
    detected_s: float | None = None
    is_restoring_network: bool = False
    snapshot_s: float = 0.0
    leaving: frozenset[int] = frozenset()
    leaving_s: float = 0.0

    def run(self) -> tuple[Ending, str | None]:
        """Start the ranks, follow them to the end, and return why the world ended."""
        self.facts = [RankFacts(rank) for rank in range(self.spec.size)]
        exchange = HarnessCollectives(self.spec.size)
        world = self.surroundings.launcher.start(
            self.spec, directory=self.surroundings.directory, scratch=self.surroundings.scratch
        )
        try:
            if self.surroundings.on_start is not None:
                self.surroundings.on_start(world)
            ending = self._follow(world, exchange)
        except KeyboardInterrupt as error:
            with contextlib.suppress(LaunchError, KeyboardInterrupt):
                self._take_stacks(world)  # the user who interrupts wants to see where it hung
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

        Each turn decides from the facts, waits for events, and records them. While events keep
        arriving no snapshot is taken, but not for longer than `MAX_SNAPSHOT_DELAY_S`; nor while
        parts of a frame move: its rank waits for this process alone, and seems to hang. For the
        same reason no hang is found while an event is unread.
        """
        events: Sequence[Event] = ()
        is_moving = False
        while True:
            now = self.surroundings.now()
            if all(each.is_gone for each in self.facts):
                if any(_trouble_s(each) is not None for each in self.facts):
                    self.observed = self.surroundings.watch.close(now, self.facts)
                return "self", None
            held = self.surroundings.held
            deadline_s, ending = self._next_deadline(is_patient=held.is_active)
            is_busy = is_moving or (bool(events) and now < self.snapshot_s + MAX_SNAPSHOT_DELAY_S)
            ending_found = None if is_busy else self._take_snapshot(now)
            news = () if ending_found is None or now >= deadline_s else world.wait(0.0)
            if news:  # sent while the ranks were read: a rank may wait for our answer alone
                ending_found = None
            if ending_found is not None or now >= deadline_s:
                self._dump(world)
                if self.surroundings.on_hang is not None:
                    self.surroundings.on_hang(self.facts)
                return ending_found or ending, self._why(ending_found or ending)
            ripe, jump_s = ((), None) if is_busy else self._due(now, deadline_s, ending)
            tick_s = min(QUIET_PERIOD_S, held.interval_s) if is_busy else self._tick_s()
            wait_s = 0.0 if ripe or jump_s is not None else min(deadline_s - now, tick_s)
            moved_bytes = world.moved_bytes
            events = news or world.wait(max(0.0, wait_s))
            is_moving = not events and world.moved_bytes != moved_bytes
            has_news = bool(events) or is_moving
            if jump_s is not None and not has_news:
                self._jump(world, jump_s)
            self._take_all(world, exchange, events)
            self._let_go(world, ripe, has_news=has_news)
            self._open_gates(world, exchange)
            if self.surroundings.on_tick is not None:
                self.surroundings.on_tick(self.surroundings.now() - self.started_s, self.facts)

    def _take_all(
        self, world: RunningWorld, exchange: HarnessCollectives, events: Sequence[Event]
    ) -> None:
        """Record events, and do what each asks for."""
        jumps = self.surroundings.jumps
        for event in map(jumps.in_world_time, events):
            self._take(event)
            _perform(world, event, jumps)
            for rank, frame in _answers(
                exchange, event, self.facts[event.rank], self.spec.subject
            ).items():
                world.send(rank, frame)

    def _tick_s(self) -> float:
        """Return the longest time to wait for events."""
        needs = self.surroundings
        watch_s, held_s, jumps_s = (
            each.interval_s for each in (needs.watch, needs.held, needs.jumps)
        )
        return min(needs.tick_s, watch_s, held_s, jumps_s)

    def _due(
        self, now: float, deadline_s: float, ending: Ending
    ) -> tuple[Sequence[Release], float | None]:
        """Return which held ranks may go on, and to what time the clock is to jump, if at all.

        While a rank is held time goes on as it does outside: a hold ends in real time.
        """
        held, jumps = self.surroundings.held, self.surroundings.jumps
        if held.is_active:
            last_s = self._within_horizon(now, self._next_deadline()[0])
            return held.due(now, self.facts, last_s), None
        is_last = ending in ("overrun", "startup-overrun")
        return (), jumps.due_s(now, self.facts, deadline_s, is_last=is_last)

    def _jump(self, world: RunningWorld, to_s: float) -> None:
        """Let the clock jump, and continue the ranks that were stopped until then."""
        self.surroundings.jumps.jump(to_s)
        self.surroundings.watch.note_jump(to_s)
        for rank in overdue_pauses(self.facts, to_s):
            world.request(PauseRank(rank, None))

    def _let_go(self, world: RunningWorld, ripe: Sequence[Release], *, has_news: bool) -> None:
        """Tell held ranks to go on; what was seen of the others is not true any more with news."""
        for each in ripe:
            if not has_news or each.reason == "max_s":
                now = self.surroundings.now()
                self.surroundings.held.let_go(each, now)
                self._take(
                    Event(now, each.rank, HoldEnded(each.index, each.reason, each.is_pressed))
                )
                world.send(each.rank, Frame(FaultPerformed(each.index, "")))

    def _take_snapshot(self, now: float) -> Ending | None:
        """Have the watchdog take a snapshot; return why the world must end now, None if not.

        Before `go` only the start-up timeout applies: importing a runtime looks like a hang. While
        a fault is still to act, waiting for it is no hang either.
        """
        self.snapshot_s = now
        if "go" not in self.opened or self.surroundings.held.is_active:
            return None
        deadline_s, _ = self._deadline()
        deadline_s = self._within_horizon(now, deadline_s)
        if any(_trouble_s(each) is not None for each in self.facts):
            has_settled = self.surroundings.watch.has_settled(
                now, self.facts, deadline_s=deadline_s
            )
            return "settled" if has_settled else None
        # A fault ends with its rank's process; what the server does to the network outlives it.
        events = [
            event
            for each in self.facts
            for event in each.active_faults
            if not each.is_gone or (isinstance(event.body, FaultChanged) and event.body.network)
        ]
        if has_pending_actions(events, now) or self._are_leaving(now):
            return None
        ending_found = self.surroundings.watch.check(now, self.facts, deadline_s=deadline_s)
        if self.spec.command and ending_found is None and self._lets_leave(now):
            return None
        is_planned = ending_found == "stopped" and continued_by_plan(events)
        return None if is_planned else ending_found

    def _lets_leave(self, now: float) -> bool:
        """Let ranks leave whose script is over, if others may wait for that; return if there are.

        They have kept their connections so that ranks in operations with them are found to wait for
        them. Ranks in no operation may wait for the end of a file or of a process instead.
        """
        over = {each.rank for each in self.facts if each.is_past_body and not each.is_gone}
        over -= self.leaving | ({0} if self.surroundings.primary_leaves_last else set())
        rest = [each.rank for each in self.facts if not each.is_past_body]
        watch = self.surroundings.watch
        is_time = watch.quiet_s(now) >= QUIET_BEFORE_LEAVING_S
        if not (is_time and over and rest) or watch.has_operations(rest):
            return False
        self.leaving, self.leaving_s = self.leaving | over, now
        watch.begin_anew()
        return True

    def _are_leaving(self, now: float) -> bool:
        return now < self.leaving_s + LEAVE_S and any(
            not self.facts[rank].is_gone for rank in self.leaving
        )

    def _dump(self, world: RunningWorld) -> None:
        """Take the last snapshot, then the stacks, which disturb the ranks."""
        self.decided_s = self.surroundings.now()
        self.observed = self.surroundings.watch.close(self.decided_s, self.facts)
        self._take_stacks(world)
        self.detected_s = self.surroundings.now()

    def _take_stacks(self, world: RunningWorld) -> None:
        alive = [each.rank for each in self.facts if each.can_dump and not each.is_gone]
        last = self.observed.snapshots[-1].ranks if self.observed.snapshots else ()
        computing = {seen.rank for seen in last if seen.label == "RUNNING" and seen.holds_gil}
        self.dumps = self.surroundings.dumper(world, alive, self.surroundings.directory, computing)

    def _take(self, event: Event) -> None:
        self.history.append(event)
        before = _trouble_s(self.facts[event.rank])
        self.facts[event.rank] = advance(self.facts[event.rank], event)
        self.surroundings.held.note(event)
        if before is None and _trouble_s(self.facts[event.rank]) is not None:
            self.surroundings.watch.note_failure(self.surroundings.now(), self.facts)

    def _open_gates(self, world: RunningWorld, exchange: HarnessCollectives) -> None:
        """Open each gate when all ranks wait at it or can no longer reach it."""
        now = self.surroundings.now()
        if all(each.ready_s is not None for each in self.facts):
            self._open("go", world, self.facts, now)
        for each in [self.facts[rank] for rank in self.leaving]:
            self._release(each, "teardown", world, now)
            if each.is_finished:
                self._release(each, "exit", world, now)
        if all(each.is_past_body for each in self.facts):
            if "teardown" not in self.opened:
                exchange.readmit(each.rank for each in self.facts if not each.is_finished)
            if self._is_network_restored(world):
                self._open("teardown", world, self.facts, now)
        if all(each.is_finished for each in self.facts):
            others = [each for each in self.facts if each.rank != 0]
            self._open("exit", world, others, now)
            if not self.surroundings.primary_leaves_last or all(each.is_gone for each in others):
                self._open("exit", world, self.facts[:1], now)

    def _is_network_restored(self, world: RunningWorld) -> bool:
        """Whether no fault disturbs the network any more: a fault must not fail the teardown."""
        if "teardown" in self.opened or not self.spec.disturbs_network:
            return True
        if not self.is_restoring_network:
            self.is_restoring_network = True
            world.request(Calm())
        changes = (each.body for each in self.history if isinstance(each.body, NetworkChanged))
        return any(each.index is None for each in changes)

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
        world.send(facts.rank, Frame(OpenGate(gate)))
        self._take(Event(now, facts.rank, Released(gate)))
        return True

    def _next_deadline(self, *, is_patient: bool = False) -> tuple[float, Ending]:
        """Return the time of the next deadline, and the ending it causes.

        The grace period after a rank has failed restarts at each gate that opens: the ranks have
        only just continued. `is_patient`: without that of `patience_s`.
        """
        last_gate_s = max(self.opened.values(), default=0.0)
        found = [self._deadline()]
        if self.surroundings.patience_s is not None and "go" in self.opened and not is_patient:
            since_s = max(self.opened["go"], self.surroundings.held.let_go_s)
            found.append((since_s + self.surroundings.patience_s, "overrun"))
        for each in self.facts:
            if (failed_s := _trouble_s(each)) is not None:
                grace_s = GRACE_AFTER_DEATH_S if each.has_died else GRACE_AFTER_RAISE_S
                found.append((max(failed_s, last_gate_s) + grace_s, "settled"))
        return min(found)

    def _deadline(self) -> tuple[float, Ending]:
        if "go" in self.opened:
            return self.opened["go"] + self.spec.timeout_s, "overrun"
        return self.started_s + self.spec.startup_timeout_s, "startup-overrun"

    def _within_horizon(self, now: float, deadline_s: float) -> float:
        """Return the deadline, or the world's horizon if that comes first."""
        horizon_s = self.spec.horizon_s
        return deadline_s if horizon_s is None else min(deadline_s, now + horizon_s)

    def _limit_s(self) -> float:
        patience_s = self.surroundings.patience_s
        return min(self.spec.timeout_s, patience_s or self.spec.timeout_s)

    def _why(self, ending: Ending) -> str:
        """Return why the harness ends the world now, in words."""
        reasons = {
            "startup-overrun": f"start-up took longer than {self.spec.startup_timeout_s:g} s",
            "overrun": f"took longer than {self._limit_s():g} s",
            "proof": f"nothing can move {self.spec.deadline_text}",
            "mismatch": "ranks are in operations that can never match",
            "stopped": "a rank is stopped",
        }
        if ending in reasons:
            return f"{reasons[ending]}: {self._unfinished()}"
        dead = [each.rank for each in self.facts if each.has_died]
        if dead:
            return f"{rank_set(dead)} died, then {self._unfinished()}: ended after a grace"
        # The first to raise may only have lost another rank: the culprit is found later.
        return "a rank had failed: the others were ended after a grace"

    def _unfinished(self) -> str:
        """Name the ranks that have not reached the gate at which the others wait."""
        if "go" not in self.opened:
            return f"{rank_set(e.rank for e in self.facts if e.ready_s is None)} not ready"
        late = [each for each in self.facts if not each.is_past_body]
        late = late or [each for each in self.facts if not each.is_finished]
        late = late or [each for each in self.facts if not each.is_gone]
        phase = phase_name(late[0].phase, self.spec.subject)
        return f"{rank_set(each.rank for each in late)} still in {phase}"

    def _end(self, world: RunningWorld) -> None:
        """End the world, and keep only those of its last events that the test itself caused.

        After the decision the harness influences the ranks: for example, requesting the stacks of
        a stopped rank continues it.
        """
        decided_s = self.decided_s or self.surroundings.now()
        ending = world.end(grace_s=SIGTERM_GRACE_S)
        self.leftovers = ending.leftovers
        for event in map(self.surroundings.jumps.in_world_time, ending.events):
            if isinstance(event.body, Exited):
                body = replace(event.body, by_harness=True)
                self._take(Event(event.at_s, event.rank, body))
            elif event.at_s <= decided_s:
                self._take(event)


def _interruption(error: KeyboardInterrupt) -> str:
    """Return what has ended the run: a signal, where the exception names it."""
    return f"interrupted by {str(error) or 'Ctrl-C'}"


def _trouble_s(facts: RankFacts) -> float | None:
    """Return when a rank died or raised, if it did."""
    return facts.exited_s if facts.has_died else facts.failed_s


def _answers(
    exchange: HarnessCollectives, event: Event, facts: RankFacts, subject: Subject
) -> Mapping[int, Frame[ToRank]]:
    """Return the frames to send because of `event`, with the ranks that get them."""
    match event.body:
        case ExchangeEntered() as entered:
            return exchange.enter(event.rank, entered, event.payload)
        case Exited() as status:
            return exchange.mark_lost(event.rank, describe_exit(status))
        case (ReportMade() | Interrupted()) as failure if facts.failure is failure:
            error = failure.error
            return exchange.mark_lost(event.rank, f"raised {error.type}" if error else "failed")
        case Parked():
            return exchange.mark_lost(event.rank, f"has left the {subject}")
        case Done():
            return exchange.mark_lost(event.rank, "has finished its teardown")
    return {}


def _perform(world: RunningWorld, event: Event, jumps: Jumps) -> None:
    """Perform the part of a fault that cannot be performed in its rank."""
    match event.body:
        case FaultChanged(pause=Pause() as pause):
            world.request(PauseRank(event.rank, jumps.in_machine_time(pause)))
        case FaultChanged(resume=True):
            world.request(PauseRank(event.rank, None))
        case FaultChanged(network=True, index=index):
            world.request(Disturb(event.rank, index))
        case NetworkChanged(int() as index, error):
            world.send(event.rank, Frame(FaultPerformed(index, error)))


def _tail(path: Path, size: int = 20_000) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", "backslashreplace")
    except OSError:
        return ""
