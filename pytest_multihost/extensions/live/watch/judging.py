"""Finds the jobs that a test has started, judges them, and words the findings.

The watcher imports this only when a job has come to rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_multihost.core.model.source import files_below
from pytest_multihost.core.model.stack import context_of
from pytest_multihost.extensions.live.machine import LocalWorlds, children_of, choose, worlds_here
from pytest_multihost.extensions.live.numbering import alone, numbered
from pytest_multihost.extensions.live.processes import Job, membership_if_any
from pytest_multihost.extensions.live.reader import LocalReader
from pytest_multihost.extensions.live.seen_world import SeenJob, judge_job
from pytest_multihost.extensions.live.watch.ending import awaits_pool, is_of_pool


def summary_of(job: Job, seen: SeenJob) -> str:
    """Return the sentence on a hang; of a test whose ranks have ended or are idle, its place."""
    found = seen.judged.diagnosis
    if found is None:
        return str(seen.judged.finding.reason)
    if [*job.pids.values()] != [job.within] or found.where is None:
        return found.summary
    place = f"{found.where.file}:{found.where.line} {found.where.function}"
    if awaits_pool(seen.judged.result.dumps):
        return (
            f"the test itself waits at {place} for a pool, and no worker has a task: one has ended"
            " before it could answer"
        )
    return f"the test itself waits at {place}, and no process that it has started can end that"


def why_whole_run(job: Job, seen: SeenJob) -> str:
    """Return why the run is to be stopped instead of ranks to be ended; empty if it is not."""
    if job.within in job.pids.values():
        return "it has no ranks, so the run is stopped"
    if is_of_pool(seen.judged.result.dumps):
        return "its ranks are workers of a pool, so the run is stopped"
    return ""


@dataclass(frozen=True, slots=True)
class Team:
    """The workers of xdist that run the same test at once, as with ``--dist=each``.

    Attributes:
        living: The workers that run it now.
        gone: How many have ended while they ran it.
        size: How many workers there were at first; 0: unknown.
    """

    living: Sequence[int] = ()
    gone: int = 0
    size: int = 0

    @property
    def is_several(self) -> bool:
        """Whether the workers are, or were, several."""
        return len(self.living) + self.gone > 1


def with_gone(job: Job, team: Team) -> Job:
    """Return the job of a team's workers with the ranks that have ended, if these are known."""
    absent = frozenset(range(team.size)) - job.pids.keys()
    is_known = 0 < len(absent) <= team.gone and not job.is_guess and max(job.pids) < team.size
    if not is_known:
        return job
    return replace(job, size=team.size, ended=absent)


def _holes(job: Job) -> frozenset[int]:
    """Return the ranks that a test has started between others, and that are gone."""
    return frozenset(range(min(job.pids), max(job.pids))) - job.pids.keys()


def judged(job: Job) -> SeenJob:
    """Look at a job on this machine, and judge it."""
    context = context_of(str(Path.cwd()), files_below(None, ".py"))
    return judge_job(job, LocalReader(job, context), context)


_WAIT_FOR_IT = "its children wait for none of them"


def judged_with_test(job: Job, pid: int) -> tuple[Job, SeenJob]:
    """Judge a job that a test has started; where its ranks wait for the test, the test itself.

    Args:
        pid: The test's process.

    Returns:
        The job that is judged, and its judgement.
    """
    seen = judged(job)
    waits_for_nobody = seen.judged.diagnosis is None and not seen.left_behind
    if seen.is_proven and waits_for_nobody and job.within == pid:
        job = replace(alone(pid, _WAIT_FOR_IT), within=pid, alarmed=job.alarmed)
        return job, judged(job)
    return job, seen


def is_rank(pid: int) -> bool:
    """Return whether a launcher has started a process as one of several ranks."""
    try:
        found = membership_if_any(pid)
    except PermissionError:
        return False
    return found is not None and found.size > 1


def jobs_of(pid: int, top: int, team: Team, around: int = 0) -> Iterator[Job]:
    """Yield the jobs that a test has started, or of which its process is a rank.

    A rank that is a process of pytest itself may be in an earlier test, or be started again. So all
    that is watched belongs to its world.

    Args:
        top: The process that is watched, with all that it has started.
        team: The workers that run the same test.
        around: The process of another test that has started this process of pytest; 0: there is
            none.
    """
    if is_rank(pid):
        found = [each.job for each in worlds_here().found]
        yield from (replace(each, within=top) for each in found if pid in each.pids.values())
    elif team.is_several and not any(map(children_of, team.living)):
        job = numbered(team.living, top)
        if job is not None:
            yield replace(with_gone(job, team), within=top)
    else:
        chosen = choose(below=pid)
        jobs = [e.job for e in chosen.found] if isinstance(chosen, LocalWorlds) else [chosen]
        within = around or pid
        yield from (replace(each, within=within, ended=each.ended | _holes(each)) for each in jobs)
