"""Judges a running job by its wait-for graph, like any other world.

The ranks recorded nothing. Which call of an operation a rank is in is therefore unknown, and no
culprit is certain. The graph lacks ranks on machines that are not read, and ranks that may wait
in a runtime's C++ code without a Python frame. A rank that others wait for but that may still make
progress is named, but not reported as hung.

`judge_job` judges the job once. `follow` judges it again and again until it stops moving.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.origin import Known, Origin
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.result import WorldResult, WorldSnapshot, utc_text
from pytest_multihost.core.model.spec import MACHINE, Host, WorldSpec
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.model.verdict import Diagnosis, sentence
from pytest_multihost.core.outcome import Finding, RankFacts, RankFinding, Symptoms
from pytest_multihost.core.outcome.finding import suspected_hang
from pytest_multihost.extensions.live.look import HORIZON_S, Look, look_at
from pytest_multihost.extensions.live.processes import Job, not_here
from pytest_multihost.extensions.live.reader import JobReader

_OUTSIDE = Origin(
    detected_by="attach",
    ground=lambda _: "as far as it can be seen from outside",
    is_counted=False,
    is_proof=False,
)
"""A look at a running job: it shows frames, and a slow rank looks like a hanging one."""

_CANNOT_TELL = (
    "seen from outside: the number of an operation is unknown, and so is its group unless that is"
    " the default one"
)
_PROVEN = (
    "proven: no wait in the job can end within the next {:.0f} s; which call of an operation a rank"
    " is in cannot be seen from outside"
)
_MAX_BLOCKERS = 3
_NOBODY = "no rank is seen to wait for another one"
_ENDED = "has ended: there is no such process any more"


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A running job as one look shows it.

    Attributes:
        judged: Its judgement; its outcome is hung only if nothing seems to move.
        waits: By rank that waits in an operation, the identity of this wait.
        is_proven: Whether it is proven that nothing in the job can move.
        left_behind: The remains of a killed process that ranks wait for, one sentence each.
    """

    judged: Judgement
    waits: Mapping[int, tuple[object, ...]] = field(default_factory=dict)
    is_proven: bool = False
    left_behind: tuple[str, ...] = ()


def judge_job(
    job: Job, reader: JobReader, context: SourceContext, *, reads_native: bool = False
) -> SeenJob:
    """Look at a running job, and judge it.

    Args:
        context: Used for source lines that the job's own machine has not sent.
        reads_native: Whether threads may be stopped for a moment to read native frames.
    """
    look = look_at(job, reader, reads_native=reads_native)
    judged = _judgement(job, context, look)
    return SeenJob(judged, look.waits, look.is_proven, look.left_behind)


def _judgement(job: Job, context: SourceContext, look: Look) -> Judgement:
    found_lines = sorted(look.lines, key=lambda each: bool(each.text))
    lines = {(each.file, each.line): each.text for each in found_lines}
    here = context.source_of
    context = replace(
        context, source_of=lambda f, n: lines[f, n] if (f, n) in lines else here(f, n)
    )
    gone = job.ended | _exited(look)
    judged = _judged(job, context, look, ended=gone)
    found = judged.diagnosis
    if found is not None and found.kind == "died" and not found.waiting:  # no rank waits for it
        judged = _judged(job, context, look, ended=frozenset())
        found = judged.diagnosis
    if found is None or not _is_waited_for(look, found):
        who = f"{_have(gone)} ended" if gone else ""
        seen = (*(look.left_behind or (_NOBODY,)), who, *_unread(look))
        return _not_hung(replace(judged, diagnosis=None), "; ".join(filter(None, seen)))
    confidence = "likely" if found.confidence == "certain" else found.confidence
    found = replace(found, confidence=confidence, notes=(*found.notes, *_notes(job, look)))
    if job.is_guess:
        found = replace(found, headline=sentence("probably ", found.headline))
    judged = replace(judged, diagnosis=found)
    if judged.finding.outcome == "hung":
        judged = replace(judged, finding=replace(judged.finding, reason=found.summary))
    why = _still_moves(look, found)
    if why and _is_of_an_instant(look, found):
        return _not_hung(replace(judged, diagnosis=None), f"{_NOBODY} for long: {why}")
    return _not_hung(judged, f"{found.summary}; not yet a hang: {why}") if why else judged


def _is_of_an_instant(look: Look, found: Diagnosis) -> bool:
    """Return whether a diagnosis is of ranks that all move, or may lack a rank that waits.

    At times all ranks of a healthy job are in the same collective, at others on their way to it.
    """
    if found.kind == "stuck":
        return bool(look.unclear)
    waiting = {*(found.waiting or found.cycle)}
    if not found.culprits:
        return not look.left.isdisjoint(waiting)
    return waiting <= look.left and {*found.culprits} <= look.moving.keys()


def _judged(job: Job, context: SourceContext, look: Look, *, ended: frozenset[int]) -> Judgement:
    absent = frozenset(range(job.size)) - job.pids.keys()
    known = Known(unseen=(look.unclear | absent | _exited(look)) - ended)
    result = replace(_result(job, look), known=known)
    return judge_world(result, Symptoms(), context, finding=_finding(job, ended))


def _exited(look: Look) -> frozenset[int]:
    return frozenset(each.rank for each in look.ranks if each.label == "EXITED")


def _is_waited_for(look: Look, found: Diagnosis) -> bool:
    """Return whether a rank waits for another one, is stopped, holds the GIL or is proven stuck.

    A rank that waits for itself may do so until its parent, or a signal, ends it. A rank that
    sleeps goes on by itself, however late.
    """
    is_timed = any(
        each.activity is not None and each.activity.ends_in_s is not None
        for each in look.ranks
        if each.rank in found.culprits
    )
    is_proven = look.is_proven and not look.may_be_ended and not is_timed
    is_stuck = found.kind == "stuck" and is_proven
    is_own = kind_of(found.kind).culprit == "held" or is_stuck
    return is_own or any(each.operations or each.lock_holders for each in look.ranks)


def _still_moves(look: Look, found: Diagnosis) -> str:
    """Return why one of the ranks concerned may still move by itself; empty if none may."""
    concerned = found.culprits or found.cycle or found.waiting or range(len(look.ranks))
    if left := look.left.intersection(found.waiting or concerned):
        return f"{_have(left)} run between two looks"
    if found.kind == "died":
        return ""
    # A main thread of jax may wake up while it waits in an operation that another thread performs.
    # Where the thread that waits keeps the time, as torch's does, a timeout that is near ends it.
    are_inside = found.kind in ("mismatch", "deadlock")
    inside = look.apart - look.left if are_inside else frozenset()
    moving = {r: look.moving[r] for r in concerned if r in look.moving and r not in inside}
    if spinning := look.spinning.intersection(concerned):
        one = len(spinning) == 1
        return f"{PLAIN.of(spinning)} {'polls' if one else 'poll'}, and may continue at any time"
    if not found.culprits:  # a rank that times out moves again, and so may the others
        moving = {**{r: why for r, why in look.limited.items() if r in concerned}, **moving}
    return moving[min(moving)] if moving else ""


def _have(ranks: frozenset[int]) -> str:
    """Return the beginning of a sentence about actions of ranks."""
    return f"{PLAIN.of(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _not_hung(judged: Judgement, reason: str) -> Judgement:
    finding = replace(judged.finding, outcome="passed", status="passed", reason=reason)
    return replace(judged, finding=finding)


def _notes(job: Job, look: Look) -> Iterator[str]:
    absent = not_here(job)
    if absent and not job.ended:
        yield f"ranks {absent} are not among these processes: nothing is known of them"
    yield from _unread(look)
    yield from look.unobserved
    yield from look.left_behind
    if here := look.unclear & job.pids.keys() - look.unread.keys():
        yield f"{PLAIN.of(here)} may wait in C++ code, which Python's stacks do not show"
    yield from job.notes
    if look.is_proven:
        yield _PROVEN.format(HORIZON_S)
        return
    if look.blockers:
        yield f"not proven to hang, because {'; '.join(look.blockers[:_MAX_BLOCKERS])}"
    yield _CANNOT_TELL


def _unread(look: Look) -> Iterator[str]:
    """Yield which stacks could not be read, one sentence for each reason."""
    for why, ranks in group_by_value((why, rank) for rank, why in look.unread.items()).items():
        stacks = "stack" if len(ranks) == 1 else "stacks"
        yield f"the {stacks} of {PLAIN.of(ranks)} could not be read: {why}"


def _result(job: Job, look: Look) -> WorldResult:
    return WorldResult(
        spec=WorldSpec.of_job(job.title, job.size, job.launcher, hosts=_hosts(job)),
        launch="attach",
        started_at=utc_text(),
        started_s=look.at_s,
        ended_s=look.at_s,
        history=(),
        ending="unwatched",
        origin=_OUTSIDE,
        dumps=look.dumps,
        snapshots=(
            WorldSnapshot(at_s=look.at_s, reason="end", ranks=look.ranks, blockers=look.blockers),
        ),
        reason=_PROVEN.format(HORIZON_S) if look.is_proven else None,
        progress_s=look.at_s,
        detected_s=look.at_s,
    )


def _hosts(job: Job) -> tuple[Host, ...]:
    """Return the machines of the ranks in rank order; empty if there is only one."""
    names = (job.hosts.get(rank, "") for rank in range(job.size)) if job.hosts else ()
    found: list[Host] = []
    for name, group in groupby(names):
        first = found[-1].ranks.stop if found else 0
        ranks = range(first, first + len([*group]))
        found.append(Host(len(found), name, "", "", ranks, MACHINE))
    return tuple(found)


def _finding(job: Job, ended: frozenset[int]) -> Finding:
    facts = [RankFacts(rank, pid=job.pids.get(rank), phase="call") for rank in range(job.size)]
    found = suspected_hang(facts, f"{len(job.pids)} processes were observed")
    ranks = tuple(
        RankFinding(each.facts, "crashed", None, _ENDED) if each.facts.rank in ended else each
        for each in found.ranks
    )
    return replace(found, ranks=ranks)


INTERVAL_S = 2.0
"""Time between two shallow snapshots, each of which costs 0.1 ms per rank."""

STILL_S = 3.0
"""A main thread must rest this long before stacks are read, which costs part of a second a rank."""

PATIENCE_S = 60.0
"""A rank that others wait for this long counts as hung even if it still moves."""

_BETWEEN_S = 10.0
"""Time between two readings of stacks. A rank is named if two in a row show the same."""

_RESTLESS_S = 30.0
"""The same at most while no main thread rests: that of jax wakes up while it waits."""

_GOES_ON = "the job goes on: no rank is waited for any more"


@dataclass(slots=True)
class _Waits:
    """Since when each rank's main thread has been in its present wait."""

    since_s: dict[int, float] = field(default_factory=dict)
    _keys: dict[int, tuple[object, ...]] = field(default_factory=dict)

    def add(self, seen: KernelSnapshot) -> None:
        """Record the waits of a snapshot."""
        for rank, process in seen.ranks.items():
            key = process.main.wait_key if process.main is not None else ()
            if self._keys.get(rank) != key:
                self._keys[rank], self.since_s[rank] = key, seen.at_s


def follow(
    reader: JobReader,
    judge: Callable[[], SeenJob],
    say: Callable[[str], None],
    *,
    patience_s: float = PATIENCE_S,
) -> Judgement | None:
    """Return the judgement of a job that has stopped moving; None if it has ended.

    Args:
        judge: Judges the job as it is now.
        say: Prints one line; called when it is known for which rank the others wait, although it
            may still move, and when they go on.
        patience_s: A rank that others wait for this long counts as hung even if it still moves.
    """
    waits, said = _Waits(), tuple[int, ...]()
    judged_s, finding = float("-inf"), _Finding()
    restless_s = min(_RESTLESS_S, max(_BETWEEN_S, patience_s / 2))
    begun_s = reader.shallow_snapshot().at_s
    while True:
        now = reader.shallow_snapshot()
        waits.add(now)
        if all(each.is_dead for each in now.processes):
            return None
        still = {r: s for r, s in waits.since_s.items() if now.at_s - s >= STILL_S}
        between_s = _BETWEEN_S if still else restless_s
        if now.at_s - judged_s >= between_s and now.at_s - begun_s >= STILL_S:
            judged_s, seen = now.at_s, judge()
            judged = seen.judged
            finding = finding.after(seen, now.at_s)
            if judged.finding.outcome == "hung":
                return judged
            if finding.has_lasted(still, now.at_s, patience_s):
                return _hung(judged, now.at_s - finding.since_s)
            has_lasted = finding.has_lasted(still, now.at_s, _BETWEEN_S)
            known = finding.culprits if has_lasted else ()
            if known != said:
                say(str(judged.finding.reason) if known else _GOES_ON)
                said = known
        time.sleep(INTERVAL_S)


@dataclass(frozen=True, slots=True)
class _Finding:
    """The culprits and the waiting ranks last found, and since when they have been the same.

    Attributes:
        waits: The waits in operations that have been the same since then, by rank.
    """

    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    since_s: float = 0.0
    waits: Mapping[int, tuple[object, ...]] = field(default_factory=dict)

    def after(self, seen: SeenJob, at_s: float) -> _Finding:
        """Return the finding after the next judgement; its start is kept if the ranks are."""
        found = seen.judged.diagnosis
        ranks = (found.culprits, found.waiting) if found is not None else ((), ())
        if ranks != (self.culprits, self.waiting):
            return _Finding(*ranks, at_s, seen.waits)
        kept = {r: key for r, key in self.waits.items() if seen.waits.get(r) == key}
        return replace(self, waits=kept)

    def has_lasted(self, still: Mapping[int, float], at_s: float, seconds: float) -> bool:
        """Return whether the finding is this old and all ranks of one side have rested since.

        If both sides move, the culprit is only the slowest rank, which is found every time.
        """
        return at_s - self.since_s >= seconds and any(
            bool(side)
            and all(each in self.waits or at_s - still.get(each, at_s) >= seconds for each in side)
            for side in (self.culprits, self.waiting)
        )


def _hung(judged: Judgement, seconds: float) -> Judgement:
    """Return the judgement with the outcome hung, because the finding has lasted too long."""
    found = judged.diagnosis
    summary = found.summary if found is not None else ""
    reason = f"{summary}; it has been so for {seconds:.0f} s"
    finding = replace(judged.finding, outcome="hung", status="failed", reason=reason)
    return replace(judged, finding=finding)
