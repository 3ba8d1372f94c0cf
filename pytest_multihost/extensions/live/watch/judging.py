"""Finds the jobs that a test has started, judges them, and words the findings.

The watcher imports this only when a job has come to rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_multihost.core.model.source import files_below
from pytest_multihost.core.model.stack import context_of
from pytest_multihost.extensions.live.machine import LocalWorlds, children_of, choose, worlds_here
from pytest_multihost.extensions.live.numbering import numbered
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


def _holes(job: Job) -> frozenset[int]:
    """Return the ranks that a test has started between others, and that are gone."""
    return frozenset(range(min(job.pids), max(job.pids))) - job.pids.keys()


def judged(job: Job) -> SeenJob:
    """Look at a job on this machine, and judge it."""
    context = context_of(str(Path.cwd()), files_below(None, ".py"))
    return judge_job(job, LocalReader(job, context), context)


def is_rank(pid: int) -> bool:
    """Return whether a launcher has started a process as one of several ranks."""
    try:
        found = membership_if_any(pid)
    except PermissionError:
        return False
    return found is not None and found.size > 1


def jobs_of(pid: int, parent: int, brothers: Sequence[int]) -> Iterator[Job]:
    """Yield the jobs that a test has started, or of which its process is a rank.

    Args:
        parent: The parent of the test's process.
        brothers: The processes that run the same test at once, as with ``--dist=each``.
    """
    if is_rank(pid):
        found = [each.job for each in worlds_here().found]
        yield from (each for each in found if pid in each.pids.values())
    elif len(brothers) > 1 and not any(map(children_of, brothers)):
        job = numbered(brothers, parent)
        if job is not None:
            yield job
    else:
        chosen = choose(below=pid)
        jobs = [e.job for e in chosen.found] if isinstance(chosen, LocalWorlds) else [chosen]
        yield from (replace(each, within=pid, ended=each.ended | _holes(each)) for each in jobs)
