"""Numbers the ranks that one process has started and that have no variables of a launcher.

`torch.multiprocessing.spawn` passes each process its number, and so do most programs that start
processes or give tasks to a pool: in a variable with a name such as `rank`, or in an argument of
the function that runs there. The stacks show it. A program may also set RANK itself. The other
numbers are guessed from the order in which the processes were started. A worker of a pool that has
no task is not a rank.

`alone` is for a process whose children have ended, or wait for tasks: it is judged itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.core.cpython_private import PROCESS_BEGIN, WORKERS
from pytest_multihost.core.model.stack import Frame, is_library
from pytest_multihost.core.torch_private import SPAWN, SPAWNED, SPAWNS
from pytest_multihost.core.watch.kernel import read_stat
from pytest_multihost.core.watch.probes.py_spy import SpiedThread, spied_threads
from pytest_multihost.extensions.live.processes import Job
from pytest_multihost.extensions.live.set_variables import set_variable

_PROCESS, _RUN = "multiprocessing/process.py", ("run", "BaseProcess.run", "Process.run")
_QUEUES = ("multiprocessing/queues.py",)
_IN_QUEUES = (*_QUEUES, "multiprocessing/connection.py", "multiprocessing/synchronize.py")
_NAMES = ("global_rank", "world_rank", "rank", "process_id", "process_index", "local_rank")
"""Variables that hold the number of a rank, the surest first."""
_LAUNCHER = -1
_GUESSED = "the processes do not say which rank they are: they are numbered in the order of start"
_SOME_GUESSED = "{} not say which rank: the free numbers are given in the order of start"
_BY_ARGUMENT = "the ranks are numbered by an argument of the function that they run"
_BY_NAME = "the ranks are numbered by the variable `{}` on their stacks"
_VARIABLE = "RANK"
_BY_VARIABLE = "the ranks are numbered by the variable RANK of the environment, which they have set"
_ALONE = "process {} is called rank 0: {}"
_IDLE = "its children have ended, or have no task"
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
    order = [pid for pid in order if not is_idle_worker(threads.get(pid, ()))]
    if not order:
        return None
    given = {pid: found for pid in order if (found := given_number(threads.get(pid, ())))}
    spawned = {pid: each for pid, each in given.items() if each.is_by_spawn}
    name = f"process {launcher}"
    if spawned:  # others, such as those of a data loader of the launcher, are not ranks
        order = [pid for pid in order if pid in spawned or not threads.get(pid)]
        ranks = {pid: each.rank for pid, each in spawned.items()}
        return job_of(order, ranks, spawned_size(threads.get(_LAUNCHER, ())), name)
    tasks = {pid: tuple(_task(threads[pid])) for pid in order if pid in threads}
    variable, named = numbers_by_name(tasks)
    if named:
        return job_of(order, named, None, name, how=_BY_NAME.format(variable), is_told=True)
    told = numbers_by_text({pid: set_variable(pid, _VARIABLE) for pid in order})
    if told:
        return job_of(order, told, None, name, how=_BY_VARIABLE, is_told=True)
    passed = numbers_by_argument(tasks) or {pid: each.rank for pid, each in given.items()}
    return job_of(order, passed, None, name, how=_BY_ARGUMENT)


def alone(pid: int, why: str = _IDLE) -> Job:
    """Return a process that has started others as a job of its own.

    Args:
        why: Why the others do not count as ranks, for the report.
    """
    return Job({0: pid}, 1, f"process {pid}", notes=(_ALONE.format(pid, why),))


def job_of(
    order: Sequence[int],
    given: Mapping[int, int],
    size: int | None,
    launcher: str,
    *,
    how: str = "",
    is_told: bool = False,
) -> Job:
    """Return the job of processes of which some say their number.

    Args:
        order: The processes in the order of their start.
        given: The numbers of processes that say one; if two say the same, none is believed.
        size: Number of ranks; None if it is unknown.
        how: How the processes say their number, for the report.
        is_told: Whether a number may be larger than that of the processes here: others may have
            ended.
    """
    least = max(size or 0, len(order))
    ranks = {*given.values()}
    is_large = size is None and not is_told and bool(ranks) and max(ranks) >= least
    if len(ranks) < len(given) or is_large:
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


Task = Sequence[tuple[Frame, Mapping[str, str]]]
"""The frames of the function that a process runs and of its calls, with their variables; the
outermost first."""


def _task(threads: Sequence[SpiedThread]) -> Iterator[tuple[Frame, Mapping[str, str]]]:
    """Yield the user's frames of the main thread since the process began, the outermost first."""
    main = next((each for each in threads if each.is_main), None)
    if main is None or not main.values:
        return
    begins = [at for at, each in enumerate(main.frames) if _is_begin(each)]
    end = begins[0] if begins else len(main.frames)
    for at in range(end - 1, -1, -1):
        if not is_library(main.frames[at].file):
            yield main.frames[at], main.values[at]


def _is_begin(frame: Frame) -> bool:
    return frame.file.endswith(_PROCESS) and frame.function.endswith(PROCESS_BEGIN)


def is_idle_worker(threads: Sequence[SpiedThread]) -> bool:
    """Return whether the stack is that of a worker of a pool which waits for a task."""
    main = next((each for each in threads if each.is_main), None)
    frames = main.frames if main is not None else ()
    for at, each in enumerate(frames):
        if any(each.file.endswith(f) and each.function.endswith(name) for f, name in WORKERS):
            inner = frames[:at]
            asks = bool(inner) and inner[-1].file.endswith(_QUEUES)
            return asks and all(e.file.endswith(_IN_QUEUES) for e in inner)
    return False


def numbers_by_name(tasks: Mapping[int, Task]) -> tuple[str, Mapping[int, int]]:
    """Return the variable that numbers all processes, and the numbers; no numbers if none does.

    Args:
        tasks: By process; one of which no stack is known does not count.
    """
    for name in _NAMES:
        found: dict[int, int] = {}
        for pid, task in tasks.items():
            numbers = (_number(values.get(name)) for _, values in task)
            number = next((each for each in numbers if each is not None), None)
            if number is not None:
                found[pid] = number
        if found and len({*found.values()}) == len(tasks):
            return name, found
    return "", {}


def numbers_by_text(texts: Mapping[int, str | None]) -> Mapping[int, int]:
    """Return the numbers that all processes give to themselves; none unless they all differ."""
    found = {pid: number for pid, text in texts.items() if (number := _number(text)) is not None}
    return found if len({*found.values()}) == len(texts) else {}


def numbers_by_argument(tasks: Mapping[int, Task]) -> Mapping[int, int]:
    """Return the numbers in the first variable that counts all processes from 0; none if none does.

    The variables are those of the outermost function, which is the same in all processes. Its
    arguments come before its other variables.
    """
    outermost = {pid: task[0] for pid, task in tasks.items() if task}
    functions = {(frame.file, frame.function) for frame, _ in outermost.values()}
    if len(functions) != 1 or len(outermost) < max(2, len(tasks)):
        return {}
    for name in next(iter(outermost.values()))[1]:
        found = {pid: _number(values.get(name)) for pid, (_, values) in outermost.items()}
        if {*found.values()} == {*range(len(found))}:
            return {pid: number for pid, number in found.items() if number is not None}
    return {}


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
