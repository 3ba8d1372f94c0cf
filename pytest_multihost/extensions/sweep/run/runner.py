"""Runs the steps of one sweep in the lanes, as many at a time as the machine has room for."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.extensions.sweep.lanes import LanePool, WaitMeasured, WorldRun
from pytest_multihost.extensions.sweep.result import DisturbedRun
from pytest_multihost.extensions.sweep.run.live_line import TICK_S, SweepLine, sweep_progress
from pytest_multihost.extensions.sweep.run.one_sweep import OneSweep, SweepStep
from pytest_multihost.extensions.sweep.run.worlds import MOST_LANES, Worlds

_MOST = 1.1
"""The longest duration of a sweep, in budgets, besides the time of one undisturbed run. The promise
is 1.2: worlds that still run then have to end, and the results are written."""


_SERVER_POLL_S = 0.05
"""How often to ask whether a server is ready while nothing runs."""


def _processors() -> int:
    return len(os.sched_getaffinity(0))


_MOST_RANKS = 256
"""The maximum of ranks at a time: each takes memory, even if it only waits."""


def has_room(running: int, ranks: int) -> bool:
    """Return whether another world can be started beside the running ones.

    Hung and held ranks use no processor, so the number of runnable threads of the machine decides,
    as long as there is memory for so many ranks.

    Args:
        ranks: The ranks of each of them.
    """
    if running and (running + 1) * ranks > _MOST_RANKS:
        return False
    processors = _processors()
    if running < processors + 2:
        return True
    runnable, _, _ = Path("/proc/loadavg").read_text().split()[3].partition("/")
    return running < MOST_LANES and int(runnable) <= 2 * processors


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs the steps of one sweep in the lanes.

    Attributes:
        began_s: The start of the sweep, by the monotonic clock.
        budget_s: The time for the whole sweep.
        lost: The reasons why worlds could not be run.
        most: The largest number of worlds that ran at a time.
    """

    lanes: LanePool
    sweep: OneSweep
    worlds: Worlds
    scratch: Path
    began_s: float
    budget_s: float
    line: SweepLine
    lost: list[str] = field(default_factory=list)
    most: int = 0
    _steps: dict[int, SweepStep] = field(default_factory=dict)
    _overdue_s: float = math.inf

    def run(self) -> None:
        """Run all steps for which there is time, and end the running ones when it is over.

        Raises:
            LaunchError: A lane or a server could not be started.
            KeyboardInterrupt: Ctrl-C or SIGTERM.
        """
        self._fill()
        while self._steps or self._awaits_server():
            self._take_answers()
            if self._left_s <= 0:
                self._cut()
                return
            if self.sweep.weaknesses or time.monotonic() > self._overdue_s:
                self.worlds.prepare_clock(self.sweep, self._steps.values())
            self._fill()
            self._show()

    def _take_answers(self) -> None:
        """Wait for worlds that end; if none runs, for a moment, in which a server may start."""
        if not self._steps:
            time.sleep(_SERVER_POLL_S)
            return
        for request, answer in self.lanes.wait(min(TICK_S, self._left_s)):
            step = self._steps.pop(request.serial)
            if isinstance(answer, WorldRun):
                self.sweep.take(step, replace(answer.run, disturbance=step.disturbance))
            elif isinstance(answer, WaitMeasured):
                self.sweep.take_end(step, answer.end)
            elif not self.sweep.lose(step):
                self.lost.append(answer.why)

    @property
    def _left_s(self) -> float:
        """The seconds until everything that still runs is ended."""
        most_s = _MOST * self.budget_s + self.worlds.usual_s
        return self.began_s + most_s - time.monotonic()

    def _cut(self) -> None:
        """End the worlds that still run."""
        if not self._steps:
            return
        self.lanes.stop()
        for step in self._steps.values():
            self.sweep.cut(step)
        self._steps.clear()

    def _fill(self) -> None:
        """Begin steps while the machine has room for more worlds."""
        ranks = self.worlds.attempt.judged.result.spec.size
        while has_room(len(self._steps), ranks):
            step = self.sweep.next_step(
                has_time=self._has_time(), is_ready=self.worlds.is_ready_for, fits=self._fits
            )
            if step is None:
                return
            try:
                launchers = self.worlds.launchers(step)
            except LaunchError as error:
                if step.clock != "jumps":
                    raise
                self.sweep.lose_clock(step, error.happened)
                continue
            self.lanes.grow(len(self._steps) + 1)
            request = self.worlds.request(step, self.scratch, self._left_s)
            self._steps[request.serial] = step
            self.most = max(self.most, len(self._steps))
            self._overdue_s = time.monotonic() + 1.0 + 2 * self.worlds.usual_s
            self.lanes.begin(request, launchers)

    def _awaits_server(self) -> bool:
        """Return whether a step could begin if its server were ready."""
        return self.sweep.has_next(has_time=self._has_time(), fits=self._fits)

    def _has_time(self) -> bool:
        """Return whether the budget allows another disturbance."""
        left_s = self.began_s + self.budget_s - time.monotonic()
        return left_s > self._reserve_s()

    def _fits(self, step: SweepStep, witness: DisturbedRun) -> bool:
        """Return whether a witness can run again in the time that is left."""
        return self.worlds.forecast_s(step, witness) < self._left_s

    def _reserve_s(self) -> float:
        """Return the estimated time for all that is done last, at most half of the budget.

        Another disturbance may take as long as the test does. The witnesses are repeated, and the
        ends of their waits are measured.
        """
        steps = sum(
            self.worlds.forecast_s(step, run) for step, run in self.sweep.steps_of_witnesses()
        )
        return min(steps / (_processors() + 2) + self.worlds.usual_s, self.budget_s / 2)

    def _show(self) -> None:
        now_s = time.monotonic()
        done = len(self.sweep.runs)
        planned = done + len(self.sweep.rest) + len(self._steps)
        text = sweep_progress(
            done,
            planned,
            weaknesses=len(self.sweep.weaknesses),
            left_s=max(0.0, self.began_s + self.budget_s - now_s),
        )
        self.line.show(now_s, text)
