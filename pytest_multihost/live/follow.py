"""Looks at a running job until it stops moving."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pytest_multihost.blame import Judgement
from pytest_multihost.live.processes import Job
from pytest_multihost.model.operation import rank_set
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.watch.kernel import ProcReader

INTERVAL_S = 2.0
"""Between two looks at main threads: they cost 0.1 ms a rank."""

STILL_S = 3.0
"""How long no main thread has moved before stacks are read, which costs part of a second a rank."""

PATIENCE_S = 60.0
"""How long ranks wait for one that goes on before that counts as a hang as well."""

_BETWEEN_S = 10.0
"""Between two readings of stacks."""


@dataclass(slots=True)
class _Waits:
    """Since when each rank's main thread is in its wait."""

    since_s: dict[int, float] = field(default_factory=dict)
    _keys: dict[int, tuple[object, ...]] = field(default_factory=dict)

    def add(self, seen: KernelSnapshot) -> None:
        """Take note of a snapshot."""
        for rank, process in seen.ranks.items():
            key = process.main.wait_key if process.main is not None else ()
            if self._keys.get(rank) != key:
                self._keys[rank], self.since_s[rank] = key, seen.at_s


def follow(
    job: Job,
    judge: Callable[[], Judgement],
    say: Callable[[str], None],
    *,
    patience_s: float = PATIENCE_S,
    interval_s: float = INTERVAL_S,
) -> Judgement | None:
    """Return the judgement of a job that has stopped moving; None if it has ended.

    Args:
        job: Its ranks here.
        judge: Judges it as it is now.
        say: Takes a line whenever something has changed.
        patience_s: How long ranks wait for one that goes on before that counts as a hang as well.
        interval_s: Between two looks.
    """
    reader, waits, said = ProcReader(job.pids), _Waits(), ""
    judged_s = float("-inf")
    while True:
        now = reader.shallow_snapshot()
        waits.add(now)
        if all(each.is_dead for each in now.processes):
            return None
        still = {r: s for r, s in waits.since_s.items() if now.at_s - s >= STILL_S}
        if still and now.at_s - judged_s >= _BETWEEN_S:
            judged_s, judged = now.at_s, judge()
            if _is_over(judged, still, now.at_s, patience_s):
                return judged
        if (line := _line(job, still)) != said:
            say(line)
            said = line
        time.sleep(interval_s)


def _is_over(judged: Judgement, still: Mapping[int, float], at_s: float, patience_s: float) -> bool:
    """Return whether a job hangs, or some ranks have waited too long for one that goes on."""
    if judged.finding.outcome == "hung":
        return True
    waiting = judged.diagnosis.waiting if judged.diagnosis is not None else ()
    return bool(waiting) and all(at_s - still.get(each, at_s) >= patience_s for each in waiting)


def _line(job: Job, still: Mapping[int, float]) -> str:
    if not still:
        return "all ranks move"
    if still.keys() >= job.pids.keys():
        return "no rank moves"
    return f"{rank_set(still)} stand{'s' if len(still) == 1 else ''} still, the others move"
