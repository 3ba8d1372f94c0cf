"""What the recorder adds to a call of torch.distributed.

Groups of one rank, of two and of four, one process per rank; five ways in turns of a hundred calls,
in every second round backwards: the methods that torch binds, the same methods each in an empty
Python function, with the recorder but for the history of operations, with the whole recorder, and
with the record of points that a sweep takes once. What the empty function costs is the price of
being there at all, on any recorder that is written in Python.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from pytest_multihost.core.model.event import RankEventBody, event_header, now
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch import install
from pytest_multihost.core.slots import SlotPage, page, slots_path
from pytest_multihost.extensions.faults.point_record import PointRecord
from pytest_multihost.extensions.faults.points import Points
from pytest_multihost.testing import make_spec

CALLS = 100
LIMIT = timedelta(seconds=60)
WAYS = ("bare", "empty", "without history", "recorded", "with points")
WRITE_HISTORY = page._pack_entry  # noqa: SLF001 - to measure without it
METHODS = [
    (owner, name, vars(owner)[name])
    for owner in (dist.ProcessGroup, dist.Work)
    for name in ("allreduce", "barrier", "wait")
    if name in vars(owner)
]
Methods = Sequence[tuple[type, str, Any]]
Round = Mapping[str, float]


def main() -> None:
    """Measure, print a line for each, and at last all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=120)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    found = {}
    for size in (1, 2, 4):
        with tempfile.TemporaryDirectory() as directory:
            children = [_fork(Path(directory), size, rank, rounds) for rank in range(1, size)]
            for name, times in _be_rank(Path(directory), size, 0, rounds).items():
                found[f"{size} rank(s), {name}"] = times
                print(f"{size} rank(s), {name:18} {text_of(times)}", file=sys.stderr)
            for child in children:
                os.waitpid(child, 0)
            dist.destroy_process_group()
        _put(METHODS)
    print(json.dumps(found))


def text_of(times: Sequence[Round]) -> str:
    """Return what is added, in words."""
    bare = median(each["bare"] for each in times)
    added = {way: median(each[way] - each["bare"] for each in times) for way in WAYS[1:]}
    history = median(1 - each["without history"] / each["recorded"] for each in times)
    points = median(each["with points"] / each["recorded"] - 1 for each in times)
    return (
        f"{bare:9.0f} ns bare, an empty wrapper {added['empty']:+7.0f} ns,"
        f" the recorder {added['recorded']:+7.0f} ns; the history is {history:+.2%} of it all;"
        f" points add {added['with points'] - added['recorded']:+7.0f} ns, {points:+.2%}"
    )


def _fork(directory: Path, size: int, rank: int, rounds: int) -> int:
    child = os.fork()
    if child == 0:
        _be_rank(directory, size, rank, rounds)
        os._exit(0)
    return child


def _be_rank(directory: Path, size: int, rank: int, rounds: int) -> dict[str, list[Round]]:
    recorder = Recorder(SlotPage.create(slots_path(directory, rank)), rank, size)
    recorded = _recorded(recorder)
    methods = {
        "bare": METHODS,
        "empty": _emptily(METHODS),
        "recorded": recorded,
        "without history": recorded,
        "with points": recorded,
    }
    store = dist.FileStore(str(directory / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)
    points = _recording_points(recorder)
    tensor = torch.ones(4)
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_reduce, async": lambda: dist.all_reduce(tensor, async_op=True).wait(),
        "barrier": dist.barrier,
    }
    return {
        name: [
            _measure(call, methods, recorder, points, is_backwards=each % 2 == 1)
            for each in range(rounds)
        ]
        for name, call in calls.items()
    }


def _recorded(recorder: Recorder) -> Methods:
    """Return the methods as a recorder of their own wraps them."""
    install(recorder)
    wrapped = [(owner, name, vars(owner)[name]) for owner, name, _ in METHODS]
    _put(METHODS)
    return wrapped


def _emptily(methods: Methods) -> Methods:
    """Return the methods, each in a function that only passes the call on."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def empty(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passes it on
            return original(self, *args, **kwargs)

        return empty

    return [(owner, name, wrap(method)) for owner, name, method in methods]


def _recording_points(recorder: Recorder) -> Points:
    """Return points that are recorded; batches are written and sent to nobody."""

    def send(body: RankEventBody) -> None:
        json.dumps(event_header(body, now()))

    spec = RankSpec(
        world=make_spec(recorder.size),
        rank=recorder.rank,
        directory="/",
        scratch="/",
        ports=(0, 0),
    )
    return Points(spec, send, [], str, PointRecord(recorder, "/", send))


def _measure(
    call: Callable[[], Any],
    methods: Mapping[str, Methods],
    recorder: Recorder,
    points: Points,
    *,
    is_backwards: bool,
) -> Round:
    """Return nanoseconds per call each way."""
    times = {}
    for way in reversed(WAYS) if is_backwards else WAYS:
        _put(methods[way])
        # str.format takes what writes the history takes, and does nothing with it.
        write = "".format if way == "without history" else WRITE_HISTORY
        page._pack_entry = write  # type: ignore[assignment]  # noqa: SLF001
        recorder.on_begin[:] = [points.begin_operation] if way == "with points" else []
        call()
        started = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        times[way] = (time.perf_counter_ns() - started) / CALLS
    recorder.on_begin.clear()
    return times


def _put(methods: Methods) -> None:
    for owner, name, method in methods:
        setattr(owner, name, method)


if __name__ == "__main__":
    main()
