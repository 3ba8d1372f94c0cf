"""`trace.json`: what is on which track, and what readers of the format demand of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_multihost import at, faults
from pytest_multihost.extensions.trace.trace import trace_of, write_trace
from pytest_multihost.testing import (
    Activity,
    Diagnosis,
    Event,
    Fault,
    Frame,
    Operation,
    OperationName,
    Operations,
    RankPlace,
    RankSnapshot,
    WaitsFor,
    WorldResult,
    WorldSnapshot,
    WorldSpec,
    make_event,
    sentence,
)

pytestmark = pytest.mark.unit

SCHEMA = json.loads(Path(__file__).with_name("trace.schema.json").read_text())
START = 1000.0
ROOT = "/home/u/project"
EVERYBODY = (0, 1, 2)

Json = Mapping[str, Any]


def operation(
    name: str, since: float, until: float | None, *, sequence: int = 1, **more: object
) -> Operation:
    """Return a collective of everybody, in seconds from the world's start."""
    given: dict[str, Any] = {"kind": "collective", "group": EVERYBODY, **more}
    ended_s = None if until is None else START + until
    since_s = START + since
    return Operation(name=name, sequence=sequence, since_s=since_s, ended_s=ended_s, **given)


def life(rank: int, *, exited: float = 5.0, by_harness: bool = True) -> list[Event]:
    """Return what is told of a rank that is in the test's body from 0.3 s on."""
    status = {"code": None, "signal": 9, "cpu_s": 0.1, "peak_rss_bytes": 1}
    return [
        make_event(START + 0.1, rank, "forked", {"pid": 100 + rank}),
        make_event(START + 0.2, rank, "ready"),
        make_event(START + 0.25, rank, "phase", {"phase": "setup"}),
        make_event(START + 0.3, rank, "phase", {"phase": "call"}),
        make_event(START + exited, rank, "exited", {**status, "by_harness": by_harness}),
    ]


def world(
    operations: Mapping[int, Sequence[Operation]],
    history: Sequence[Event] | None = None,
    *,
    having: tuple[Fault, ...] = (),
    snapshots: tuple[WorldSnapshot, ...] = (),
) -> WorldResult:
    """Return a world of three that was judged after four seconds and ended after five."""
    return WorldResult(
        spec=WorldSpec(
            nodeid="test_ckpt.py::test_restore",
            attempt=1,
            size=3,
            backend="gloo",
            local_devices=1,
            timeout_s=60,
            startup_timeout_s=60,
            seed=7,
            faults=having,
        ),
        launch="fork",
        started_at="2026-11-21T00:00:00Z",
        started_s=START,
        ended_s=START + 5,
        history=tuple(history or [event for rank in EVERYBODY for event in life(rank)]),
        ending="proof",
        operations=tuple(Operations(rank, tuple(ops)) for rank, ops in operations.items()),
        snapshots=snapshots,
        detected_s=START + 4,
    )


def straggler(*waiting: int, operation: OperationName | None) -> Diagnosis:
    """Return that rank 0 makes others wait."""
    return Diagnosis(
        kind="straggler",
        confidence="certain",
        phase="call",
        culprits=(0,),
        waiting=waiting,
        cycle=(),
        waits_for=tuple(WaitsFor(rank, operation, (0,)) for rank in waiting),
        operation=operation,
        where=RankPlace(0, "storage.py", 17, "read", "f.read()"),
        silent_s=2.0,
        detected_after_s=2.0,
        detected_by="proof",
        headline=sentence("rank 0 never reached all_reduce #1 (world group)"),
        evidence=(),
        groups=(),
        notes=(),
    )


LATE = {
    0: [operation("barrier", 0.35, 0.4)],
    1: [operation("all_reduce", 0.6, None, waited_s=START + 0.6)],
    2: [operation("all_reduce", 0.7, None, waited_s=START + 0.7)],
}
ALL_REDUCE = OperationName("all_reduce", 1, EVERYBODY)


def events(trace: Json, ph: str, **wanted: object) -> list[Json]:
    """Return the events of a kind that have all that is wanted."""
    return [
        each
        for each in trace["traceEvents"]
        if each["ph"] == ph and wanted.items() <= {**each.get("args", {}), **each}.items()
    ]


def track_names(trace: Json) -> dict[int, str]:
    """Return the names of the tracks."""
    return {each["tid"]: each["args"]["name"] for each in events(trace, "M", name="thread_name")}


def rank_of(trace: Json, event: Json) -> str:
    """Return the name of an event's track."""
    return track_names(trace)[event["tid"]]


def problems(trace: Json) -> list[str]:
    """Return why a reader would leave something out."""
    jsonschema.validate(trace, SCHEMA)
    found = []
    slices = events(trace, "X")
    for one, other in combinations(slices, 2):
        if one["tid"] == other["tid"] and _cross(one, other):
            found.append(f"{one['name']} and {other['name']} cross")
    begun = {each["id"]: each for each in events(trace, "s")}
    ended = {each["id"]: each for each in events(trace, "f")}
    if begun.keys() != ended.keys():
        found.append("an arrow has one end")
    for number, first in begun.items():
        last = ended[number]
        if last["ts"] < first["ts"]:
            found.append(f"arrow {number} goes back in time")
        found += [f"arrow {number} hangs loose" for end in (first, last) if not _in(end, slices)]
    return found


def _cross(one: Json, other: Json) -> bool:
    first, second = sorted((one, other), key=lambda each: (each["ts"], -each["dur"]))
    end, other_end = (each["ts"] + each["dur"] for each in (first, second))
    return second["ts"] < end < other_end


def _in(end: Json, slices: Sequence[Json]) -> bool:
    return any(
        each["tid"] == end["tid"] and each["ts"] <= end["ts"] < each["ts"] + each["dur"]
        for each in slices
    )


def test_a_rank_has_a_track_in_the_order_of_the_ranks() -> None:
    """One for each, below the world's name."""
    trace = trace_of(world(LATE), straggler(1, 2, operation=ALL_REDUCE), root=ROOT)
    assert problems(trace) == []
    assert [name for _, name in sorted(track_names(trace).items())] == [
        "rank 0",
        "rank 1",
        "rank 2",
    ]
    (named,) = events(trace, "M", name="process_name")
    assert named["args"]["name"] == "test_ckpt.py::test_restore (3 ranks, gloo)"
    assert trace["otherData"]["summary"] == "rank 0 never reached all_reduce #1 (world group)"


def test_an_operation_is_a_slice_with_its_arguments() -> None:
    """In microseconds from the world's start."""
    place = Frame(f"{ROOT}/restore.py", 88, "broadcast")
    one = operation("all_reduce", 0.5, 0.75, sequence=3, detail="f32[3]", frame=place)
    trace = trace_of(world({1: [one]}), None, root=ROOT)
    (found,) = events(trace, "X", cat="operation")
    assert (found["name"], found["ts"], found["dur"]) == (
        "all_reduce #3 (world group)",
        500_000,
        250_000,
    )
    assert rank_of(trace, found) == "rank 1"
    assert found["args"] == {
        "kind": "collective",
        "group": "ranks 0-2",
        "sequence": 3,
        "detail": "f32[3]",
        "place": "restore.py:88",
        "function": "broadcast",
        "waits": False,
        "source": "recorder",
    }


def test_an_open_operation_lasts_as_long_as_its_rank() -> None:
    """It is told apart from one that ended."""
    trace = trace_of(world(LATE), None, root=ROOT)
    found = events(trace, "X", cat="open operation")
    assert [each["ts"] + each["dur"] for each in found] == [5_000_000] * 2
    assert [each["args"]["ended"] for each in found] == ["never"] * 2


def test_what_waits_points_to_the_culprit() -> None:
    """From the beginning of each wait to the moment from which on all of them do."""
    trace = trace_of(world(LATE), straggler(1, 2, operation=ALL_REDUCE), root=ROOT)
    starts = {rank_of(trace, each): each["ts"] for each in events(trace, "s")}
    assert starts == {"rank 1": 600_001, "rank 2": 700_001}
    ends = {(rank_of(trace, each), each["ts"]) for each in events(trace, "f")}
    assert ends == {("rank 0", 700_002)}
    (awaited,) = events(trace, "X", cat="awaited")
    assert (awaited["name"], awaited["ts"]) == ("ranks 1,2 waiting for it", 700_002)
    (last,) = events(trace, "X", cat="culprit")
    assert last["name"] == "straggler: storage.py:17 f.read()"
    assert (rank_of(trace, last), last["ts"]) == ("rank 0", 400_000)


def test_a_wait_for_the_lock_of_a_file_has_an_arrow_too() -> None:
    """It is no operation, so the arrow starts where its rank was at last."""
    trace = trace_of(world({}), straggler(2, operation=None), root=ROOT)
    assert problems(trace) == []
    assert [rank_of(trace, each) for each in events(trace, "s")] == ["rank 2"]


def test_a_rank_that_died_before_anybody_waited_is_pointed_to() -> None:
    """How it ended lasts until the world's end, so no arrow goes back in time."""
    history = [*life(0, exited=0.5, by_harness=False), *life(1), *life(2)]
    trace = trace_of(world(LATE, history), straggler(1, 2, operation=ALL_REDUCE), root=ROOT)
    assert problems(trace) == []
    assert len(events(trace, "f")) == 2
    (last,) = events(trace, "X", cat="culprit")
    assert (last["name"], last["ts"]) == ("was killed by SIGKILL", 500_000)


def test_a_culprit_in_an_operation_of_its_own_is_shown_in_that() -> None:
    """As a mismatch has it: nothing is invented about where it is."""
    both = {**LATE, 0: [operation("barrier", 0.5, None)]}
    trace = trace_of(world(both), straggler(1, 2, operation=ALL_REDUCE), root=ROOT)
    assert events(trace, "X", cat="culprit") == []
    assert problems(trace) == []


def test_the_moment_of_the_hang_is_marked_for_everybody() -> None:
    """With the verdict's own words."""
    trace = trace_of(world(LATE), straggler(1, 2, operation=ALL_REDUCE), root=ROOT)
    (found,) = events(trace, "i", s="g")
    assert found["name"] == "rank 0 never reached all_reduce #1 (world group)"
    assert found["ts"] == 4_000_000


def test_faults_are_moments_of_their_ranks() -> None:
    """Where they began and where they were over, as the test has them."""
    slow = faults.delay(rank=1, seconds=2, at=at.sync_point("before-commit"))
    begun = {"index": 0, "fault": "delay", "phase": "begun"}
    history = [
        *life(1),
        make_event(START + 1, 1, "fault", begun),
        make_event(START + 3, 1, "fault", {**begun, "phase": "ended"}),
    ]
    trace = trace_of(world({}, history, having=(slow,)), None, root=ROOT)
    found = events(trace, "i", cat="fault")
    assert [(each["name"], each["ts"]) for each in found] == [
        (f"{slow!r}: begun", 1_000_000),
        (f"{slow!r}: ended", 3_000_000),
    ]
    assert {rank_of(trace, each) for each in found} == {"rank 1"}


def test_what_was_seen_of_a_rank_at_last_is_told_where_it_was() -> None:
    """Its label, and what it was doing: of the culprit, and of who waits."""
    looks = (
        RankSnapshot(rank=0, label="SLEEPING", activity=Activity("sleep", ends_in_s=600.0)),
        RankSnapshot(rank=1, label="BLOCKED", activity=Activity("futex")),
    )
    snapshot = WorldSnapshot(at_s=START + 3.9, reason="tick", ranks=looks)
    seen = world(LATE, snapshots=(snapshot,))
    trace = trace_of(seen, straggler(1, 2, operation=ALL_REDUCE), root=ROOT)
    told = {each["args"].get("seen"): each["cat"] for each in events(trace, "X")}
    assert told["SLEEPING sleep for another 600.0 s"] == "culprit"
    assert told["BLOCKED on a lock"] == "open operation"


@pytest.mark.parametrize(
    ("second", "tracks"),
    [((0.6, 0.7), 1), ((0.5, 0.8), 1), ((0.8, 0.9), 1), ((0.6, 0.9), 2), ((0.6, None), 2)],
)
def test_work_that_crosses_other_work_gets_a_track_of_its_own(
    second: tuple[float, float | None], tracks: int
) -> None:
    """What lies within or behind the other does not: readers drop what crosses."""
    both = [operation("all_reduce", 0.5, 0.8), operation("broadcast", *second, sequence=2)]
    trace = trace_of(world({1: both}), None, root=ROOT)
    assert problems(trace) == []
    assert len(events(trace, "X", cat="operation")) + len(
        events(trace, "X", cat="open operation")
    ) == len(both)
    assert [*track_names(trace).values()].count("rank 1 beside") == tracks - 1


def test_times_that_differ_by_less_than_a_microsecond_do_not_cross() -> None:
    """The operation's end is rounded as its phase's is."""
    many = [operation("barrier", 0.31 + i * 0.0000004, 0.31 + i * 0.0000011) for i in range(50)]
    assert problems(trace_of(world({1: many}), None, root=ROOT)) == []


def test_an_operation_that_only_stacks_tell_of_is_shown_once() -> None:
    """What the slot page has and a look has seen is one operation."""
    (known,) = LATE[1]
    native = operation("psum", 0.9, None, source="native-frames", sequence=0)
    look = RankSnapshot(rank=1, operations=(known, native))
    snapshot = WorldSnapshot(at_s=START + 3.9, reason="end", ranks=(look,))
    trace = trace_of(world(LATE, snapshots=(snapshot,)), None, root=ROOT)
    mine = [each for each in events(trace, "X", cat="open operation") if each["tid"] // 1000 == 2]
    assert [each["args"]["source"] for each in mine] == ["recorder", "native-frames"]


def test_a_world_of_which_nothing_was_seen_has_a_trace(tmp_path: Path) -> None:
    """Say its server was killed."""
    result = world({}, [make_event(START, 0, "forked", {"pid": 1})])
    trace = trace_of(result, None, root=ROOT)
    assert problems(trace) == []
    write_trace(tmp_path, result, None, root=ROOT)
    assert json.loads((tmp_path / "trace.json").read_text()) == trace


def test_the_checks_see_what_readers_drop() -> None:
    """They find a crossing slice, a loose arrow and a field of the wrong kind."""
    trace = trace_of(world(LATE), straggler(1, operation=ALL_REDUCE), root=ROOT)
    culprit = events(trace, "X", cat="culprit")[0]
    arrow = events(trace, "f")[0]
    crossing = {**culprit, "ts": culprit["ts"] + 1}
    assert problems({**trace, "traceEvents": [*trace["traceEvents"], crossing]})
    loose = [each if each is not arrow else {**each, "tid": 9} for each in trace["traceEvents"]]
    assert problems({**trace, "traceEvents": loose})
    wrong = [{**each, "ts": -1} if each is arrow else each for each in trace["traceEvents"]]
    with pytest.raises(jsonschema.ValidationError):
        problems({**trace, "traceEvents": wrong})
