"""The ranks of a running job: which processes they are, by the variables of their launcher."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.launch.attach import read_membership
from pytest_multihost.model.errors import MultihostError, SettingError
from pytest_multihost.model.operation import rank_numbers

_RANK_AND_PID = re.compile(r"(?:(\d{1,6})=)?(\d{1,10})", re.ASCII)
_NUMBERED = "Say which rank each process is: multihost attach --once 0=PID 1=PID ..."


@dataclass(frozen=True, slots=True)
class Job:
    """A job's ranks on this machine.

    Attributes:
        pids: By rank.
        size: Ranks of the job, also those that are not here.
        launcher: Who has started it, or who says so.
    """

    pids: Mapping[int, int]
    size: int
    launcher: str


def find_job(names: Sequence[str]) -> Job:
    """Return the job of some processes.

    Args:
        names: Of each process its id, or its rank and its id: ``4711``, ``0=4711``.

    Raises:
        MultihostError: A process cannot be read, or it is not clear which rank it is.
    """
    pairs = [_rank_and_pid(each) for each in names]
    told = {pid: rank for rank, pid in pairs if rank is not None}
    places = {pid: _place(pid) for _, pid in pairs if pid not in told}
    sources = {source for _, _, source in places.values()} | ({"you"} if told else set())
    sizes = {size for _, size, _ in places.values()}
    ranks = [*told.values(), *(rank for rank, _, _ in places.values())]
    if len(sizes) > 1 or len(sources) > 1 or len({*ranks}) < len(ranks):
        seen = [f"{pid}: rank {r} of {s}, by {by}" for pid, (r, s, by) in places.items()]
        seen += [f"{pid}: rank {rank}, as you say" for pid, rank in told.items()]
        raise MultihostError(
            "these processes are not the ranks of one job",
            seen="\n".join(seen),
            remedy=f"Name one process for each rank of one job. {_NUMBERED}",
        )
    pids = {**{rank: pid for pid, rank in told.items()}, **{p[0]: i for i, p in places.items()}}
    size = max([*sizes, *(rank + 1 for rank in pids)])
    return Job(dict(sorted(pids.items())), size, ", ".join(sources))


def _rank_and_pid(text: str) -> tuple[int | None, int]:
    found = _RANK_AND_PID.fullmatch(text)
    if found is None:
        raise MultihostError(f"{text!r} is not the id of a process", remedy=_NUMBERED)
    return (int(found[1]) if found[1] else None), int(found[2])


def _place(pid: int) -> tuple[int, int, str]:
    """Return the rank of a process, the size of its job, and who says so."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except FileNotFoundError:
        raise MultihostError(f"there is no process {pid}", remedy="pgrep -af python") from None
    except PermissionError as error:
        raise MultihostError(
            f"process {pid} cannot be read",
            seen=str(error),
            remedy="Run the command as the user of that process, or with sudo.",
        ) from error
    variables = (each.partition(b"=") for each in data.split(b"\0"))
    try:
        found = read_membership(
            {name.decode(errors="replace"): v.decode(errors="replace") for name, _, v in variables}
        )
    except SettingError as error:
        raise MultihostError(
            f"process {pid} does not say which rank it is",
            seen=f"Its environment: {error.happened}.",
            remedy=_NUMBERED,
        ) from error
    return found.rank, found.size, found.source


def not_here(job: Job) -> str:
    """Return as text the ranks of a job that are not among its processes; empty if all are."""
    return rank_numbers(set(range(job.size)) - job.pids.keys())
