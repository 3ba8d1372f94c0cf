"""The ranks of a running job: which processes they are, by the variables of their launcher."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_multihost.live.membership import NUMBERED, membership_of
from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.operation import group_by_value, rank_numbers, rank_set

_RANK_AND_PID = re.compile(r"(?:(\d{1,6})=)?(\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Job:
    """A job's ranks on this machine, or on several that are looked at together.

    Attributes:
        pids: By rank.
        size: Ranks of the job, also those that are not here.
        launcher: Who has started it, or who says so.
        is_size_known: Whether that one says how many ranks it has.
        ended: Ranks that should be on this machine and are not there any more.
        notes: How the ranks were found, one sentence each.
        hosts: The machine of each rank, if they are on several.
    """

    pids: Mapping[int, int]
    size: int
    launcher: str
    is_size_known: bool = True
    ended: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What the reader calls it: its processes."""
        if not self.hosts:
            return f"processes {' '.join(map(str, self.pids.values()))}"
        by_host = group_by_value((self.hosts[rank], rank) for rank in self.pids)
        return "; ".join(
            f"{rank_set(ranks)} on {host}: processes {' '.join(str(self.pids[r]) for r in ranks)}"
            for host, ranks in by_host.items()
        )


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
    return Job(dict(sorted(pids.items())), size, ", ".join(sources), is_size_known=bool(sizes))


def _rank_and_pid(text: str) -> tuple[int | None, int]:
    found = _RANK_AND_PID.fullmatch(text)
    if found is None:
        raise MultihostError(f"{text!r} is not the id of a process", remedy=NUMBERED)
    return (int(found[1]) if found[1] else None), int(found[2])


def not_here(job: Job) -> str:
    """Return as text the ranks of a job that are not among its processes; empty if all are."""
    return rank_numbers(set(range(job.size)) - job.pids.keys())
