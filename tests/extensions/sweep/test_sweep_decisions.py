"""The line at which a disturbed rank decided: handlers of errors, reads of clocks."""

from __future__ import annotations

from textwrap import dedent

import builders
import pytest

from pytest_multihost.extensions.sweep.judge.decisions import handler_of, last_before, meetings
from pytest_multihost.testing import Frame, make_event

pytestmark = pytest.mark.unit

SOURCE = dedent(
    """
    def read(path):
        try:
            return path.read_text()  # read
        except {caught}:
            {body}

    def outer(path):
        try:
            return read(path)  # outer
        except Exception:  # outermost
            return None
    """
)


def line_of(source: str, text: str) -> int:
    """Return the line of a source that contains a text."""
    return next(n for n, line in enumerate(source.splitlines(), 1) if text in line)


def handler(source: str, error: type[BaseException] = OSError) -> int | None:
    """Return the line of the handler of an error that `read` meets, called by `outer`."""
    frames = [
        Frame("/t/a.py", line_of(source, "# read"), "read"),
        Frame("/t/a.py", line_of(source, "# outer"), "outer"),
    ]
    found = handler_of(frames, error, lambda _: source.splitlines())
    return found.line if found is not None else None


@pytest.mark.parametrize("caught", ["OSError", "(ValueError, OSError) as error", "Exception", ""])
def test_the_innermost_handler_that_matches_has_decided(caught: str) -> None:
    """By a class, by one of several, by a base class, or whatever it is."""
    source = SOURCE.format(caught=caught, body="return ''").replace("except :", "except:")
    assert handler(source) == line_of(source, "except")


@pytest.mark.parametrize(
    ("caught", "body"),
    [("ValueError", "return ''"), ("OSError", "raise"), ("OwnError", "return ''")],
    ids=["another", "raises", "unknown"],
)
def test_a_handler_that_does_not_end_the_error_is_passed_over(caught: str, body: str) -> None:
    """Then that of the caller ends it."""
    source = SOURCE.format(caught=caught, body=body)
    assert handler(source) == line_of(source, "# outermost")


def test_an_error_that_is_suppressed_is_ended_by_the_with() -> None:
    """The block of `contextlib.suppress` is a handler."""
    source = dedent(
        """
        def read(path):
            with contextlib.suppress(OSError):
                path.unlink()  # read

        def outer(path):
            read(path)  # outer
        """
    )
    assert handler(source) == line_of(source, "suppress")
    assert handler(source, RuntimeError) is None


@pytest.mark.parametrize("source", ["def broken(:", ""])
def test_without_a_source_nothing_is_known(source: str) -> None:
    """A file that has changed, or is not there."""
    assert handler_of([Frame("/t/a.py", 3, "read")], OSError, lambda _: [source]) is None


def test_the_last_meeting_before_a_time_counts() -> None:
    """Of the rank and the fault that are meant."""
    frames = [{"file": "/t/a.py", "line": line, "function": "f"} for line in (1, 2, 3)]
    met = [
        make_event(float(at_s), rank, "fault_met", {"index": index, "frames": [frames[at_s - 1]]})
        for at_s, rank, index in ((1, 0, 0), (2, 0, 0), (2, 1, 0), (2, 0, 1), (3, 0, 0))
    ]
    found = meetings(builders.world(2, met), 0, 0)
    assert [each.frames[0].line for each in found] == [1, 2, 3]
    last = last_before(found, 2.5)
    assert last is not None
    assert last.frames[0].line == 2
    assert last_before(found, 0.5) is None
