"""The ranks of a running job: which processes they are, by the variables of their launcher."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.live.membership import NUMBERED, membership_of
from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.operation import rank_numbers

_RANK_AND_PID = re.compile(r"(?:(\d{1,6})=)?(\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Job:
    """A job's ranks on this machine.

    Attributes:
        pids: By rank.
        size: Ranks of the job, also those that are not here.
        launcher: Who has started it, or who says so.
        ended: Ranks that should be on this machine and are not there any more.
        notes: How the ranks were found, one sentence each.
    """

    pids: Mapping[int, int]
    size: int
    launcher: str
    ended: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def find_job(names: Sequence[str]) -> Job:
    """Return the job of some processes.

    Args:
        names: Of each process its id, or its rank and its id: ``4711``, ``0=4711``.

    Raises:
        MultihostError: A process cannot be read, or it is not clear which rank it is.
    """
    pairs = [_rank_and_pid(each) for each in names]
    told = {pid: rank for rank, pid in pairs if rank is not None}
    places = {pid: membership_of(pid) for _, pid in pairs if pid not in told}
    sources = {each.source for each in places.values()} | ({"you"} if told else set())
    sizes = {each.size for each in places.values()}
    ranks = [*told.values(), *(each.rank for each in places.values())]
    if len(sizes) > 1 or len(sources) > 1 or len({*ranks}) < len(ranks):
        seen = [f"{pid}: rank {e.rank} of {e.size}, by {e.source}" for pid, e in places.items()]
        seen += [f"{pid}: rank {rank}, as you say" for pid, rank in told.items()]
        raise MultihostError(
            "these processes are not the ranks of one job",
            seen="\n".join(seen),
            remedy=f"Name one process for each rank of one job. {NUMBERED}",
        )
    pids = {**{rank: pid for pid, rank in told.items()}, **{e.rank: i for i, e in places.items()}}
    size = max([*sizes, *(rank + 1 for rank in pids)])
    return Job(dict(sorted(pids.items())), size, ", ".join(sources))


def _rank_and_pid(text: str) -> tuple[int | None, int]:
    found = _RANK_AND_PID.fullmatch(text)
    if found is None:
        raise MultihostError(f"{text!r} is not the id of a process", remedy=NUMBERED)
    return (int(found[1]) if found[1] else None), int(found[2])


def not_here(job: Job) -> str:
    """Return as text the ranks of a job that are not among its processes; empty if all are."""
    return rank_numbers(set(range(job.size)) - job.pids.keys())
