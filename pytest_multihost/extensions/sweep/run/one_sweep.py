"""Decides the next run of one sweep, and keeps its results; uses no processes and no files.

A sweep first runs every disturbance of the plan once, several at a time, until the rest of its
budget is needed for the next steps. Then it confirms each unproven weakness: its witness runs again
on a clock that jumps, where a wait for the test's timeout takes no time; without such a clock it
runs alone, because a slow machine with other worlds may look like a hang. Next it repeats the
witness of each weakness once, and measures the end of the wait: see `rating`. The rest of the time
is for more repeats; if one does not show the weakness, the next mildest run becomes the witness.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Literal

from pytest_multihost.extensions.sweep.rest import order_rest
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    Disturbance,
    DisturbedRun,
    LeftOut,
    WaitEnd,
    Weakness,
)
from pytest_multihost.extensions.sweep.weaknesses import (
    REPEATS,
    due_repeats,
    find_weaknesses,
)

Purpose = Literal["sweep", "confirm", "repeat", "measure"]
"""The reason to run a world."""

Clock = Literal["own", "jumps"]
"""The clock of a world: the machine's, as its test asks for, or a clock that jumps over waits."""

OUT_OF_TIME = WaitEnd(by="not measured", name="there was no time left")

_MAX_CONFIRMS = 3
"""The number of runs of one weakness that are tried again before it is dropped."""

_MAX_TRIES = 2
"""The number of attempts to run a world that the harness loses, and of each measurement."""


@dataclass(frozen=True, slots=True)
class SweepStep:
    """A world to run.

    Attributes:
        artifacts: Number of the folder for its artifacts; None if they are not kept.
    """

    disturbance: Disturbance
    purpose: Purpose
    artifacts: int | None = None
    clock: Clock = "own"


@dataclass(slots=True)
class OneSweep:
    """The sweep of one test.

    Attributes:
        rest: The disturbances that have not run yet.
        runs: One judged run of each disturbance.
        measures: Returns the clocks with which to measure the end of a witness's wait, in this
            order; the first that measures it is enough.
        clock_of: Returns the clock on which the witness of an unproven weakness runs again.
        ends: The ends of the waits of witnesses, as far as they were measured.
    """

    rest: deque[Disturbance]
    runs: list[DisturbedRun] = field(default_factory=list)
    repeats: list[DisturbedRun] = field(default_factory=list)
    measures: Callable[[DisturbedRun], Sequence[Clock]] = lambda _witness: ()
    clock_of: Callable[[DisturbedRun], Clock] = lambda _witness: "own"
    ends: dict[Disturbance, WaitEnd] = field(default_factory=dict)
    _measured: Counter[tuple[Disturbance, Clock]] = field(default_factory=Counter)
    _known: list[Disturbance] = field(default_factory=list)
    _left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    _tries: Counter[Disturbance] = field(default_factory=Counter)
    _again: deque[SweepStep] = field(default_factory=deque)
    _running: list[SweepStep] = field(default_factory=list)
    _confirmed: set[Disturbance] = field(default_factory=set)
    _on_clock: dict[Disturbance, Clock] = field(default_factory=dict)
    _refuted: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _asked: Counter[Disturbance] = field(default_factory=Counter)
    _kept: set[Disturbance] = field(default_factory=set)
    _last_artifacts: int = 0
    _found: tuple[Weakness, ...] | None = None
    _lacked_time: bool = False

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """The weaknesses found so far."""
        if self._found is None:
            self._found = find_weaknesses(self.runs, self.repeats)
        return self._found

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The disturbances that were planned and not run."""
        return tuple(
            LeftOut(reason, family, count)
            for (reason, family), count in sorted(self._left_out.items())
        )

    def add(self, disturbances: Iterable[Disturbance]) -> None:
        """Add disturbances to run; sets aside those about which the runs so far say enough."""
        self._reorder((*self.rest, *disturbances))

    def leave_out(self, reason: str, disturbances: Iterable[Disturbance]) -> None:
        """Count disturbances that are not run, with the reason."""
        self._left_out.update((reason, each.family) for each in disturbances)

    def next_step(
        self,
        *,
        has_time: bool,
        is_ready: Callable[[SweepStep], bool] = lambda _: True,
        fits: Callable[[SweepStep, DisturbedRun], bool] = lambda _step, _witness: True,
    ) -> SweepStep | None:
        """Return the next world to run beside the running ones; None if there is none now.

        Args:
            has_time: Whether the budget allows another disturbance.
            is_ready: Returns whether a step could be run without waiting for a server.
            fits: Returns whether the time that is left is enough to run a witness again.
        """
        self._lacked_time |= bool(self.rest) and not has_time
        step = next(filter(is_ready, self._candidates(has_time=has_time, fits=fits)), None)
        if step is None:
            return None
        step = self._begun(step)
        self._running.append(step)
        return step

    def has_next(
        self,
        *,
        has_time: bool,
        fits: Callable[[SweepStep, DisturbedRun], bool] = lambda _s, _w: True,
    ) -> bool:
        """Return whether there is a world to run now, once its server is ready."""
        return any(True for _ in self._candidates(has_time=has_time, fits=fits))

    def _candidates(
        self, *, has_time: bool, fits: Callable[[SweepStep, DisturbedRun], bool]
    ) -> Iterator[SweepStep]:
        """Yield the steps that could begin now, the most urgent first."""
        if any(each.purpose == "confirm" and each.clock == "own" for each in self._running):
            return  # it runs alone
        yield from self._again
        running = [each.disturbance for each in self._running if each.purpose == "sweep"]
        for each in self.rest if has_time else ():
            if order_rest([each], self.runs, running):
                yield SweepStep(each, "sweep")
        yield from (step for step, witness in self._steps_again() if fits(step, witness))

    def _steps_again(self) -> Iterator[tuple[SweepStep, DisturbedRun]]:
        """Yield the steps that run witnesses again now, the most urgent first, with the witness.

        A repeat may be in vain: a running world may become a milder witness.
        """
        doubtful = self._doubtful()
        for witness in doubtful:
            clock = self._clock_of(witness)
            is_begun = any(each.disturbance == witness.disturbance for each in self._running)
            if not is_begun and (clock == "jumps" or not self._running):
                yield SweepStep(witness.disturbance, "confirm", clock=clock), witness
        if doubtful:
            return
        yield from self._repeats(1)
        yield from self._measurements()
        yield from self._repeats(REPEATS)

    def _begun(self, step: SweepStep) -> SweepStep:
        """Count a step that is about to begin; the first of a witness keeps its artifacts."""
        if step in self._again:
            self._again.remove(step)
            return step
        if step.purpose == "sweep":
            self.rest.remove(step.disturbance)
            return step
        if step.purpose == "measure":
            self._measured[step.disturbance, step.clock] += 1
            return step
        self._asked[step.disturbance] += 1
        if step.disturbance in self._kept:
            return step
        self._kept.add(step.disturbance)
        self._last_artifacts += 1
        return replace(step, artifacts=self._last_artifacts)

    def _clock_of(self, witness: DisturbedRun) -> Clock:
        """Return the clock on which a witness runs again."""
        if witness.disturbance in self._on_clock:
            return self._on_clock[witness.disturbance]
        return "own" if witness.is_proven else self.clock_of(witness)

    def _doubtful(self) -> list[DisturbedRun]:
        """Return the witnesses of the weaknesses that were neither proven nor confirmed."""
        return [
            each.witness
            for each in self.weaknesses
            if not each.witness.is_proven
            and not any(self.runs[i].disturbance in self._confirmed for i in each.shown_by)
        ]

    def _repeats(self, times: int) -> Iterator[tuple[SweepStep, DisturbedRun]]:
        """Yield a repeat of each witness that has not been repeated so often, the rarest first."""
        counted = [
            replace(each, repeated=(self._asked[each.witness.disturbance], 0))
            for each in self.weaknesses
        ]
        for weakness in due_repeats(counted, times):
            witness = weakness.witness
            yield SweepStep(witness.disturbance, "repeat", clock=self._clock_of(witness)), witness

    def _measurements(self) -> Iterator[tuple[SweepStep, DisturbedRun]]:
        """Yield a measurement of the wait's end, for each witness that was repeated."""
        for weakness in self.weaknesses:
            witness = weakness.witness
            if witness.outcome == "wrong" or not weakness.is_confirmed:
                continue
            if (clock := self._due_clock(witness)) is not None:
                yield SweepStep(witness.disturbance, "measure", clock=clock), witness

    def _due_clock(self, witness: DisturbedRun) -> Clock | None:
        """Return the clock with which to measure a wait's end next; None if that is done.

        A measurement that has measured nothing is made again, after those with other clocks.
        """
        key = witness.disturbance
        end = self.ends.get(key)
        is_running = any(e.disturbance == key and e.purpose == "measure" for e in self._running)
        if is_running or (end is not None and end.by != "not measured"):
            return None
        tries = {clock: self._measured[key, clock] for clock in self.measures(witness)}
        clock = min(tries, key=lambda each: tries[each], default=None)
        return clock if clock is not None and tries[clock] < _MAX_TRIES else None

    def take_end(self, step: SweepStep, end: WaitEnd) -> None:
        """Add the result of a step that measures the end of the wait."""
        self._running.remove(step)
        self.ends[step.disturbance] = end

    def take(self, step: SweepStep, run: DisturbedRun) -> None:
        """Add the result of a step."""
        self._running.remove(step)
        self._found = None
        if step.artifacts is not None and run.directory is None:  # no weakness, so none are kept
            self._kept.discard(step.disturbance)
        if step.purpose == "repeat":
            self.repeats.append(run)
        elif step.purpose == "confirm" and step.clock == "jumps" and run.outcome not in WEAK:
            self._on_clock[step.disturbance] = "own"  # the jumps may be why
        elif step.purpose == "confirm":
            self._on_clock[step.disturbance] = step.clock
            self._confirm(run)
        else:
            self.runs.append(run)
            self._reorder(self.rest)

    def _reorder(self, rest: Iterable[Disturbance]) -> None:
        """Order the remaining disturbances, and set needless ones aside."""
        every = tuple(rest)
        self.rest = deque(order_rest(every, self.runs))
        useful = set(self.rest)
        self._known += [each for each in every if each not in useful]

    def _confirm(self, run: DisturbedRun) -> None:
        """Replace a run by the run that confirms or refutes it.

        If it shows no weakness, another run of the same weakness is tried. After a few tries
        without a weakness, the other runs are dropped as doubtful.
        """
        self._confirmed.add(run.disturbance)
        found = (i for i, each in enumerate(self.runs) if each.disturbance == run.disturbance)
        index = next(found, None)
        if index is None:  # dropped as doubtful while this world ran
            return
        # By now a run that ended meanwhile may be the witness of this weakness.
        group = next(each for each in self.weaknesses if index in each.shown_by)
        self.runs[index] = run
        self._found = None
        if run.outcome in WEAK:
            self.repeats.append(run)
            return
        self._refuted[group.witness.weakness_key] += 1
        if self._refuted[group.witness.weakness_key] < _MAX_CONFIRMS:
            return
        unknown = [
            self.runs[each]
            for each in group.shown_by
            if each != index and not self.runs[each].is_proven
        ]
        self.leave_out("doubtful", (each.disturbance for each in unknown))
        self.runs = [each for each in self.runs if each not in unknown]
        known, self._known = self._known, []
        self._reorder((*self.rest, *known))

    def lose(self, step: SweepStep) -> bool:
        """Record that the harness broke during a step; return whether the step is tried again."""
        self._running.remove(step)
        self._tries[step.disturbance] += 1
        if self._tries[step.disturbance] < _MAX_TRIES:
            self._again.append(step)
            return True
        if step.purpose == "sweep":
            self.leave_out("lost", [step.disturbance])
        elif step.purpose == "confirm":
            self._confirmed.add(step.disturbance)
        return False

    def lose_clock(self, step: SweepStep, why: str) -> None:
        """Record that no server could start a world whose clock jumps."""
        if step.purpose == "measure":
            self.take_end(step, WaitEnd(by="not measured", name=why))
            return
        self._running.remove(step)
        self._on_clock[step.disturbance] = "own"

    def steps_of_witnesses(self) -> Iterator[tuple[SweepStep, DisturbedRun]]:
        """Yield all steps that run the witnesses found so far again, each with its witness."""
        for each in self.weaknesses:
            witness = each.witness
            again = SweepStep(witness.disturbance, "repeat", clock=self._clock_of(witness))
            yield from repeat((again, witness), REPEATS)
            for clock in self.measures(witness)[:1]:
                yield SweepStep(witness.disturbance, "measure", clock=clock), witness

    def cut(self, step: SweepStep) -> None:
        """Record that a world was ended because the time of the sweep was over."""
        self._running.remove(step)
        self._lacked_time = True
        if step.purpose == "sweep":
            self.leave_out("budget", [step.disturbance])
        elif step.purpose == "measure":
            self.ends.setdefault(step.disturbance, OUT_OF_TIME)

    def stop(self, reason: str) -> None:
        """Skip all remaining disturbances, with a reason.

        The reason "budget" is only that of a sweep that lacked time; without it, the remaining ones
        are redundant.
        """
        if reason == "budget" and not self._lacked_time:
            reason = "known"
        waiting = [e.disturbance for e in (*self._again, *self._running) if e.purpose == "sweep"]
        self.leave_out(reason, (*waiting, *self.rest))
        self.leave_out("known", self._known)
        self._known.clear()
        self._again.clear()
        self._running.clear()
        self.rest.clear()

    def with_directories(self) -> tuple[Weakness, ...]:
        """Return the weaknesses; the directory of each witness has the artifacts of a repeat."""
        kept = {each.disturbance: each.directory for each in self.repeats if each.directory}
        return tuple(
            replace(each, witness=replace(each.witness, directory=kept.get(key)))
            for each in self.weaknesses
            for key in [each.witness.disturbance]
        )

    def unused_directories(self) -> set[str]:
        """Return the directories of repeats whose runs did not become witnesses."""
        used = {each.witness.directory for each in self.with_directories()}
        return {each.directory for each in self.repeats if each.directory} - used


def counts_by_kind(points: Sequence[tuple[str, int]], size: int) -> dict[str, tuple[int, ...]]:
    """Return the number of points that each rank passed, by kind.

    Args:
        points: The kind and rank of each point.
    """
    counts = Counter(points)
    kinds = dict.fromkeys(kind for kind, _ in points)
    return {kind: tuple(counts[kind, rank] for rank in range(size)) for kind in kinds}
