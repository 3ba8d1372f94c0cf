"""A running job judged as any other world: by its wait-for graph.

Nothing was recorded, so which call of an operation a rank is in is not known, and no rank is
certainly to blame. Ranks that may wait in C++ code of a runtime without a frame of Python's are not
in the graph, nor are ranks on machines that are not looked at. Who is waited for and may go on by
itself is named, and is not said to hang.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

from pytest_multihost.blame import Judgement, judge_world
from pytest_multihost.live.look import Look, look_at
from pytest_multihost.live.motion import HORIZON_S
from pytest_multihost.live.processes import Job, not_here
from pytest_multihost.live.reader import JobReader
from pytest_multihost.model.operation import rank_set
from pytest_multihost.model.result import WorldResult, WorldSnapshot
from pytest_multihost.model.spec import Site, WorldSpec
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.model.verdict import Diagnosis
from pytest_multihost.outcome import Finding, RankFacts, RankFinding, Symptoms
from pytest_multihost.outcome.finding import suspected_hang

_CANNOT_TELL = (
    "seen from outside: nothing tells which call of an operation a rank is in, nor of which group"
    " if it is not the default one"
)
_PROVEN = (
    "proven: no wait in the job can end within the next {:.0f} s; which call of an operation a rank"
    " is in cannot be seen from outside"
)
_MAX_BLOCKERS = 3
_NOBODY = "no rank is seen to wait for another one"
_ENDED = "has ended: there is no such process any more"


def judge_job(
    job: Job, reader: JobReader, context: SourceContext, *, reads_native: bool = False
) -> Judgement:
    """Return the judgement of a running job; its outcome is hung only if nothing seems to move.

    Args:
        job: Its ranks that can be seen.
        reader: Reads them.
        context: Names files, and reads lines of those that are here.
        reads_native: Whether its threads may be stopped for a moment, to read native frames.
    """
    look = look_at(job, reader, reads_native=reads_native)
    lines = {(each.file, each.line): each.text for each in look.lines}
    here = context.source_of
    context = replace(context, source_of=lambda file, n: lines.get((file, n)) or here(file, n))
    gone = job.ended | _exited(look)
    judged = _judged(job, context, look, ended=gone)
    found = judged.diagnosis
    if found is not None and found.kind == "died" and not found.waiting:  # nobody misses it
        judged = _judged(job, context, look, ended=frozenset())
        found = judged.diagnosis
    if found is None or not _is_waited_for(look, found):
        who = f"; {_have(gone)} ended" if gone else ""
        return _not_hung(replace(judged, diagnosis=None), _NOBODY + who)
    confidence = "likely" if found.confidence == "certain" else found.confidence
    found = replace(found, confidence=confidence, notes=(*found.notes, *_notes(job, look)))
    judged = replace(judged, diagnosis=found)
    why = _still_moves(look, found)
    return _not_hung(judged, f"{found.summary}; not yet a hang: {why}") if why else judged


def _judged(job: Job, context: SourceContext, look: Look, *, ended: frozenset[int]) -> Judgement:
    absent = frozenset(range(job.size)) - job.pids.keys()
    return judge_world(
        _result(job, look),
        Symptoms(),
        context,
        finding=_finding(job, ended),
        unseen=(look.unclear | absent | _exited(look)) - ended,
    )


def _exited(look: Look) -> frozenset[int]:
    return frozenset(each.rank for each in look.ranks if each.label == "EXITED")


def _is_waited_for(look: Look, found: Diagnosis) -> bool:
    """Return whether a rank waits for another one, or is stopped or holds the GIL."""
    is_own = found.kind in ("stopped", "gil_held")
    return is_own or any(each.operations or each.lock_holders for each in look.ranks)


def _still_moves(look: Look, found: Diagnosis) -> str:
    """Return why one of the ranks concerned may go on by itself; empty if none may."""
    concerned = found.culprits or found.cycle or found.waiting or range(len(look.ranks))
    if left := look.left.intersection(found.waiting or concerned):
        return f"{_have(left)} run between two looks"
    if found.kind == "died":
        return ""
    moving = {rank: look.moving[rank] for rank in concerned if rank in look.moving}
    if not found.culprits:  # one that gives up goes on, and lets the others go on
        moving = {**{r: why for r, why in look.limited.items() if r in concerned}, **moving}
    return moving[min(moving)] if moving else ""


def _have(ranks: frozenset[int]) -> str:
    """Return the begin of a sentence on what ranks have done."""
    return f"{rank_set(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _not_hung(judged: Judgement, reason: str) -> Judgement:
    finding = replace(judged.finding, outcome="passed", status="passed", reason=reason)
    return replace(judged, finding=finding)


def _notes(job: Job, look: Look) -> Iterator[str]:
    absent = not_here(job)
    if absent and not job.ended:
        yield f"ranks {absent} are not among these processes: nothing is known of them"
    for rank, why in look.unread.items():
        yield f"the stack of rank {rank} could not be read: {why}"
    yield from look.unobserved
    if here := look.unclear & job.pids.keys():
        yield f"{rank_set(here)} may wait in C++ code, which Python's stacks do not show"
    yield from job.notes
    if look.is_proven:
        yield _PROVEN.format(HORIZON_S)
        return
    if look.blockers:
        yield f"not proven to hang, because {'; '.join(look.blockers[:_MAX_BLOCKERS])}"
    yield _CANNOT_TELL


def _result(job: Job, look: Look) -> WorldResult:
    return WorldResult(
        spec=WorldSpec(
            nodeid=job.title,
            attempt=1,
            size=job.size,
            backend=job.launcher,
            local_devices=1,
            timeout_s=0.0,
            startup_timeout_s=0.0,
            seed=0,
            sites=_sites(job),
            subject="job",
        ),
        launch="attach",
        started_at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
        started_s=look.at_s,
        ended_s=look.at_s,
        history=(),
        ending="seen",
        dumps=look.dumps,
        snapshots=(
            WorldSnapshot(at_s=look.at_s, reason="end", ranks=look.ranks, blockers=look.blockers),
        ),
        reason=_PROVEN.format(HORIZON_S) if look.is_proven else None,
        progress_s=look.at_s,
        detected_s=look.at_s,
    )


def _sites(job: Job) -> tuple[Site, ...]:
    """Return the machines of the ranks in order, if they are on several."""
    hosts = (job.hosts.get(rank, "") for rank in range(job.size)) if job.hosts else ()
    return tuple((host, "", "", len([*ranks])) for host, ranks in groupby(hosts))


def _finding(job: Job, ended: frozenset[int]) -> Finding:
    facts = [RankFacts(rank, pid=job.pids.get(rank), phase="call") for rank in range(job.size)]
    found = suspected_hang(facts, f"{len(job.pids)} processes were looked at")
    ranks = tuple(
        RankFinding(each.facts, "crashed", None, _ENDED) if each.facts.rank in ended else each
        for each in found.ranks
    )
    return replace(found, ranks=ranks)
