"""A running job on several machines: `multihost attach` runs on each of them, and they join.

Rank 0's process prints what was found; the others look at the ranks of their machines for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_multihost.command.joined import part
from pytest_multihost.launch.attach import Connector, Listener, Peer, Rendezvous
from pytest_multihost.live import Job, JobReader, Worlds
from pytest_multihost.live.joined import (
    JoinedReader,
    Machine,
    answer_first,
    joined_job,
    machine_of,
    this_machine,
)
from pytest_multihost.model.errors import LaunchError, MultihostError
from pytest_multihost.peer_server import await_end

JOIN_S = 60.0
"""How long the processes wait for each other."""

_FAILED = 1
_REMEDY = (
    "Run the same command on every machine. Each process needs a number of its own, and must reach"
    " rank 0's."
)

Show = Callable[[Job, JobReader], int]


@dataclass(frozen=True, slots=True)
class Found:
    """What was found on this machine.

    Attributes:
        machine: The ranks.
        reader: Reads them; None if they may not be read.
        problem: Why not.
    """

    machine: Machine
    reader: JobReader | None
    problem: str = ""


def found_here(choose: Callable[[], Job | Worlds], read: Callable[[Job], JobReader]) -> Found:
    """Return what was found on this machine.

    Args:
        choose: Returns the job, or the jobs of this machine if it is not clear which one.
        read: Returns what reads its ranks.
    """
    job, why, problem, reader = None, "", "", None
    try:
        chosen = choose()
        job = chosen if isinstance(chosen, Job) else _only(chosen)
        why = "" if job is not None else "no process there says which rank of a job it is"
    except MultihostError as error:
        why = error.happened
    try:
        reader = read(job or Job({}, 0, ""))
    except MultihostError as error:
        problem = str(error)
    return Found(this_machine(job, why), reader, problem)


def _only(worlds: Worlds) -> Job | None:
    """Return the only job of a machine; None if it has none.

    Raises:
        MultihostError: It has several.
    """
    if len(worlds.found) > 1:
        raise MultihostError(f"{len(worlds.found)} jobs have ranks there: say which one")
    return worlds.found[0].job if worlds.found else None


def look_together(rendezvous: Rendezvous, found: Found, show: Show) -> int:
    """Look at a job together with the processes on other machines; return the exit code.

    Args:
        rendezvous: Where they find each other.
        found: What was found here.
        show: Shows in rank 0's process what is found by all, and returns the exit code.

    Raises:
        MultihostError: They have not found each other, a job may not be read, or is not one.
    """
    if rendezvous.membership.rank:
        return _look_for_first(rendezvous, found)
    listener = Listener(rendezvous)
    peers, code = listener.peers, _FAILED
    try:
        listener.await_peers(JOIN_S, remedy=_REMEDY)
        listener.close()
        if found.problem:
            raise LaunchError("the ranks here cannot be read", seen=found.problem)
        code = show(*_joined(found, peers))
    finally:
        listener.close()
        part(peers, code)
    return code


def _joined(found: Found, peers: Mapping[int, Peer]) -> tuple[Job, JobReader]:
    """Return the job of all machines, and what reads it."""
    machines, readers = [found.machine], []
    for peer in peers.values():
        machine = machine_of(peer)
        if not any(machine.is_seen_by(other) for other in machines):
            machines.append(machine)
            if machine.job is not None:
                readers.append(peer)
    assert found.reader is not None  # noqa: S101 - else there was a problem
    return joined_job(machines), JoinedReader(found.reader, readers)


def _look_for_first(rendezvous: Rendezvous, found: Found) -> int:
    """Look at the ranks of this machine for rank 0's process; return its exit code."""
    problems = (found.problem,) if found.problem else ()
    stream = Connector(rendezvous).connect(JOIN_S, tests=(), problems=problems)
    try:
        return answer_first(stream, found.machine, found.reader)
    finally:
        await_end(stream)
