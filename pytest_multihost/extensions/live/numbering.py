"""Numbers the ranks that one process has started and that have no variables of a launcher.

`torch.multiprocessing.spawn` passes each process its number, and so do most programs that start
`multiprocessing.Process` themselves: it is the first argument of the function that runs there. The
stacks show it. The other numbers are guessed from the order in which the processes were started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.core.torch_private import SPAWN, SPAWNED, SPAWNS
from pytest_multihost.core.watch.kernel import read_stat
from pytest_multihost.core.watch.probes.py_spy import SpiedThread, spied_threads
from pytest_multihost.extensions.live.processes import Job

_PROCESS, _RUN = "multiprocessing/process.py", ("run", "BaseProcess.run", "Process.run")
_LAUNCHER = -1
_GUESSED = "the processes do not say which rank they are: they are numbered in the order of start"
_SOME_GUESSED = "{} not say which rank: the free numbers are given in the order of start"
_BY_ARGUMENT = "the ranks are numbered by the first argument of the function that they run"
_MAX_DIGITS = 6


@dataclass(frozen=True, slots=True)
class GivenNumber:
    """The number of a process, as its stack shows it.

    Attributes:
        is_by_spawn: Whether torch's `spawn` has passed it; else it is a first argument.
    """

    rank: int
    is_by_spawn: bool


def numbered(pids: Sequence[int], launcher: int) -> Job | None:
    """Return processes without variables of a launcher as a job; None if there are none.

    Args:
        launcher: The process that has started them.
    """
    stats = {pid: stat for pid in pids if (stat := read_stat(f"/proc/{pid}")) is not None}
    order = sorted(stats, key=lambda pid: (stats[pid].started_s, pid))
    if not order:
        return None
    threads, _ = spied_threads({_LAUNCHER: launcher, **{pid: pid for pid in order}})
    given = {pid: found for pid in order if (found := given_number(threads.get(pid, ())))}
    spawned = {pid: each for pid, each in given.items() if each.is_by_spawn}
    size = spawned_size(threads.get(_LAUNCHER, ())) if spawned else None
    if spawned:  # others, such as those of a data loader of the launcher, are no ranks
        given = spawned
        order = [pid for pid in order if pid in spawned or not threads.get(pid)]
    ranks = {pid: each.rank for pid, each in given.items()}
    return job_of(order, ranks, size, f"process {launcher}", how="" if spawned else _BY_ARGUMENT)


def job_of(
    order: Sequence[int],
    given: Mapping[int, int],
    size: int | None,
    launcher: str,
    *,
    how: str = "",
) -> Job:
    """Return the job of processes of which some say their number.

    Args:
        order: The processes in the order of their start.
        given: The numbers of those that say one; if two say the same, none is believed.
        size: Number of ranks; None if it is unknown.
        how: How the processes say their number, for the report.
    """
    least = max(size or 0, len(order))
    ranks = {*given.values()}
    if len(ranks) < len(given) or (size is None and ranks and max(ranks) >= least):
        given, ranks = {}, set()
    size_now = max(least, *(rank + 1 for rank in ranks), 1)
    free = iter(rank for rank in range(size_now) if rank not in ranks)
    silent = [pid for pid in order if pid not in given]
    pids = {**{rank: pid for pid, rank in given.items()}, **{next(free): pid for pid in silent}}
    is_guess = bool(silent) and size_now - len(ranks) > 1
    notes = (how if given else "", _guessed(silent, given) if is_guess else "")
    absent = frozenset(range(size_now)) - pids.keys()
    return Job(
        dict(sorted(pids.items())),
        size_now,
        launcher,
        is_size_known=size is not None,
        ended=absent if size is not None and not is_guess else frozenset(),
        notes=tuple(filter(None, notes)),
        is_guess=is_guess,
    )


def _guessed(silent: Sequence[int], given: Mapping[int, int]) -> str:
    """Return a note about processes that do not say their number."""
    if not given:
        return _GUESSED
    who = f"process {silent[0]} does" if len(silent) == 1 else f"{len(silent)} processes do"
    return _SOME_GUESSED.format(who)


def given_number(threads: Sequence[SpiedThread]) -> GivenNumber | None:
    """Return the number that the main thread's stack shows; None if it shows none."""
    main = next((each for each in threads if each.is_main), None)
    if main is None or not main.values:
        return None
    for index in range(len(main.frames) - 1, -1, -1):  # the outermost first
        frame = main.frames[index]
        if frame.file.endswith(SPAWN) and frame.function == SPAWNED:
            rank = _number(main.values[index].get("i"))
            return None if rank is None else GivenNumber(rank, is_by_spawn=True)
    for index in range(len(main.frames) - 1, 0, -1):
        frame = main.frames[index]
        if frame.file.endswith(_PROCESS) and frame.function in _RUN:
            rank = _number(next(iter(main.values[index - 1].values()), None))
            return None if rank is None else GivenNumber(rank, is_by_spawn=False)
    return None


def spawned_size(threads: Sequence[SpiedThread]) -> int | None:
    """Return how many processes the `spawn` on a launcher's stack has started; None if unknown."""
    for thread in threads:
        for frame, values in zip(thread.frames, thread.values, strict=False):
            if frame.file.endswith(SPAWN) and frame.function in SPAWNS:
                return _number(values.get("nprocs"))
    return None


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if text is not None and is_number else None
