"""Parts of worlds made by hand, for tests of the judgement."""

from __future__ import annotations

import math

from pytest_multihost.testing import (
    Descriptor,
    Event,
    Process,
    Thread,
    exited,
    make_event,
    well_behaved,
)


def history_of_a_hang(size: int, *, ended_s: float = 19.0) -> list[Event]:
    """Return the events of ranks that reach the test's body, stay there and are then ended."""
    history = [
        make_event(0.0, rank, step.kind, step.detail)
        for rank in range(size)
        for step in well_behaved(rank, stays_in="call")
    ]
    ended = {**exited(signal=15), "by_harness": True}
    return [*history, *(make_event(ended_s, rank, "exited", ended) for rank in range(size))]


MAIN = 100


LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"


GLOO = ("/site-packages/torch/lib/libtorch_cpu.so", LIBC, "/usr/lib/libstdc++.so.6.0.30")


PYTHON = ("/usr/lib/libpython3.11.so.1.0", LIBC)


def thread(call: str = "futex", **changes: object) -> Thread:
    """Return a thread that waits for another one of its process, without a limit."""
    given: dict[str, object] = {
        "tid": MAIN,
        "name": "python",
        "call": call,
        "args": (1, 0x189) + (0,) * 4,
    }
    return Thread(**{**given, "ends_s": math.inf, "runs": 5, **changes})  # fmt: skip


def process(*threads: Thread, **changes: object) -> Process:
    """Return rank 0 with a main thread that waits, and these."""
    main = () if threads and threads[0].tid == MAIN else (thread(),)
    return Process(**{"pid": MAIN, "rank": 0, "threads": (*main, *threads), **changes})


def descriptor(kind: str, where: str = "inside", **changes: object) -> Descriptor:
    """Return descriptor 3."""
    return Descriptor(**{"fd": 3, "target": f"{kind}:[5]", "kind": kind, "where": where, **changes})
