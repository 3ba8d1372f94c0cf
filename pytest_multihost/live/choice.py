"""Which job is meant: by processes, by a part of a command line, or by who has started it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.live.machine import Worlds, children_of, matching, numbered, worlds_here
from pytest_multihost.live.membership import NUMBERED
from pytest_multihost.live.processes import Job, find_job
from pytest_multihost.live.rights import check_rights
from pytest_multihost.model.errors import MultihostError


def choose(
    names: Sequence[str] = (), *, match: str | None = None, below: int | None = None
) -> Job | Worlds:
    """Return the job that is meant; the worlds of this machine if it is not clear which one.

    Args:
        names: Of each process its id, or its rank and its id: ``4711``, ``0=4711``.
        match: A part of a command line.
        below: A torchrun, an mpirun, or a program that starts its ranks itself.

    Raises:
        MultihostError: A process cannot be read, or there is no such job.
    """
    if names:
        return _job_of(names)
    if match is None and below is None:
        return worlds_here()
    found = _matching(match) if match is not None else _below(below or 0)
    if isinstance(found, Worlds) and len(found.found) == 1:
        return found.found[0].job
    return found


def _job_of(names: Sequence[str]) -> Job:
    """Return the job of some processes, with its other ranks on this machine."""
    job = find_job(names)
    for each in worlds_here().found:
        if job.pids.items() <= each.job.pids.items():
            return each.job
    return job


def _matching(text: str) -> Worlds:
    """Return the worlds of which a process has a text in its command line."""
    pids = matching(text)
    here = worlds_here()
    found = tuple(each for each in here.found if {*each.job.pids.values()} & {*pids})
    if not pids:
        raise MultihostError(
            f"no process of Python's has {text!r} in its command line",
            remedy=f"pgrep -af {text!r} shows processes of any program.",
        )
    for pid in pids if not found else ():
        check_rights(pid)
    if not found:
        raise MultihostError(
            f"the processes with {text!r} in their command lines do not say which rank they are",
            seen=f"Processes {' '.join(map(str, pids))}.",
            remedy=NUMBERED,
        )
    return Worlds(found, here.unreadable)


def _below(pid: int) -> Worlds | Job:
    """Return the worlds that a process has started; ranks that do not say so as a job."""
    pids = children_of(pid)
    found = worlds_here(pids)
    if found.found:
        return found
    job = numbered(pids, f"process {pid}")
    if job is None:
        raise MultihostError(
            f"process {pid} has started no process of Python's",
            seen="Or they cannot be read." if found.unreadable else "",
            remedy=f"pstree -p {pid}",
        )
    return job
