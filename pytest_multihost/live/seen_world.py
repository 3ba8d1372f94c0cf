"""A running job, looked at once and judged as any other world: by its wait-for graph.

Nothing was recorded, so which call of an operation a rank is in is not known, and no rank is
certainly to blame. Ranks that may wait in C++ code of a runtime without a frame of Python's are not
in the graph, nor are ranks on other machines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pytest_multihost.blame import Judgement, judge_world
from pytest_multihost.live.processes import Job, not_here
from pytest_multihost.live.waits import SeenWait, seen_wait
from pytest_multihost.model.operation import Operations, rank_set
from pytest_multihost.model.result import RankSnapshot, WorldResult, WorldSnapshot
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.model.stack import Dump, SourceContext, innermost_user_frame
from pytest_multihost.outcome import Finding, RankFacts, Symptoms
from pytest_multihost.outcome.finding import suspected_hang
from pytest_multihost.proof import Snapshot
from pytest_multihost.watch import rank_snapshots
from pytest_multihost.watch.kernel import ProcReader
from pytest_multihost.watch.probes.pyspy import spied_stacks

_APART_S = 0.5
"""Between two looks at what threads do: one that computes has used its processor meanwhile."""

_BLOCKED = frozenset({"BLOCKED", "IO"})
_CANNOT_TELL = (
    "seen from outside and once: nothing tells which call of an operation a rank is in, nor of"
    " which group, and a rank that is slow looks as one that hangs"
)


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen of a job."""

    at_s: float
    ranks: tuple[RankSnapshot, ...]
    dumps: tuple[Dump, ...]
    unread: Mapping[int, str]


def judge_job(job: Job, name: str, context: SourceContext) -> Judgement:
    """Return the judgement of a running job.

    Args:
        job: Its ranks here.
        name: What the reader calls it.
        context: Names files, and reads lines of them.
    """
    look = _look(job)
    waits = dict(_waits(look, job, context))
    unclear = {rank for rank, each in waits.items() if each.is_unclear}
    unseen = frozenset(unclear | (set(range(job.size)) - job.pids.keys()))
    result = _result(job, name, look, waits)
    finding = _finding(job)
    judged = judge_world(result, Symptoms(), context, finding=finding, unseen=unseen)
    found = judged.diagnosis
    if found is None or not any(each.operation for each in waits.values()):
        reason = "no rank is seen to wait for another one"
        finding = replace(finding, outcome="passed", status="passed", reason=reason)
        return replace(judged, diagnosis=None, finding=finding)
    confidence = "likely" if found.confidence == "certain" else found.confidence
    notes = (*found.notes, *_notes(job, look, unclear))
    return replace(judged, diagnosis=replace(found, confidence=confidence, notes=notes))


def _look(job: Job) -> _Look:
    """Read what the ranks do, twice, and their stacks in between."""
    reader = ProcReader(job.pids)
    first = reader.shallow_snapshot()
    stacks, unread = spied_stacks(job.pids)
    time.sleep(max(0.0, _APART_S - (time.monotonic() - first.at_s)))
    now = reader.shallow_snapshot()
    none = tuple(Operations(rank) for rank in range(job.size))
    return _Look(
        now.at_s, rank_snapshots(Snapshot(first, none), Snapshot(now, none)), stacks, unread
    )


def _waits(look: _Look, job: Job, context: SourceContext) -> Iterator[tuple[int, SeenWait]]:
    dumps = {each.rank: each for each in look.dumps}
    for seen in look.ranks:
        dump = dumps.get(seen.rank)
        frames = dump.main.frames if dump is not None and dump.main is not None else ()
        user = innermost_user_frame(frames)
        source = context.place(user).source if user is not None else ""
        is_blocked = seen.label in _BLOCKED
        wait = seen_wait(frames, source, size=job.size, at_s=look.at_s, is_blocked=is_blocked)
        is_known = seen.label in ("EXITED", "STOPPED") or wait.operation is not None
        yield seen.rank, replace(wait, is_unclear=wait.is_unclear and not is_known)


def _notes(job: Job, look: _Look, unclear: set[int]) -> Iterator[str]:
    if absent := not_here(job):
        yield f"ranks {absent} are not among these processes: nothing is known of them"
    for rank, why in look.unread.items():
        yield f"the stack of rank {rank} could not be read: {why}"
    if here := unclear & job.pids.keys():
        yield f"{rank_set(here)} may wait in C++ code, which Python's stacks do not show"
    yield _CANNOT_TELL


def _result(job: Job, name: str, look: _Look, waits: Mapping[int, SeenWait]) -> WorldResult:
    ranks = tuple(
        replace(each, operations=(wait,))
        if (wait := waits[each.rank].operation) is not None
        else each
        for each in look.ranks
    )
    return WorldResult(
        spec=WorldSpec(
            nodeid=name,
            attempt=1,
            size=job.size,
            backend=job.launcher,
            local_devices=1,
            timeout_s=0.0,
            startup_timeout_s=0.0,
            seed=0,
        ),
        launch="attach",
        started_at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
        started_s=look.at_s,
        ended_s=look.at_s,
        history=(),
        ending="seen",
        dumps=look.dumps,
        snapshots=(WorldSnapshot(at_s=look.at_s, reason="end", ranks=ranks),),
        progress_s=look.at_s,
        detected_s=look.at_s,
    )


def _finding(job: Job) -> Finding:
    ranks = [RankFacts(rank, pid=job.pids.get(rank), phase="call") for rank in range(job.size)]
    return suspected_hang(ranks, f"{len(job.pids)} processes were looked at")
