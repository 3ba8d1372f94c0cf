"""Have ranks write their stacks with faulthandler, or py-spy read them, and parse the result."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pytest_multihost.core.cpython_private import FAULTHANDLER, parse_faulthandler
from pytest_multihost.core.launch import RunningWorld
from pytest_multihost.core.model.json_values import from_json
from pytest_multihost.core.model.messages import DumpKind
from pytest_multihost.core.model.result import RankSnapshot
from pytest_multihost.core.model.stack import (
    ChildStack,
    Dump,
    FailedThread,
    LockWait,
    PolledFile,
    TaskState,
    ThreadStack,
)
from pytest_multihost.core.watch.kernel import with_holders
from pytest_multihost.core.watch.probes.py_spy import dump_of, parse_dump

T = TypeVar("T")

BUDGET_S = 2.0
"""How long to wait for the answers. Four idle ranks take 3 ms; a busy machine takes longer."""

OUTSIDE_S = 5.0
"""The same for py-spy, which takes a few tenths of a second of processor time for each rank."""

TASKS_S = 0.5
"""The same for asyncio tasks, which a rank reports by Python code."""

LOCKS_S = 1.5
"""The same for waits for locks: the rank reads source files of all functions on its stacks."""

DEAF_S = 1.0
"""The same for a computing rank, because Python runs a signal's handler between two bytecodes."""

_BUDGETS_S = {
    "outside": OUTSIDE_S,
    "aside": OUTSIDE_S,
    "tasks": TASKS_S,
    "locks": LOCKS_S,
    "files": TASKS_S,
    "child tasks": TASKS_S,
}
_MAX_FAILED = 10
"""How many threads of a rank are shown that exceptions have ended."""

_POLL_S = 0.003
_STABLE = 3
"""How many successive sizes must be equal for an answer to count as complete: faulthandler writes
line by line, and marks no end."""

_LOOP = ("asyncio/base_events.py", "asyncio/runners.py")
"""Files of the functions that run an event loop; the second one also those of other packages."""


def dump_stacks(
    world: RunningWorld,
    ranks: Sequence[int],
    directory: Path,
    last: Sequence[RankSnapshot] = (),
) -> tuple[Dump, ...]:
    """Return the stacks of `ranks`, with no threads for ranks that did not answer in time.

    faulthandler works in a signal handler: it answers while another thread holds the GIL and in any
    blocking call, but not in uninterruptible sleep, nor if the rank has another handler. Then
    py-spy reads the stacks, if it is installed. Use this only for ranks that are to be ended: it
    can crash a running rank with several busy threads (python/cpython issue 116008).

    A rank is asked twice, to see whether it moves, unless its last snapshot shows it at rest in an
    operation. The first answer is returned, because the request continues a stopped rank, and a
    signal ends some native calls. faulthandler skips the
    oldest of more than 100 threads, the main one, which is then requested separately.

    A main thread whose wait a signal would end is not interrupted: another thread of the harness
    writes the stacks, or py-spy reads them. Only without both is it asked like the others.

    Args:
        last: The last snapshot of each rank. A rank whose main thread waits for a lock is asked for
            that; it runs Python signal handlers meanwhile. So does a main thread in Python
            code; a main thread in native code while it holds the GIL does not, and is deaf.
    """

    def ask(asked: Sequence[int], kind: DumpKind) -> dict[int, Dump]:
        files = request_dump(world, asked, directory, kind)
        return {rank: _parse(_read(file), rank=rank) for rank, file in files.items()}

    fragile = {each.rank for each in last if each.is_fragile} & {*ranks}
    dumps = ask([rank for rank in ranks if rank not in fragile], "threads")
    dumps |= {rank: _aside(each) for rank, each in ask(sorted(fragile), "aside").items()}
    unread = [rank for rank in ranks if not dumps[rank].threads]
    dumps |= ask([rank for rank in unread if rank in fragile], "threads")
    dumps |= ask([rank for rank in ranks if not dumps[rank].threads], "outside")
    answered = [rank for rank in ranks if dumps[rank].threads]
    spied = [rank for rank in answered if dumps[rank].source != FAULTHANDLER]
    own = [rank for rank in answered if rank not in spied]
    resting = {each.rank for each in last if each.operations and not each.has_run}
    unsure = [rank for rank in own if rank not in resting | fragile]
    for rank, second in (ask(unsure, "threads") | ask(spied, "outside")).items():
        first = dumps[rank]
        one, two = (dump.main.frames if dump.main else () for dump in (first, second))
        common = min(len(one), len(two))  # a slow answer lacks its outermost frames
        dumps[rank] = replace(first, has_moved=one[:common] != two[:common])
    lacking = [rank for rank in answered if dumps[rank].lacks_main]
    for rank, main in ask(lacking, "main").items():
        if main.threads:
            threads = (*dumps[rank].threads, main.threads[-1])
            dumps[rank] = replace(dumps[rank], threads=threads, lacks_main=False)
    running_loop = [rank for rank in own if _runs_loop(dumps[rank].main)]
    for rank, file in request_dump(world, running_loop, directory, "tasks").items():
        dumps[rank] = with_tasks(dumps[rank], _read_lines(TaskState, _read(file)))
    locked = {each.rank for each in last if each.rank in own and _waits_for_lock(each, dumps)}
    for rank, file in request_dump(world, sorted(locked), directory, "locks").items():
        dumps[rank] = replace(dumps[rank], locks=_read_lines(LockWait, _read(file)))
    sleeping = {each.rank for each in last if _may_poll(each)} & {*own} - fragile
    for rank, file in request_dump(world, sorted(sleeping), directory, "files").items():
        polled = _read_lines(PolledFile, _read(file))
        dumps[rank] = replace(dumps[rank], file=with_holders(polled[0]) if polled else None)
    dumps |= _with_children(world, [dumps[rank] for rank in own], directory)
    computing = {each.rank for each in last if each.label == "RUNNING" and each.holds_gil}
    files = _answer_files([rank for rank in own if rank in computing], directory, "tasks")
    before = {rank: _size(file) for rank, file in files.items()}
    _ask(world, files, "tasks", DEAF_S)
    for rank, file in files.items():
        if _size(file) <= before[rank]:
            dumps[rank] = replace(dumps[rank], is_deaf=True)
    return tuple(
        replace(
            dumps[rank],
            failed_threads=_noted(FailedThread, directory / f"rank-{rank}.threads")[:_MAX_FAILED],
            keys=_noted(str, directory / f"rank-{rank}.keys"),
        )
        for rank in ranks
    )


def _noted(kind: type[T], file: Path) -> tuple[T, ...]:
    """Return the entries that a rank has written into a file by itself, and remove the file."""
    found = _read_lines(kind, _read(file))
    file.unlink(missing_ok=True)
    return found


def _aside(dump: Dump) -> Dump:
    """Return a dump for which the harness's own thread was interrupted, and none of the test's."""
    return replace(dump, threads=tuple(replace(each, current=False) for each in dump.threads))


def _with_children(
    world: RunningWorld, dumps: Sequence[Dump], directory: Path
) -> Mapping[int, Dump]:
    """Return dumps with the stacks of the ranks' children, and the tasks of their event loops.

    A rank that runs an event loop itself has told its own tasks.
    """
    found = {each.rank: each for each in dumps}
    for rank, file in request_dump(world, list(found), directory, "children").items():
        found[rank] = replace(found[rank], children=_read_children(_read(file), rank=rank))
        file.unlink(missing_ok=True)
    looping = [
        rank
        for rank, each in found.items()
        if any(map(_runs_loop, each.children)) and not _runs_loop(each.main)
    ]
    for rank, file in request_dump(world, looping, directory, "child tasks").items():
        found[rank] = with_tasks(found[rank], _read_lines(TaskState, _read(file)))
    return found


def _runs_loop(thread: ThreadStack | ChildStack | None) -> bool:
    """Return whether a thread runs an event loop."""
    return thread is not None and any(each.file.endswith(_LOOP) for each in thread.frames)


def _waits_for_lock(seen: RankSnapshot, dumps: Mapping[int, Dump]) -> bool:
    """Return whether a main thread waits for a lock, and not for one of an operation's runtime.

    A thread that holds the GIL waits for a lock of native code, and runs no signal handler. An
    operation is another thread's if no function that has begun it is on the stack.
    """
    main = dumps[seen.rank].main
    inside = {(each.file, each.function) for each in main.frames} if main is not None else set()
    began = [each.frame for each in seen.operations]
    is_elsewhere = all(e is not None and (e.file, e.function) not in inside for e in began)
    is_lock = seen.activity is not None and seen.activity.is_lock
    return is_lock and is_elsewhere and not seen.holds_gil


def _may_poll(seen: RankSnapshot) -> bool:
    """Return whether a main thread that is in no operation sleeps, perhaps between two looks."""
    return seen.label == "SLEEPING" and not seen.operations and not seen.holds_gil


def _read_lines(kind: type[T], text: str) -> tuple[T, ...]:
    """Return the tasks or waits that a rank has written; empty if a line is damaged."""
    try:
        found = [json.loads(line) for line in text.splitlines()]
        return tuple(from_json(kind, each) for each in found if each)
    except ValueError:
        return ()


def with_tasks(dump: Dump, tasks: Sequence[TaskState]) -> Dump:
    """Return a dump with the tasks of the rank's event loops.

    The first task of a loop mostly waits for the others.
    """
    at = [each for each in tasks if each.frame is not None]
    others = [each for each in at if not each.is_first]
    return replace(
        dump,
        tasks=tuple(each.text for each in tasks),
        awaiting=tuple(dict.fromkeys(each.frame for each in others or at if each.frame)),
        failed_tasks=tuple(each.text for each in tasks if each.error),
    )


def _read_children(text: str, *, rank: int) -> tuple[ChildStack, ...]:
    """Return the children of a rank whose stacks were copied; none if a line is damaged."""
    found = []
    try:
        for pid, name, stack in filter(None, map(json.loads, text.splitlines())):
            main = parse_faulthandler(stack, rank=rank).main
            if main is not None and main.frames:
                found.append(ChildStack(pid, name, main.frames))
    except (ValueError, TypeError):
        return ()
    return tuple(found)


def request_dump(
    world: RunningWorld, ranks: Iterable[int], directory: Path, kind: DumpKind
) -> dict[int, Path]:
    """Have ranks write a kind of dump, wait for them, and return their files."""
    files = _answer_files(ranks, directory, kind)
    _ask(world, files, kind, _BUDGETS_S.get(kind, BUDGET_S))
    return files


def _answer_files(ranks: Iterable[int], directory: Path, kind: DumpKind) -> dict[int, Path]:
    name = (
        "stacks" if kind in {"threads", "outside", "aside", "main"} else kind.removeprefix("child ")
    )
    return {rank: directory / f"rank-{rank}.{name}" for rank in ranks}


def _ask(world: RunningWorld, files: Mapping[int, Path], kind: DumpKind, budget_s: float) -> None:
    """Request a dump from ranks, and wait until every file has grown and none grows any more."""
    if not files:
        return
    before = [_size(file) for file in files.values()]
    world.request_dumps(list(files), kind)
    deadline = time.monotonic() + budget_s
    sizes: deque[list[int]] = deque(maxlen=_STABLE)
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        sizes.append([_size(file) for file in files.values()])
        has_grown = all(size > was for size, was in zip(sizes[-1], before, strict=True))
        if has_grown and len(sizes) == _STABLE and all(each == sizes[0] for each in sizes):
            return


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return ""


def _parse(text: str, *, rank: int) -> Dump:
    """Return the last dump in a file, written by py-spy or faulthandler."""
    _, start, last = f"\n{text}".rpartition("\n[\n")
    try:
        return dump_of(rank, parse_dump(start + last))
    except ValueError:
        return parse_faulthandler(text, rank=rank)
