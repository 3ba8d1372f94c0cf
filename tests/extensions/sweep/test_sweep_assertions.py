"""Assertions of the test itself that fail, and those that do not count: from facts by hand."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from pytest_multihost.core.outcome import RankFacts, fold_history
from pytest_multihost.extensions.sweep.judge.assertions import (
    OwnAssertion,
    assertion_of,
    looks_itself,
)
from pytest_multihost.extensions.sweep.judge.decisions import FaultMeeting
from pytest_multihost.testing import PLAIN, Frame, make_event, raised, report, well_behaved

pytestmark = pytest.mark.unit

NODEID = "tests/test_a.py::TestA::test_resume[2-gloo]"
FILE = "tests/test_a.py"
FAILED_S = 5.0


def facts(error: Any, when: str = "call", **more: Any) -> RankFacts:  # noqa: ANN401
    """Return the facts about a rank that has failed."""
    history = [make_event(0.0, 0, e.kind, e.detail) for e in well_behaved(0, stays_in="call")]
    history.append(make_event(FAILED_S, 0, "report", report(when, "failed", error=error, **more)))
    return fold_history(history, 1)[0]


def failed(source: str, text: str = "assert", **error: Any) -> OwnAssertion | None:  # noqa: ANN401
    """Return the assertion with which a test of this body has failed.

    Args:
        source: The body.
        text: Part of the line that raised.
        error: Fields of the error that are otherwise than usual.
    """
    lines = f"class TestA:\n    def test_resume(world):\n{indented(source)}".splitlines()
    line = next(n for n, each in enumerate(lines, 1) if text in each)
    given = {"file": FILE, "line": line, "function": "test_resume", **error}
    kind = given.pop("kind", "AssertionError: assert 0 == 7\n +  where 0 = step")
    return assertion_of(facts({**raised(kind), **given}), NODEID, "/t", lambda _: lines)


def indented(source: str) -> str:
    """Return the lines of a body of a method."""
    return "\n".join(f"        {line}" for line in dedent(source).strip().splitlines())


def test_an_assertion_of_the_test_is_told_with_its_values() -> None:
    """And with its line."""
    found = failed("step = resume()\nassert step == 7")
    assert found is not None
    assert (found.rank, found.at_s, found.lines) == (0, FAILED_S, (4, 4))
    assert found.words("/t", PLAIN) == (
        "rank 0's own assertion of the test failed (tests/test_a.py:4):"
        " assert 0 == 7 + where 0 = step"
    )


@pytest.mark.parametrize(
    "error",
    [
        {"function": "check"},
        {"file": "tests/checks.py"},
        {"kind": "ValueError: no step"},
        {"library": {"file": "/x/site-packages/lib/a.py", "line": 1, "function": "f"}},
    ],
    ids=["another function", "another file", "another error", "a library's"],
)
def test_an_error_of_the_program_is_no_assertion_of_the_test(error: dict[str, Any]) -> None:
    """A rank has said that something is wrong."""
    assert failed("assert load() == 7", **error) is None


def test_the_assertions_of_a_library_for_tests_are_the_tests() -> None:
    """`numpy.testing` raises where the test calls it."""
    library = {"file": "/x/numpy/testing/_private/utils.py", "line": 1, "function": "f"}
    assert failed("np.testing.assert_equal(load(), 7)", "testing", library=library) is not None


@pytest.mark.parametrize(
    "body",
    [
        "assert time.monotonic() - begun < 5",
        "begun = time.time()\nsave()\ntook = time.time() - begun\nassert took < 5",
        "x = clock()\ny = x\nassert y == 3",
        "assert run.elapsed_s < 5",
        "for attempt in range(3):\n    n = attempt\nassert n == 0",
        "name = datetime.now().isoformat()\nassert (folder / name).exists()",
        "with timed() as timer:\n    save()\nassert timer.value < 3",
        "name = now().strftime('%H')\nstamps = gather(name)\nassert all(s == name for s in stamps)",
        "line = ', '.join(str(now()) for _ in 'ab')\nlog(line)\nassert line == read()",
        "speed = count / took\nlog(speed)\nassert speed > 3",
        "newest = max(mtime_of(each) for each in files)\nassert newest > 0",
    ],
)
def test_an_assertion_that_depends_on_time_does_not_count(body: str) -> None:
    """By its own names, or by those of what it depends on."""
    assert failed(body) is None


@pytest.mark.parametrize("body", ["losses = train()\nassert losses[-1] == 1", "assert a\n"])
def test_other_assertions_count(body: str) -> None:
    """Names with a similar sound are none of time."""
    assert failed(body) is not None


@pytest.mark.parametrize(
    "body",
    [
        "folder = base / now().strftime('%H')\nfolder.mkdir()\nassert len(listdir(folder)) == 2",
        "hour = now().strftime('%H')\nfolder = base / hour\nsave(folder)\nassert has_all(folder)",
        "folder = os.path.join(base, str(today()))\nsave(folder)\nassert len(listdir(folder)) == 2",
        "folder = join(base, str(today()))\nsave(folder)\nassert len(listdir(folder)) == 2",
        "kept = max(files, key=lambda e: e.stat().st_mtime)\nassert kept.name == 'step-2'",
    ],
    ids=["folder", "hour", "day", "join", "newest"],
)
def test_an_assertion_about_what_is_named_or_ordered_by_time_counts(body: str) -> None:
    """A shard that lies in another hour's folder is lacking, however long saving has taken."""
    assert failed(body) is not None


def test_a_rank_that_failed_twice_does_not_count() -> None:
    """An error in its teardown is an error of the program."""
    lines = ["def test_resume(world):", "    assert step == 7"]
    place = {"file": FILE, "line": 2, "function": "test_resume"}
    error = {**raised("AssertionError: no"), **place}
    assert assertion_of(facts(error, when="setup"), NODEID, "/t", lambda _: lines) is None
    assert assertion_of(facts(error), NODEID, "/t", lambda _: lines) is not None
    assert assertion_of(facts(error), NODEID, "/t", lambda _: []) is None  # not to be read


PROGRAM = Frame("/t/program.py", 3, "newest")


def in_test(line: int) -> Frame:
    """Return a line of the test's function."""
    return Frame(f"/t/{FILE}", line, "test_resume")


ASSERTION = OwnAssertion(0, 5.0, Frame(FILE, 9, "test_resume"), (9, 10), "assert 0 == 7")


@pytest.mark.parametrize(
    ("met", "operations", "is_own"),
    [
        ([(2.0, PROGRAM, in_test(4))], [], False),
        ([(2.0, in_test(4))], [3.0], False),
        ([(2.0, Frame("/t/conftest.py", 3, "files"), in_test(4))], [], True),
        ([(2.0, in_test(4))], [], True),
        ([(2.0, in_test(4))], [1.0, 6.0], True),
        ([(4.0, in_test(10))], [4.5], True),
        ([(4.0, PROGRAM, in_test(9))], [], True),
        ([(6.0, PROGRAM, in_test(4))], [], True),
        ([], [3.0], True),
    ],
    ids=[
        "program",
        "goes on",
        "helper",
        "in the test",
        "before",
        "asserts",
        "for it",
        "later",
        "nowhere",
    ],
)
def test_a_test_that_looks_itself_is_to_blame(
    met: list[tuple[Any, ...]], operations: list[float], is_own: bool
) -> None:
    """A look of its own shows nothing of the program, unless the program went on with it."""
    meetings = [FaultMeeting(at_s, frames) for at_s, *frames in met]
    assert looks_itself(ASSERTION, meetings, operations) == is_own
