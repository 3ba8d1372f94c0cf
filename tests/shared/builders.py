"""Values made by hand, for tests of the judgement: worlds, operations, snapshots, processes.

Each builder has a plain default, and takes the fields that a test is about by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pytest_multihost.core.blame import Cause, RankState
from pytest_multihost.core.engine import Surroundings, run_world
from pytest_multihost.testing import (
    Descriptor,
    Dump,
    Event,
    Frame,
    KernelSnapshot,
    LockHolder,
    LockWait,
    ManualClock,
    Operation,
    Operations,
    Process,
    RankSnapshot,
    ScriptedLauncher,
    Step,
    Thread,
    WorldResult,
    WorldSpec,
    exited,
    make_event,
    make_spec,
    well_behaved,
)

# Worlds


def in_tests(ranks: int | Iterable[int], at_s: float = 0.0) -> list[Event]:
    """Return the events of ranks that reach the test's body and stay there."""
    return [
        make_event(at_s, rank, step.kind, step.detail)
        for rank in (range(ranks) if isinstance(ranks, int) else ranks)
        for step in well_behaved(rank, stays_in="call")
    ]


def ended(ranks: int | Iterable[int], at_s: float) -> list[Event]:
    """Return the events of ranks that the harness ends."""
    detail = {**exited(signal=15), "by_harness": True}
    numbers = range(ranks) if isinstance(ranks, int) else ranks
    return [make_event(at_s, rank, "exited", detail) for rank in numbers]


def history_of_a_hang(size: int, *, ended_s: float = 19.0) -> list[Event]:
    """Return the events of ranks that reach the test's body, stay there and are then ended."""
    return [*in_tests(size), *ended(size, ended_s)]


def world(size: int = 3, history: Sequence[Event] = (), **changes: Any) -> WorldResult:  # noqa: ANN401
    """Return a world that was proven to hang, and ended after a minute."""
    given: dict[str, Any] = {
        "spec": make_spec(size),
        "launch": "scripted",
        "started_at": "2026-11-21T00:00:00Z",
        "started_s": 0.0,
        "ended_s": 60.0,
        "ending": "proof",
    }
    return WorldResult(history=tuple(history), **{**given, **changes})


def run_script(
    script: Sequence[Step],
    spec: WorldSpec,
    *,
    dumper: Callable[..., tuple[Dump, ...]] = lambda *_: (),
    directory: Path = Path("/nonexistent"),
) -> WorldResult:
    """Run a world whose ranks follow a script, from second 1000."""
    clock = ManualClock(1000.0)
    surroundings = Surroundings(
        launcher=ScriptedLauncher(clock, script),
        dumper=dumper,
        now=clock.now,
        directory=directory,
        scratch=directory,
    )
    return run_world(spec, surroundings)


# Operations, and what is seen of the ranks in them

AT = Frame("/t/train.py", 7, "save")


def operation(name: str = "all_reduce", **changes: Any) -> Operation:  # noqa: ANN401
    """Return the first collective of ranks 0-2, in which a thread waits since it began."""
    given = {"kind": "collective", "group": (0, 1, 2), "sequence": 1, "since_s": 1.0, **changes}
    return Operation(name=name, **{"waited_s": given["since_s"], **given})


def collective(sequence: int = 1, name: str = "all_reduce", **changes: Any) -> Operation:  # noqa: ANN401
    """Return a collective in which a thread waits since the second that is its number."""
    return operation(name, **{"sequence": sequence, "since_s": float(sequence), **changes})


def entered_in(known: Iterable[Operation]) -> dict[Any, int]:
    """Return how far a rank that has begun these collectives has come in each group."""
    entered: dict[Any, int] = {}
    for each in known:
        if each.kind == "collective":
            entered[each.group_key] = max(each.sequence, entered.get(each.group_key, 0))
    return entered


def page(rank: int, *known: Operation) -> Operations:
    """Return the slot page of a rank that has begun these operations."""
    return Operations(rank, known, entered_in(known))


def seen(rank: int, *pending: Operation, **changes: Any) -> RankSnapshot:  # noqa: ANN401
    """Return a blocked rank in these operations at one instant."""
    entered = tuple(entered_in(pending).items())
    given = {"label": "BLOCKED", "operations": pending, "entered": entered}
    return RankSnapshot(rank=rank, **{**given, **changes})


_OF_SNAPSHOT = {each.name for each in fields(RankSnapshot)}
_OF_SNAPSHOT -= {each.name for each in fields(RankState)}


def stands(rank: int, *known: Operation, **changes: Any) -> RankState:  # noqa: ANN401
    """Return the state of a rank that has begun these operations, and waits in the open ones.

    Changes are fields of the state, or of the rank's last snapshot.
    """
    pending = tuple(each for each in known if each.is_open and each.waited_s is not None)
    of_snapshot = {name: changes.pop(name) for name in _OF_SNAPSHOT if name in changes}
    given = {"known": known, "pending": pending, "entered": entered_in(known)}
    return RankState(seen=RankSnapshot(rank=rank, **of_snapshot), **{**given, **changes})


def cause(kind: str, culprits: Sequence[int] = (), **changes: Any) -> Cause:  # noqa: ANN401
    """Return a cause that is certain."""
    return Cause(kind=kind, confidence="certain", culprits=tuple(culprits), **changes)  # type: ignore[arg-type]


def lock_wait(thread: int, holder: int | None, lock: str = "a") -> LockWait:
    """Return the wait of a thread for a lock; thread 1 is the main one."""
    found = LockHolder(holder, f"T{holder}", AT, AT) if holder is not None else None
    return LockWait(thread, f"T{thread}", thread == 1, AT, lock, found)


# Processes as the kernel shows them

MAIN = 100
LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
GLOO = ("/site-packages/torch/lib/libtorch_cpu.so", LIBC, "/usr/lib/libstdc++.so.6.0.30")
PYTHON = ("/usr/lib/libpython3.11.so.1.0", LIBC)


def thread(call: str = "futex", **changes: Any) -> Thread:  # noqa: ANN401
    """Return a thread that waits for another one of its process, without a limit."""
    given = {"tid": MAIN, "name": "python", "call": call, "args": (1, 0x189, 0, 0, 0, 0)}
    return Thread(**{**given, "ends_s": math.inf, "runs": 5, **changes})


def process(*threads: Thread, **changes: Any) -> Process:  # noqa: ANN401
    """Return rank 0 with a main thread that waits, and these."""
    main = () if threads and threads[0].tid == MAIN else (thread(),)
    return Process(**{"pid": MAIN, "rank": 0, "threads": (*main, *threads), **changes})


def descriptor(kind: str, where: str = "inside", **changes: Any) -> Descriptor:  # noqa: ANN401
    """Return descriptor 3."""
    return Descriptor(**{"fd": 3, "target": f"{kind}:[5]", "kind": kind, "where": where, **changes})


def kernel_snapshot(*processes: Process, at_s: float = 100.0) -> KernelSnapshot:
    """Return a deep snapshot of processes."""
    return KernelSnapshot(at_s=at_s, processes=processes, is_deep=True)
