"""Where it matters which rank comes first: from points written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_multihost.extensions.sweep.epochs import order_of
from pytest_multihost.extensions.sweep.sharing import is_written_before, sharing_of
from pytest_multihost.testing import ErrorPath, Place, Point, RecordedPoint

pytestmark = pytest.mark.unit

FILE, FOLDER = "*/ckpt/done", "*/ckpt"


def io(call: str, name: str = FILE, **more: object) -> RecordedPoint:
    """Return a call on a file, at a line of its own for each call."""
    where = Place("t.py", sum(call.encode()), "f")
    point = RecordedPoint(0, Point("io", name, call=call), 0, where=where)
    return replace(point, **more)  # type: ignore[arg-type] # fields of it


def meet(name: str = "barrier", **more: object) -> RecordedPoint:
    """Return an operation that is over once all have entered it."""
    point = RecordedPoint(0, Point("collective", name), 0, meets_all=True)
    return replace(point, **more)  # type: ignore[arg-type] # fields of it


def ranks(*passed: tuple[RecordedPoint, ...]) -> dict[int, tuple[RecordedPoint, ...]]:
    """Return what each rank has passed, in order; equal points are told apart by their number."""
    return {
        rank: tuple(
            replace(each, rank=rank, point=replace(each.point, nth=number))
            for number, each in enumerate(points, 1)
        )
        for rank, points in enumerate(passed)
    }


def is_raced(*passed: tuple[RecordedPoint, ...]) -> bool:
    """Return whether the first call on a file of rank 0 is raced."""
    points = ranks(*passed)
    sharing = sharing_of(points, order_of(points, len(points)))
    return sharing.is_raced(next(each for each in points[0] if each.point.point == "io"))


MAKES = io("open", makes=True)
READS = io("open")
ASKS = io("stat", error_path=ErrorPath(handler="Path.exists", at="10 7f"))
SIZE = io("stat", error_path=ErrorPath(handler="test"))


OTHER = "*/ckpt/step-2"


@pytest.mark.parametrize(
    ("asks", "name", "is_so"),
    [(SIZE, OTHER, True), (ASKS, OTHER, False), (SIZE, FILE, False)],
    ids=["times", "names", "one file"],
)
def test_files_whose_times_a_rank_compares_are_raced(
    asks: RecordedPoint, name: str, is_so: bool
) -> None:
    """Which of two is the newest depends on which rank comes last; whether they exist does not."""
    look = (meet(), asks, replace(asks, point=Point("io", name, call="stat")))
    mine, others = (MAKES, *look), (io("open", OTHER, makes=True), meet())
    assert is_raced(mine, others) == is_so
    assert is_raced(others, mine) == is_so
    assert not is_raced((MAKES, *look), (meet(), io("open", OTHER, makes=True)))


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (MAKES, ASKS),
        (MAKES, READS),
        (MAKES, MAKES),
        (ASKS, io("unlink")),
        (io("rename"), READS),
        (io("write"), io("read")),
        (io("write"), SIZE),
        (io("listdir", FOLDER), MAKES),
        (io("unlink"), io("listdir", FOLDER)),
        (io("mkdir", FOLDER), MAKES),
        (READS, io("rename", "*/old", other=FOLDER)),
        (io("write"), io("rename", "*/new", other=FOLDER)),
        (io("mkdir", FOLDER), io("mkdir", FOLDER)),
    ],
)
def test_calls_of_two_ranks_are_raced_if_one_changes_what_the_other_finds(
    mine: RecordedPoint, other: RecordedPoint
) -> None:
    """Nothing orders them, so each may come first; it is the same from either side."""
    assert is_raced((mine,), (other,))
    assert is_raced((other,), (mine,))


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (READS, READS),
        (ASKS, SIZE),
        (io("listdir", FOLDER), io("listdir", FOLDER)),
        (io("write"), ASKS),
        (io("write"), READS),
        (io("read"), io("unlink")),
        (io("listdir", FOLDER), io("write")),
        (MAKES, io("open", "*/ckpt/other", makes=True)),
        (io("listdir", "*"), MAKES),
    ],
)
def test_calls_that_do_not_change_what_the_other_finds_are_not_raced(
    mine: RecordedPoint, other: RecordedPoint
) -> None:
    """An open file stays open, a name says nothing of the content, a listing nothing of depths."""
    assert not is_raced((mine,), (other,))
    assert not is_raced((other,), (mine,))


def test_calls_of_one_rank_are_not_raced() -> None:
    """They come in its order."""
    assert not is_raced((MAKES, ASKS), (meet(),))


def test_what_all_ranks_have_met_between_is_not_raced() -> None:
    """Whoever is late, the barrier waits for it."""
    assert not is_raced((MAKES, meet()), (meet(), READS))
    assert is_raced((MAKES, meet()), (READS, meet()))


@pytest.mark.parametrize(
    "between",
    [
        (meet(meets_all=False), meet(meets_all=False)),
        (meet(), meet("all_reduce")),
        (meet(is_main=False), meet(is_main=False)),
    ],
)
def test_an_operation_that_does_not_surely_wait_for_all_orders_nothing(
    between: tuple[RecordedPoint, RecordedPoint],
) -> None:
    """It is rooted, or asynchronous; the ranks meet others than each other; a thread is in it."""
    assert is_raced((MAKES, between[0]), (between[1], READS))


def test_operations_count_as_far_as_all_ranks_pass_the_same() -> None:
    """After that nobody knows which belong together."""
    differ = (meet("all_reduce"), meet("all_gather"))
    assert not is_raced((MAKES, meet(), differ[0]), (meet(), differ[1], READS))
    assert is_raced((meet(), MAKES, differ[0]), (meet(), differ[1], READS))


def test_a_rank_that_meets_nobody_is_ordered_with_nobody() -> None:
    """It may be early or late."""
    assert is_raced((MAKES, meet()), (meet(), READS), (READS,))


def test_other_threads_may_do_what_they_do_at_any_time() -> None:
    """When they were begun and are awaited is not recorded."""
    assert is_raced((replace(MAKES, is_main=False), meet()), (meet(), READS))


def test_a_folder_that_each_rank_makes_for_itself_is_there_for_what_it_does_in_it() -> None:
    """Whoever was first."""
    mkdir, inside = io("mkdir", FOLDER), io("open", makes=True)
    points = ranks((mkdir, inside), (mkdir, io("open", "*/ckpt/other", makes=True)))
    sharing = sharing_of(points, order_of(points, 2))
    assert [sharing.is_raced(each) for each in points[0]] == [True, False]


def test_whoever_asks_about_a_folder_since_it_could_not_make_it_is_not_raced() -> None:
    """It is there by then; asking before is another line."""
    mkdir = io("mkdir", FOLDER)
    asks = replace(io("stat", FOLDER), where=mkdir.where)
    before = io("stat", FOLDER)
    points = ranks((before, mkdir, asks), (mkdir,))
    sharing = sharing_of(points, order_of(points, 2))
    assert [sharing.is_raced(each) for each in points[0]] == [True, True, False]


def test_a_file_is_written_again_if_the_rank_has_made_it_before_an_operation() -> None:
    """Up to the point; another file, a read or another rank's call does not count."""
    later = replace(MAKES, span=1)
    points = ranks((MAKES, READS, io("write"), later, replace(io("write"), span=1)), (MAKES, later))
    mine = points[0]
    assert [is_written_before(points, each) for each in mine] == [False, False, False, True, True]
    others = ranks((io("open", "*/a", makes=True), later), (MAKES,))
    assert not is_written_before(others, others[0][1])
    assert not is_written_before({}, mine[0])


def test_a_file_is_not_written_again_if_another_of_its_kind_was_made_in_between() -> None:
    """A rank that writes two files in turn has a good one; parts of one save are no such files."""
    one, two = (io("open", f"*/ckpt/slot-{n}", makes=True) for n in (1, 2))
    [in_turn] = ranks((one, replace(two, span=1), replace(one, span=2))).values()
    assert not is_written_before({0: in_turn}, in_turn[2])
    [in_parts] = ranks((one, two, replace(one, span=1), replace(two, span=1))).values()
    assert [is_written_before({0: in_parts}, each) for each in in_parts] == [
        False,
        False,
        True,
        True,
    ]


def test_one_save_that_makes_its_file_twice_has_not_written_it_before() -> None:
    """As `torch.save` does, once in Python and once in C++: what it tears was never a good file."""
    points = ranks((MAKES, MAKES, io("write")), (MAKES,))
    assert not any(is_written_before(points, each) for each in points[0])
