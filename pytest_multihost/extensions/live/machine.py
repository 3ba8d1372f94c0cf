"""Finds the worlds on this machine by the variables that launchers set for their processes.

The shells and tools that start a rank have these variables as well, and its children inherit them.
Where several processes have the same rank, the outermost Python process is the rank. A
process that has started ranks of another world is their launcher: torchrun under srun has a rank
from Slurm.

`choose` selects the job that the user means: by process ids, by a part of a command line, or by the
process that started it.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_multihost.core.launch.launcher_env import Membership
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.watch.kernel import read_stat
from pytest_multihost.core.watch.kernel.proc_files import link
from pytest_multihost.extensions.live.numbering import alone, numbered
from pytest_multihost.extensions.live.parents import is_watcher
from pytest_multihost.extensions.live.processes import (
    NUMBERED,
    Job,
    check_rights,
    command_words,
    find_job,
    is_agent,
    is_python,
    membership_if_any,
    owner_of,
)

_TRACKER = re.compile(r"(multiprocessing|loky\.backend)\.resource_tracker")
_FORKSERVER = re.compile(r"multiprocessing\.forkserver")
"""Processes that Python itself starts beside those of a program. Forks of a fork server
have its command line."""

_DIGITS = 10
"""The most digits of a process's id."""

_LOOKS = re.compile(r"(/multihost|pytest_multihost\.core\.command\.main) attach\b")
"""Processes that run ``multihost attach`` like this one: a launcher may have given them ranks."""


@dataclass(frozen=True, slots=True)
class LocalWorld:
    """A job whose ranks, or some of them, run on this machine.

    Attributes:
        parent: The process that started all ranks; 0 if there is none.
        command: The command line of the first rank here.
        age_s: Time since the start of the first rank here.
    """

    job: Job
    parent: int
    command: str
    age_s: float


@dataclass(frozen=True, slots=True)
class LocalWorlds:
    """The worlds found on this machine.

    Attributes:
        unreadable: Number of Python processes that may not be read.
    """

    found: tuple[LocalWorld, ...]
    unreadable: int = 0


def worlds_here(among: Collection[int] | None = None) -> LocalWorlds:
    """Return the worlds on this machine.

    Args:
        among: The processes to consider; None for all.
    """
    parents = _parents()
    own = {os.getpid(), *_ancestors(os.getpid(), parents)}
    members: dict[int, Membership] = {}
    unreadable = 0
    for pid in parents if among is None else among:
        try:
            found = None if pid in own or not _may_be_rank(pid) else membership_if_any(pid)
        except PermissionError:
            unreadable += 1
            continue
        if found is not None:
            members[pid] = found
    by_key: dict[object, dict[int, Membership]] = {}
    for pid, each in _without_launchers(members, parents).items():
        # Without a job id, only processes with the same parent are of the same job. An address of
        # one machine is another one in each container.
        same = link(f"/proc/{pid}/ns/net") if each.is_one_machine else ""
        # Another user may have set the same variables: his processes are a job of their own.
        owner = owner_of(pid)
        key = (each.key, owner, same if each.job.strip("/") else parents[pid])
        by_key.setdefault(key, {})[pid] = each
    worlds = (_world(each, parents) for each in by_key.values())
    return LocalWorlds(tuple(sorted(worlds, key=lambda each: each.age_s)), unreadable)


def matching(text: str) -> tuple[int, ...]:
    """Return the Python processes whose command line contains a text, except this one."""
    parents = _parents()
    own = {os.getpid(), *_ancestors(os.getpid(), parents)}
    return tuple(
        pid for pid in parents if pid not in own and text in command_of(pid) and _may_be_rank(pid)
    )


def children_of(pid: int) -> tuple[int, ...]:
    """Return the Python processes that a process has started, directly or through others."""
    parents = _parents()
    below = (each for each in parents if pid in _ancestors(each, parents))
    return tuple(each for each in below if is_python(each))


def _outermost(pids: Collection[int]) -> tuple[int, ...]:
    """Return the processes that no other of them has started, except Python's own."""
    parents = _parents()
    found = [each for each in pids if not _is_pythons_own(each)]
    return tuple(each for each in found if not set(found) & {*_ancestors(each, parents)})


def _is_pythons_own(pid: int) -> bool:
    """Return whether Python itself has started a process: its fork server, or its tracker."""
    command, stat = command_of(pid), read_stat(f"/proc/{pid}")
    is_server = bool(_FORKSERVER.search(command)) and stat is not None
    is_forked = is_server and stat is not None and command_of(stat.parent) == command
    return bool(_TRACKER.search(command)) or (is_server and not is_forked)


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if it cannot be read."""
    return " ".join(command_words(pid))


def _may_be_rank(pid: int) -> bool:
    is_other = _LOOKS.search(command_of(pid)) or is_agent(pid) or _is_pythons_own(pid)
    is_other = is_other or is_watcher(pid)
    return is_python(pid) and not is_other


def _parents() -> Mapping[int, int]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    found = ((pid, read_stat(f"/proc/{pid}")) for pid in pids)
    return {pid: stat.parent for pid, stat in found if stat is not None and stat.state != "Z"}


def _ancestors(pid: int, parents: Mapping[int, int]) -> Sequence[int]:
    """Return the parent of a process, its parent, and so on."""
    found: list[int] = []
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.append(pid)
    return found


def _without_launchers(
    members: Mapping[int, Membership], parents: Mapping[int, int]
) -> Mapping[int, Membership]:
    """Return the members except launchers of ranks and children of ranks."""
    launchers, started = set(), set()
    for pid, each in members.items():
        for above in _ancestors(pid, parents):
            other = members.get(above)
            if other is not None and other.key == each.key and other.rank == each.rank:
                started.add(pid)
            elif other is not None and other.key != each.key:
                launchers.add(above)
    return {pid: each for pid, each in members.items() if pid not in launchers | started}


def _world(members: Mapping[int, Membership], parents: Mapping[int, int]) -> LocalWorld:
    """Return the world of one job's processes.

    If two processes have the same rank, the one whose parent has started most of the others wins:
    the other one may be an orphan of a rank's child. If the parents tie, the later start wins.
    """
    brothers = Counter(parents.get(pid) for pid in members)
    stats = {pid: read_stat(f"/proc/{pid}") for pid in members}
    started = {pid: stat.started_s if stat is not None else 0.0 for pid, stat in stats.items()}
    order = sorted(members, key=lambda pid: (brothers[parents.get(pid)], started[pid]))
    pids = {members[pid].rank: pid for pid in order}
    notes = tuple(
        f"rank {each.rank} is also process {pid}"
        for pid, each in members.items()
        if pids[each.rank] != pid
    )
    first, one = pids[min(pids)], next(iter(members.values()))
    absent = frozenset(rank for rank in range(one.size) if rank not in pids)
    job = Job(
        dict(sorted(pids.items())),
        one.size,
        one.source,
        ended=absent if one.is_one_machine else frozenset(),
        notes=notes,
    )
    above = [set(_ancestors(pid, parents)) for pid in pids.values()]
    common = [each for each in _ancestors(first, parents) if all(each in one for one in above)]
    parent = common[0] if common and common[0] > 1 else 0
    return LocalWorld(job, parent, command_of(first), time.monotonic() - started[first])


def choose(
    names: Sequence[str] = (), *, match: str | None = None, below: int | None = None
) -> Job | LocalWorlds:
    """Return the job that the user means; the worlds of this machine if that is ambiguous.

    Args:
        names: One per process: its id, or its rank and its id (``4711``, ``0=4711``).
        match: A part of a command line.
        below: The id of a torchrun, an mpirun, or a program that starts its ranks itself.

    Raises:
        MultihostError: A process cannot be read, or there is no such job.
    """
    if names:
        return _job_of(names)
    if match is None and below is None:
        return worlds_here()
    found = _matching(match) if match is not None else _below(below or 0)
    if isinstance(found, LocalWorlds) and len(found.found) == 1:
        return found.found[0].job
    return found


def _job_of(names: Sequence[str]) -> Job:
    """Return the job of some processes, with its other ranks on this machine."""
    try:
        job = find_job(names)
    except MultihostError as error:
        raise _as_launcher(names, error) or error from None
    if agents := [pid for pid in job.pids.values() if is_agent(pid)]:
        raise MultihostError(
            f"process {agents[0]} is torchrun, which starts ranks and is none",
            remedy=f"multihost attach --children-of {agents[0]}",
        )
    for each in worlds_here().found:
        if job.pids.items() <= each.job.pids.items():
            return each.job
    return job


def _as_launcher(names: Sequence[str], error: MultihostError) -> MultihostError | None:
    """Return the error with the command for a process that has started others; else None."""
    is_id = len(names) == 1 and names[0].isdecimal() and len(names[0]) <= _DIGITS
    if not is_id or not children_of(int(names[0])):
        return None
    remedy = (
        f"Process {names[0]} has started other Python processes:"
        f" multihost attach --children-of {names[0]}"
    )
    return MultihostError(error.happened, seen=error.seen, remedy=remedy)


def _matching(text: str) -> LocalWorlds:
    """Return the worlds with a process whose command line contains a text."""
    pids = matching(text)
    here = worlds_here()
    found = tuple(each for each in here.found if {*each.job.pids.values()} & {*pids})
    if not pids:
        raise MultihostError(
            f"no Python process has {text!r} in its command line",
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
    return LocalWorlds(found, here.unreadable)


def _below(pid: int) -> LocalWorlds | Job:
    """Return the worlds that a process has started, or a job of its children if none has a rank.

    A program of Python that has started them is a process of the job: it may end the ranks.
    """
    pids = children_of(pid)
    found = worlds_here(pids)
    within = pid if is_python(pid) and not is_agent(pid) else 0
    if found.found:
        worlds = (replace(each, job=replace(each.job, within=within)) for each in found.found)
        return replace(found, found=tuple(worlds))
    job = numbered(_outermost(pids), pid)
    if job is None and is_python(pid) and not is_agent(pid):
        job = alone(pid)
    if job is None:
        raise MultihostError(
            f"process {pid} has started no Python process",
            seen="Or they cannot be read." if found.unreadable else "",
            remedy=f"pstree -p {pid}",
        )
    return replace(job, within=within if pid not in job.pids.values() else 0)
