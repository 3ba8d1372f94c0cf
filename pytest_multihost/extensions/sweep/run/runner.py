"""Runs the steps of one sweep in the lanes, as many at a time as the machine has room for."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.extensions.sweep.lanes import LanePool, WaitMeasured, WorldRun
from pytest_multihost.extensions.sweep.result import WaitEnd
from pytest_multihost.extensions.sweep.run.live_line import TICK_S, SweepLine, sweep_progress
from pytest_multihost.extensions.sweep.run.one_sweep import OneSweep, Step
from pytest_multihost.extensions.sweep.run.worlds import MOST_LANES, Worlds

_USUAL_MEASURE_S = 6.0
"""The usual real time to measure what ends a wait of minutes."""

_MEASURE_SHARE = 0.5
"""How long measurements may begin after all else is done, in budgets."""


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
        budget_s: The time in which disturbances may be started.
        lost: The reasons why worlds could not be run.
    """

    lanes: LanePool
    sweep: OneSweep
    worlds: Worlds
    scratch: Path
    began_s: float
    budget_s: float
    line: SweepLine
    lost: list[str] = field(default_factory=list)
    _steps: dict[int, Step] = field(default_factory=dict)
    _judged_s: float = 0.0

    def run(self) -> None:
        """Run all steps for which there is time.

        Raises:
            LaunchError: A lane or a server could not be started.
            KeyboardInterrupt: Ctrl-C or SIGTERM.
        """
        self._fill()
        while self._steps:
            for request, answer in self.lanes.wait(TICK_S):
                step = self._steps.pop(request.serial)
                if isinstance(answer, WorldRun):
                    run = replace(answer.run, disturbance=step.disturbance)
                    self.sweep.take(step, run)
                    self._judged_s = time.monotonic()
                elif isinstance(answer, WaitMeasured):
                    self.sweep.take_end(step, answer.end)
                elif not self.sweep.lose(step):
                    self.lost.append(answer.why)
            if self.sweep.weaknesses:
                self.worlds.prepare_clock(self.sweep)
            self._fill()
            self._show()

    def _fill(self) -> None:
        """Begin steps while the machine has room for more worlds."""
        ranks = self.worlds.attempt.judged.result.spec.size
        while has_room(len(self._steps), ranks):
            left_s = self.began_s + self.budget_s - time.monotonic()
            step = self.sweep.next_step(
                has_time=left_s > self._reserve_s(),
                has_budget=time.monotonic() < self._measures_until_s(),
                is_ready=self.worlds.is_ready,
            )
            if step is None:
                return
            try:
                launchers = self.worlds.launchers(step)
            except LaunchError as error:
                if step.purpose != "measure by clock":
                    raise
                self.sweep.take_end(step, WaitEnd(by="not measured", name=error.happened))
                continue
            self.lanes.grow(len(self._steps) + 1)
            request = self.worlds.request(step, self.scratch)
            self._steps[request.serial] = step
            self.lanes.begin(request, launchers)

    def _measures_until_s(self) -> float:
        """Return until when slow measurements may begin."""
        return max(self.began_s, self._judged_s) + _MEASURE_SHARE * self.budget_s

    def _reserve_s(self) -> float:
        """Return the estimated time for all that is done last, at most half of the budget.

        The witnesses are repeated, and what ends their waits is measured.
        """
        count, at_once = len(self.sweep.weaknesses), _processors() + 2
        seconds = self.sweep.last_s * (1 + 5 / at_once) + count * _USUAL_MEASURE_S / at_once
        return min(seconds, self.budget_s / 2)

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
