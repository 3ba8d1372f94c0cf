"""Decides what one sweep runs next, and keeps its results; uses no processes and no files.

A sweep first runs every disturbance of the plan once, several at a time, while the budget lasts.
Then it runs the witness of each unproven weakness again, alone and with the test's own timeout,
because a slow machine with other worlds may look like a hang. Finally it repeats the witness of
each weakness; if a repeat does not show the weakness, the next mildest run becomes the witness.
Last it measures what ends the wait of each weakness: see `rating`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pytest_multihost.extensions.sweep.rest import order_rest
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    Disturbance,
    DisturbedRun,
    LeftOut,
    WaitEnd,
    Weakness,
)
from pytest_multihost.extensions.sweep.weaknesses import find_weaknesses, next_repeat

Purpose = Literal["sweep", "confirm", "repeat", "measure", "measure by clock"]
"""The reason to run a world; by clock: with a clock that jumps."""

Measure = Literal["measure", "measure by clock"]

_MAX_CONFIRMS = 3
"""The number of runs of one weakness that run again alone before it is dropped."""

_MAX_TRIES = 2
"""The number of attempts to run a world that the harness loses."""


@dataclass(frozen=True, slots=True)
class Step:
    """A world to run.

    Attributes:
        artifacts: Number of the folder for its artifacts; None if they are not kept.
    """

    disturbance: Disturbance
    purpose: Purpose
    artifacts: int | None = None

    @property
    def is_measurement(self) -> bool:
        """Whether the world shows what ends a wait, and is not judged."""
        return self.purpose in get_args(Measure)


@dataclass(slots=True)
class OneSweep:
    """The sweep of one test.

    Attributes:
        rest: The disturbances that have not run yet.
        runs: One judged run of each disturbance.
        measures: Returns how to measure what ends the wait of a witness, in this order; the first
            that measures it is enough.
        ends: What ends the waits of witnesses, as far as it was measured.
    """

    rest: deque[Disturbance]
    runs: list[DisturbedRun] = field(default_factory=list)
    repeats: list[DisturbedRun] = field(default_factory=list)
    measures: Callable[[DisturbedRun], Sequence[Measure]] = lambda _witness: ()
    ends: dict[Disturbance, WaitEnd] = field(default_factory=dict)
    _measured: set[tuple[Disturbance, Purpose]] = field(default_factory=set)
    _known: list[Disturbance] = field(default_factory=list)
    _left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    _tries: Counter[Disturbance] = field(default_factory=Counter)
    _again: deque[Step] = field(default_factory=deque)
    _running: list[Step] = field(default_factory=list)
    _confirmed: set[Disturbance] = field(default_factory=set)
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
        has_budget: bool = True,
        is_ready: Callable[[Disturbance], bool] = lambda _: True,
    ) -> Step | None:
        """Return the next world to run beside the running ones; None if there is none now.

        Args:
            has_time: Whether the budget allows another disturbance.
            is_ready: Returns whether a disturbance could be run without waiting for a server. One
                for which it cannot is returned if there is nothing else, and nothing runs.
        """
        step = self._next(has_time=has_time, is_ready=is_ready) or self._next_measure(
            has_budget=has_budget
        )
        if step is not None:
            self._running.append(step)
        return step

    def _next(self, *, has_time: bool, is_ready: Callable[[Disturbance], bool]) -> Step | None:
        if any(each.purpose == "confirm" for each in self._running):
            return None  # it runs alone
        if self._again:
            return self._again.popleft()
        self._lacked_time |= bool(self.rest) and not has_time
        unready = None
        running = [each.disturbance for each in self._running if each.purpose == "sweep"]
        for each in self.rest if has_time else ():
            if not order_rest([each], self.runs, running):
                continue
            if is_ready(each):
                return self._first_run(each)
            unready = unready or each
        if (again := self._next_again()) is not None or self._running:
            return again
        return self._first_run(unready) if unready is not None else None

    def _first_run(self, disturbance: Disturbance) -> Step:
        self.rest.remove(disturbance)
        return Step(disturbance, "sweep")

    def _next_again(self) -> Step | None:
        """Return a step that runs a witness again; None if there is none now."""
        doubtful = self._doubtful()
        if doubtful is None:
            return self._next_repeat()  # perhaps in vain: a running world may be a milder witness
        return None if self._running else self._step(doubtful.disturbance, "confirm")

    def _doubtful(self) -> DisturbedRun | None:
        """Return the witness of a weakness that was neither proven nor run again alone."""
        return next(
            (
                each.witness
                for each in self.weaknesses
                if not each.witness.is_proven
                and not any(self.runs[i].disturbance in self._confirmed for i in each.shown_by)
            ),
            None,
        )

    def _next_repeat(self) -> Step | None:
        counted = [
            replace(each, repeated=(self._asked[each.witness.disturbance], 0))
            for each in self.weaknesses
        ]
        disturbance = next_repeat(counted)
        if disturbance is None:
            return None
        return self._step(disturbance, "repeat")

    def _next_measure(self, *, has_budget: bool) -> Step | None:
        """Return a step that measures what ends the wait of a witness; None if there is none now.

        Nothing is measured before all witnesses have been repeated: a repeat may make another run
        the witness.
        """
        if any(each.purpose in ("confirm", "repeat") for each in self._running):
            return None
        for weakness in self.weaknesses:
            run = weakness.witness
            if run.outcome == "wrong" or not weakness.is_confirmed:
                continue
            if (purpose := self._due_measure(run, has_budget=has_budget)) is not None:
                self._measured.add((run.disturbance, purpose))
                return Step(run.disturbance, purpose)
        return None

    def _due_measure(self, run: DisturbedRun, *, has_budget: bool) -> Measure | None:
        """Return how to measure next what ends the wait of a witness; None if that is done."""
        key = run.disturbance
        end = self.ends.get(key)
        is_running = any(each.disturbance == key and each.is_measurement for each in self._running)
        if is_running or (end is not None and end.by != "not measured"):
            return None
        due = (each for each in self.measures(run) if (key, each) not in self._measured)
        purpose = next(due, None)
        return purpose if purpose == "measure" or has_budget else None

    def take_end(self, step: Step, end: WaitEnd) -> None:
        """Add the result of a step that measures what ends the wait."""
        self._running.remove(step)
        self.ends[step.disturbance] = end

    def _step(self, disturbance: Disturbance, purpose: Purpose) -> Step:
        """Return a step that runs a witness again; the first such step keeps artifacts."""
        self._asked[disturbance] += 1
        if disturbance in self._kept:
            return Step(disturbance, purpose)
        self._kept.add(disturbance)
        self._last_artifacts += 1
        return Step(disturbance, purpose, self._last_artifacts)

    def take(self, step: Step, run: DisturbedRun) -> None:
        """Add the result of a step."""
        self._running.remove(step)
        self._found = None
        if step.artifacts is not None and run.directory is None:  # no weakness, so none are kept
            self._kept.discard(step.disturbance)
        if step.purpose == "repeat":
            self.repeats.append(run)
        elif step.purpose == "confirm":
            self._confirm(run)
        else:
            self.runs.append(run)
            self._reorder(self.rest)

    def _reorder(self, rest: Iterable[Disturbance]) -> None:
        """Order the remaining disturbances, and set aside those that would show nothing new."""
        every = tuple(rest)
        self.rest = deque(order_rest(every, self.runs))
        useful = set(self.rest)
        self._known += [each for each in every if each not in useful]

    def _confirm(self, run: DisturbedRun) -> None:
        """Replace a run by the same run made alone.

        If the run alone shows no weakness, another run of the same weakness is tried. After a few
        tries without a weakness, the other runs are dropped as doubtful.
        """
        self._confirmed.add(run.disturbance)
        group = next(
            each for each in self.weaknesses if each.witness.disturbance == run.disturbance
        )
        index = next(i for i, e in enumerate(self.runs) if e.disturbance == run.disturbance)
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

    def lose(self, step: Step) -> bool:
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

    @property
    def last_s(self) -> float:
        """The estimated time to run one world for each weakness, from the runs so far."""
        weak = [each.seconds for each in self.runs if each.outcome in WEAK]
        return sum(weak) / len(weak) * len(self.weaknesses) if weak else 0.0

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
