"""The processes around the ranks: a test that waits for ranks which it has started.

The parent is a process of the world, so a possible end of its wait prevents the proof that the
ranks hang. Some of its threads wake up all the time, or wait for a process outside, and yet can end
no wait of a test. Their stacks show which these are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.model.process import NEVER, KernelSnapshot
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.procfs import children_of
from pytest_multihost.core.proof.blockers import SIGALRM
from pytest_multihost.core.watch.kernel import read_stat
from pytest_multihost.core.watch.probes.py_spy import SpiedThread
from pytest_multihost.extensions.live.processes import command_words, is_agent, is_python
from pytest_multihost.extensions.live.watch.option import WATCHER

_MANAGERS = frozenset({"torch_shm_manager"})
_PYTHONS_OWN = re.compile(
    r"multiprocessing\.(forkserver|resource_tracker)|loky\.backend\.resource_tracker"
)
_THREADS = (
    "/execnet/gateway_base.py",
    "/pytest_rerunfailures.py",
    "/pytest_timeout.py",
    "/tqdm/_monitor.py",
    "/elastic/rendezvous/utils.py",
)
"""Files whose threads serve pytest, end a test that takes too long, draw, or say that they live."""

_LIBRARY = re.compile(r"/(threading|socket|selectors|queue|multiprocessing/\w+)\.py$")
_TIMER = "pytest_timeout "
"""How the name of a thread begins that ends a test which takes too long."""

_LOOKS = (
    ("/common_distributed.py", "_join_processes"),
    ("/common.py", "_launch_non_daemonic_procs"),
    ("/common.py", "_launch_daemonic_procs"),
    ("/xdist/dsession.py", "loop_once"),
)
"""Functions that only wait for ranks, or for messages of xdist's workers. Their own limits fail the
test, as a hang does."""

_AGENTS_LOOK = ("/elastic/agent/server/api.py", "_invoke_run")
"""The same of torchrun. The function also starts ranks, ends them, and waits for other machines."""

_SHELLS = frozenset({"sh", "dash", "ash", "busybox"})

_WAIT, _WAIT_UNTIL = ("/subprocess.py", "_wait"), "endtime"
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)


def is_watcher(pid: int) -> bool:
    """Return whether a process only watches its descendants, and so is not a rank."""
    stat = read_stat(f"/proc/{pid}")
    return stat is not None and stat.name == WATCHER


def ancestors(pid: int) -> Iterator[int]:
    """Yield the parent of a process, its parent and so on, without watchers."""
    while pid > 1 and (stat := read_stat(f"/proc/{pid}")) is not None:
        pid = stat.parent
        above = read_stat(f"/proc/{pid}") if pid > 0 else None
        if above is not None and above.name != WATCHER:
            yield pid


def programs_between(within: int, pids: Collection[int]) -> tuple[int, ...]:
    """Return the Python processes from `within` down to the parents of processes, without these."""
    found: dict[int, None] = {}
    for pid in pids:
        path = []
        for each in ancestors(pid):
            path.append(each)
            if each == within:
                found.update(dict.fromkeys(path))
                break
    return tuple(pid for pid in {within: None, **found} if pid not in pids and is_python(pid))


def looks_in_turns(
    threads: Mapping[int, Sequence[SpiedThread]], others: Collection[int]
) -> Mapping[int, float]:
    """Return the threads that only look whether processes have ended, and until when they look.

    Args:
        threads: Of the processes around the ranks, by process id.
        others: All processes of the world, of which some serve the others.
    """
    found = {pid: NEVER for pid in others if _serves(pid)}
    for pid, each in threads.items():
        main = next((one for one in each if one.is_main), None)
        looks = is_agent(pid) and not any(map(_is_unseen, children_of(pid)))
        until_s = _looks_until(main, looks_for_ranks=looks) if main is not None else None
        if until_s is not None:
            found[pid] = until_s
    return found


def waiting_shells(now: KernelSnapshot) -> Mapping[int, float]:
    """Return the shells that only wait for their children, as `looks_in_turns` does.

    The builtin ``wait`` of dash waits for the signal that a child's end sends.
    """
    return {
        each.pid: NEVER
        for each in now.processes
        if each.name in _SHELLS and each.main is not None and each.main.call == "rt_sigsuspend"
    }


def _serves(pid: int) -> bool:
    """Return whether a process was started by Python or torch to serve the ranks."""
    stat = read_stat(f"/proc/{pid}")
    if stat is None:
        return False
    if is_manager(stat.name):
        return True
    words = command_words(pid)
    parent = command_words(stat.parent)
    return bool(_PYTHONS_OWN.search(" ".join(words))) and words != parent


def is_manager(name: str) -> bool:
    """Return whether a process with this name manages torch's shared memory."""
    return name in {each[:15] for each in _MANAGERS}


def _is_unseen(pid: int) -> bool:
    """Return whether a process has ended and its parent has not seen it.

    Torchrun looks as seldom as its user says, and may start all ranks again when it sees that.
    """
    stat = read_stat(f"/proc/{pid}")
    return stat is not None and stat.state == "Z"


def _looks_until(main: SpiedThread, *, looks_for_ranks: bool) -> float | None:
    """Return until when a main thread looks for ends of processes; None if it does not.

    Args:
        looks_for_ranks: Whether it is torchrun's, and none of its ranks has ended unseen.
    """
    for at, frame in enumerate(main.frames):
        values = main.values[at] if at < len(main.values) else {}
        if _is_at(frame, _WAIT):
            limit = values.get(_WAIT_UNTIL, "")
            return float(limit) if _SECONDS.fullmatch(limit) else None
        if looks_for_ranks and at == 0 and _is_at(frame, _AGENTS_LOOK):
            return NEVER
        if any(_is_at(frame, each) for each in _LOOKS):
            return NEVER
    return None


def _is_at(frame: Frame, place: tuple[str, str]) -> bool:
    return frame.file.endswith(place[0]) and frame.function.split(".")[-1] == place[1]


def threads_of_others(threads: Mapping[int, Sequence[SpiedThread]]) -> frozenset[int]:
    """Return the threads of plugins, which end no wait of a test, by id."""
    return frozenset(
        each.tid
        for process in threads.values()
        for each in process
        if each.tid and not each.is_main and _is_of_others(each)
    )


def _is_of_others(thread: SpiedThread) -> bool:
    """Return whether only a plugin's code, and the standard library's work for it, is there."""
    files = [frame.file for frame in thread.frames]
    own = [each for each in files if not _LIBRARY.search(each)]
    if thread.name.startswith(_TIMER):
        return all(each.endswith(_THREADS) for each in own)
    return bool(own) and all(each.endswith(_THREADS) for each in own)


def without(now: KernelSnapshot, tids: Collection[int], alarmed: Collection[int]) -> KernelSnapshot:
    """Return a snapshot in which some threads, and SIGALRM in some processes, are the harness's."""
    if not tids and not alarmed:
        return now
    return replace(
        now,
        processes=tuple(
            replace(
                process,
                caught=process.caught & ~SIGALRM if process.pid in alarmed else process.caught,
                threads=tuple(
                    replace(each, is_exempt=True) if each.tid in tids else each
                    for each in process.threads
                ),
            )
            for process in now.processes
        ),
    )
