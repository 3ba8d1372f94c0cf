"""The rule about calls that can fail on some ranks only, on hand-made records and sources."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_multihost.core.model.fault import UNHANDLED, ErrorPath, Point
from pytest_multihost.core.model.operation import HARNESS_SCOPE, RUNTIME_SCOPE, Operation, Scope
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.stack import Frame, SourceContext
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.extensions.hazards.find import find_hazards, suspected_faults
from pytest_multihost.extensions.hazards.model import Hazards, Launch, Passed, RankRecord

FILE, HANDLED = "/job/train.py", "step+20 abc"
PAIR = (0, 1)


def frames(*lines: tuple[str, int]) -> tuple[Frame, ...]:
    """Return the user's lines, innermost first."""
    return tuple(Frame(FILE, line, function) for function, line in lines)


def passed(
    point: Point, lines: tuple[Frame, ...], *, rank: int = 0, path: str = UNHANDLED
) -> Passed:
    """Return a point that a rank has passed."""
    where = Place(lines[0].file, lines[0].line, lines[0].function)
    return Passed(
        RecordedPoint(rank, point, 0, where=where, error_path=ErrorPath.parse(path)), lines
    )


def io(line: int = 3, call: str = "write", function: str = "step", path: str = UNHANDLED) -> Passed:
    """Return a call on a file."""
    return passed(Point("io", "*/ckpt", call=call), frames((function, line)), path=path)


def meeting(line: int = 9, function: str = "step", nth: int = 1) -> Passed:
    """Return the barrier at which the ranks meet."""
    return passed(Point("collective", "barrier", nth), frames((function, line)))


def record(
    rank: int, *points: Passed, scope: Scope = RUNTIME_SCOPE, group: tuple[int, ...] = PAIR
) -> RankRecord:
    """Return what a rank has passed, and the barriers among it as it has launched them."""
    meetings = [each for each in points if each.point.point.name == "barrier"]
    launches = tuple(
        Launch(
            rank,
            number,
            1,
            each.frames[0],
            Operation(
                name="barrier",
                kind="collective",
                group=group,
                scope=scope,
                sequence=number,
                since_s=float(number),
                waited_s=float(number),
                ended_s=number + 0.5,
            ),
            each.point.point.nth,
        )
        for number, each in enumerate(meetings, 1)
    )
    return RankRecord(rank, launches, passed=points)


def found(*records: RankRecord, source: str = "") -> Hazards:
    """Return what the rule finds in a program."""
    return find_hazards(
        {each.rank: each for each in records},
        ("unguarded",),
        size=2,
        place_of=SourceContext("/job", lambda _, line: f"line {line}").place,
        text_of=lambda _: textwrap.dedent(source),
    )


def is_told(source: str, *, call: int, meets: int, path: str = HANDLED) -> bool:
    """Return whether a call at one line of `step` is told, before a barrier at another."""
    ranks = record(0, io(call, path=path), meeting(meets)), record(1, meeting(meets))
    return bool(found(*ranks, source=source).found)


def test_a_call_of_one_rank_that_nothing_handles_is_told() -> None:
    """With its line, and the lines at which both ranks meet."""
    [hazard] = found(record(0, io(3), meeting()), record(1, meeting())).found
    steps = [[each.where.line for each in side.steps if each.where] for side in hazard.sides]
    assert steps == [[3, 9], [9]]
    assert "a failed write keeps rank 0 from what the world group waits in" in hazard.text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (record(0, io(), meeting()), record(1, io(), meeting())),
        (record(0, meeting(), io()), record(1, meeting())),
        (record(0, io(call="stat"), meeting()), record(1, meeting())),
        (record(0, io(), meeting(), scope=HARNESS_SCOPE), record(1, meeting())),
        (record(0, io(), meeting(), group=(0,)), record(1, meeting())),
        (record(0, io(), meeting()), record(1)),
        (
            record(0, replace(io(), point=replace(io().point, is_main=False)), meeting()),
            record(1, meeting()),
        ),
        (replace(record(0, io(), meeting()), is_truncated=True), record(1, meeting())),
    ],
    ids=[
        "all ranks do it",
        "nobody waits afterwards",
        "it only asks",
        "the harness tells the others",
        "a group of its own",
        "the other is not there",
        "another thread",
        "a record that is cut off",
    ],
)
def test_calls_that_keep_nobody_waiting_are_no_hazard(one: RankRecord, other: RankRecord) -> None:
    """Each differs in one thing from what is told."""
    assert found(one, other).found == ()


def test_a_library_that_may_swallow_the_error_is_no_hazard() -> None:
    """It is known of few functions that they raise again."""
    assert not is_told("", call=3, meets=9, path=f"rmtree|{UNHANDLED}")
    assert is_told("", call=3, meets=9, path=f"Path.mkdir|{UNHANDLED}")
    assert not is_told("", call=3, meets=9, path="exists+4 abc")


def test_points_that_are_not_recorded_show_nothing() -> None:
    """A run without them is judged by the other rules alone."""
    ranks = (replace(record(each, io(), meeting()), passed=()) for each in PAIR)
    assert found(*ranks).found == ()


GUILTY: Mapping[str, tuple[str, int, int]] = {
    "the barrier is in the same try": (
        """\
        def step():
            try:
                write()
                barrier()
            except OSError as error:
                print("not saved:", error)
        """,
        3,
        4,
    ),
    "the function returns": (
        """\
        def step():
            try:
                write()
            except Exception:
                log.exception("not saved")
                return False
            barrier()
        """,
        3,
        7,
    ),
    "another error is meant": (
        """\
        def step():
            try:
                write()
            except ValueError:
                pass
            barrier()
        """,
        3,
        6,
    ),
    "raised again": (
        """\
        def step():
            try:
                write()
            except OSError as error:
                raise RuntimeError("not saved") from error
            barrier()
        """,
        3,
        6,
    ),
    "noted on the way out": (
        """\
        def step():
            try:
                write()
            finally:
                print("saved or not")
            barrier()
        """,
        3,
        6,
    ),
    "in a handler": (
        """\
        def step():
            try:
                look()
            except OSError:
                write()
            barrier()
        """,
        5,
        6,
    ),
    "a manager that passes errors on": (
        """\
        def step():
            with torch.no_grad():
                write()
            barrier()
        """,
        3,
        4,
    ),
}

INNOCENT: Mapping[str, tuple[str, int, int]] = {
    "handled before the barrier": (
        """\
        def step():
            try:
                write()
            except OSError as error:
                failed = repr(error)
            barrier()
        """,
        3,
        6,
    ),
    "the barrier is in finally": (
        """\
        def step():
            try:
                write()
            finally:
                barrier()
        """,
        3,
        5,
    ),
    "the handler calls something": (
        """\
        def step():
            try:
                write()
                barrier()
            except OSError:
                tell_the_others()
        """,
        3,
        4,
    ),
    "a manager of one's own": (
        """\
        def step():
            with all_or_none("saving"):
                write()
        """,
        3,
        2,
    ),
    "a handler further out does more": (
        """\
        def step():
            try:
                try:
                    write()
                except OSError:
                    raise
                barrier()
            except Exception:
                abort(everybody)
        """,
        4,
        7,
    ),
    "tried again": (
        """\
        def step():
            for _ in range(3):
                try:
                    write()
                    barrier()
                    break
                except OSError:
                    continue
        """,
        4,
        5,
    ),
    "returns past a finally": (
        """\
        def step():
            try:
                try:
                    write()
                except OSError:
                    return
                barrier()
            finally:
                barrier()
        """,
        4,
        7,
    ),
    "a coroutine": (
        """\
        async def step():
            async with gate:
                write()
            barrier()
        """,
        3,
        4,
    ),
}


@pytest.mark.parametrize("name", GUILTY)
def test_code_that_leaves_the_barrier_out_is_told(name: str) -> None:
    """The rank goes on, or its test fails; the others wait."""
    source, call, meets = GUILTY[name]
    assert is_told(source, call=call, meets=meets)


@pytest.mark.parametrize("name", INNOCENT)
def test_code_that_comes_to_the_barrier_or_may_tell_is_not_told(name: str) -> None:
    """What is not certain is left to a sweep."""
    source, call, meets = INNOCENT[name]
    assert not is_told(source, call=call, meets=meets)


def test_a_handler_of_a_caller_counts_where_that_call_is() -> None:
    """The call is in a function, the barrier in the one that calls it, in the same try or not."""
    source = """\
    def save():
        write()

    def step():
        try:
            save()
            inside()
        except OSError:
            pass
        outside()
    """
    lines = frames(("save", 2), ("step", 6))
    call = passed(Point("io", "*/ckpt", call="write"), lines, path=HANDLED)
    told = [
        bool(found(record(0, call, meeting(at)), record(1, meeting(at)), source=source).found)
        for at in (7, 10)
    ]
    assert told == [True, False]


def test_another_call_of_the_same_function_is_not_in_its_try() -> None:
    """The frames further out tell the two calls apart."""
    source = """\
    def tried(function):
        try:
            function()
        except OSError:
            pass

    def step():
        tried(write)
        tried(barrier)
    """
    call = passed(
        Point("io", "*/ckpt", call="write"), frames(("tried", 3), ("step", 8)), path=HANDLED
    )
    meets = passed(Point("collective", "barrier"), frames(("tried", 3), ("step", 9)))
    assert found(record(0, call, meets), record(1, meets), source=source).found == ()


def test_a_sweep_lets_the_call_fail() -> None:
    """The very passage that was told of."""
    point = Point("io", "*/ckpt", nth=3, call="rename")
    call = passed(point, frames(("step", 3)))
    [tried] = suspected_faults(found(record(0, call, meeting()), record(1, meeting())), size=2)
    assert (tried.kind, tried.ranks, tried.at) == ("fails", (0,), point)


def test_a_read_of_the_store_can_fail() -> None:
    """Its timeout is up on one rank, and the other is in the barrier."""
    call = passed(Point("collective", "store.get"), frames(("step", 3)))
    [hazard] = found(record(0, call, meeting()), record(1, meeting())).found
    assert hazard.sides[0].steps[0].text == "store.get"


def test_an_operation_that_consists_of_others_is_where_the_others_wait() -> None:
    """`broadcast_object_list` is no operation of the record's, but the one that it calls is."""
    whole = passed(Point("collective", "broadcast_object_list"), frames(("step", 9)))
    one, other = record(0, meeting()), record(1, meeting())
    one, other = replace(one, passed=(io(), whole)), replace(other, passed=(whole,))
    assert len(found(one, other).found) == 1
