"""Looks at a running job until it stops moving."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pytest_multihost.blame import Judgement
from pytest_multihost.live.processes import Job
from pytest_multihost.live.reader import JobReader
from pytest_multihost.model.operation import rank_set
from pytest_multihost.model.process import KernelSnapshot

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
    reader: JobReader,
    judge: Callable[[], Judgement],
    say: Callable[[str], None],
    *,
    patience_s: float = PATIENCE_S,
    interval_s: float = INTERVAL_S,
) -> Judgement | None:
    """Return the judgement of a job that has stopped moving; None if it has ended.

    Args:
        job: Its ranks that can be seen.
        reader: Reads them.
        judge: Judges it as it is now.
        say: Takes a line whenever something has changed.
        patience_s: How long ranks wait for one that goes on before that counts as a hang as well.
        interval_s: Between two looks.
    """
    waits, said = _Waits(), ""
    judged_s, finding = float("-inf"), _Finding()
    while True:
        now = reader.shallow_snapshot()
        waits.add(now)
        if all(each.is_dead for each in now.processes):
            return None
        still = {r: s for r, s in waits.since_s.items() if now.at_s - s >= STILL_S}
        if still and now.at_s - judged_s >= _BETWEEN_S:
            judged_s, judged = now.at_s, judge()
            finding = finding.after(judged, now.at_s)
            if judged.finding.outcome == "hung":
                return judged
            if finding.has_lasted(still, now.at_s, patience_s):
                return _hung(judged, now.at_s - finding.since_s)
        if (line := _line(job, still)) != said:
            say(line)
            said = line
        time.sleep(interval_s)


@dataclass(frozen=True, slots=True)
class _Finding:
    """Which ranks were found to wait for which, and since when that has not changed."""

    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    since_s: float = 0.0

    def after(self, judged: Judgement, at_s: float) -> _Finding:
        """Return what is found by the next judgement."""
        found = judged.diagnosis
        ranks = (found.culprits, found.waiting) if found is not None else ((), ())
        return self if ranks == (self.culprits, self.waiting) else _Finding(*ranks, at_s)

    def has_lasted(self, still: Mapping[int, float], at_s: float, seconds: float) -> bool:
        """Return whether it is so for long, and one side has not moved meanwhile.

        A rank that is always the slowest is always found, and then both sides move.
        """
        return at_s - self.since_s >= seconds and any(
            bool(side) and all(at_s - still.get(each, at_s) >= seconds for each in side)
            for side in (self.culprits, self.waiting)
        )


def _hung(judged: Judgement, seconds: float) -> Judgement:
    """Return a judgement as that of a job that hangs: it was so for long."""
    found = judged.diagnosis
    summary = found.summary if found is not None else ""
    reason = f"{summary}; it has been so for {seconds:.0f} s"
    finding = replace(judged.finding, outcome="hung", status="failed", reason=reason)
    return replace(judged, finding=finding)


def _line(job: Job, still: Mapping[int, float]) -> str:
    if not still:
        return "all ranks move"
    if still.keys() >= job.pids.keys():
        return "no rank moves"
    return f"{rank_set(still)} stand{'s' if len(still) == 1 else ''} still, the others move"
