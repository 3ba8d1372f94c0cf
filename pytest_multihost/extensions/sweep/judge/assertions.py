"""Finds assertions of the test itself that fail although no rank raised an error of the program.

An assertion that depends on time does not count, nor an assertion about a fault's effect itself:
a robust program may fail it as well.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pytest_multihost.core.model.event import RaisedError, ReportMade
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.stack import Frame, LinesOf, short_path
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.extensions.sweep.judge.decisions import FaultMeeting
from pytest_multihost.extensions.sweep.judge.depends_on_time import Function, depends_on_time

_TESTING = "/testing/"
"""Part of the path of packages with functions for assertions, as those of numpy and torch."""

_MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class OwnAssertion:
    """An assertion of the test that has failed.

    Attributes:
        frame: Its line in the test's function.
        lines: The first and the last line of its statement.
    """

    rank: int
    at_s: float
    frame: Frame
    lines: tuple[int, int]
    text: str

    def words(self, root: str, names: Names) -> str:
        """Return the failed assertion, in one sentence; files below `root` are relative to it."""
        where = f"{short_path(root, self.frame.file)}:{self.frame.line}"
        return f"{names.rank(self.rank)}'s own assertion of the test failed ({where}): {self.text}"


def assertion_of(
    facts: RankFacts, nodeid: str, root: str, lines_of: LinesOf
) -> OwnAssertion | None:
    """Return the assertion of the test with which a rank has failed; None if it failed otherwise.

    None also if the assertion may depend on time, or if it is not known that it does not.
    """
    errors = [each.error for each in (*facts.reports, facts.interrupted) if each and each.error]
    if len(errors) != 1 or not isinstance(facts.failure, ReportMade) or facts.failed_subtests_s:
        return None
    error, frame = errors[0], _line_in_test(errors[0], nodeid)
    if frame is None or facts.failure.when != "call" or facts.failed_s is None:
        return None
    function = _function(lines_of(f"{root}/{frame.file}"), frame)
    statement = _statement(function, frame.line) if function is not None else None
    if function is None or statement is None or depends_on_time(function, statement):
        return None
    lines = statement.lineno, statement.end_lineno or statement.lineno
    text = " ".join(error.message.split())[:_MAX_TEXT]
    return OwnAssertion(facts.rank, facts.failed_s, frame, lines, text)


def _line_in_test(error: RaisedError, nodeid: str) -> Frame | None:
    """Return the line of the test's own function that raised an AssertionError."""
    path, _, names = nodeid.partition("::")
    name = names.partition("[")[0].rpartition("::")[2]
    is_of_test = (error.file, error.function) == (path, name)
    is_helper = error.library is not None and _TESTING in error.library.file
    if error.type != "AssertionError" or not is_of_test or error.line is None:
        return None
    return Frame(path, error.line, name) if error.library is None or is_helper else None


def _function(lines: Sequence[str], frame: Frame) -> Function | None:
    try:
        module = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return None
    found = [
        each
        for each in ast.walk(module)
        if isinstance(each, Function)
        and each.name == frame.function
        and each.lineno <= frame.line <= (each.end_lineno or each.lineno)
    ]
    return max(found, key=lambda each: each.lineno, default=None)


def _statement(function: Function, line: int) -> ast.stmt | None:
    """Return the statement at a line that asserts something."""
    found = (
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Assert | ast.Expr)
        and each.lineno <= line <= (each.end_lineno or each.lineno)
    )
    return next(found, None)


def looks_itself(
    assertion: OwnAssertion, met: Sequence[FaultMeeting], began_s: Sequence[float]
) -> bool:
    """Return whether the test's own code, and not the program, may have met a fault.

    It may if the asserting statement itself did. If another line of the test's function did, that
    counts as the program's only if an operation followed: then the program went on with it.

    Args:
        met: The rank's meetings with the fault.
    """
    before = [each for each in met if each.at_s <= assertion.at_s]
    if not before:
        return True
    first, last = assertion.lines
    for each in before:
        lines = [f.line for f in each.frames if _is_same_function(f, assertion.frame)]
        if any(first <= line <= last for line in lines):
            return True
    is_of_program = any(not _is_of_tests(each.frames[0], assertion.frame) for each in before)
    goes_on = any(before[0].at_s <= at_s <= assertion.at_s for at_s in began_s)
    return not (is_of_program or goes_on)


def _is_same_function(frame: Frame, other: Frame) -> bool:
    return _is_in_file(frame, other) and frame.function == other.function


def _is_of_tests(frame: Frame, other: Frame) -> bool:
    """Return whether a frame is in the file of the other one, or in another file of tests."""
    name = PurePath(frame.file).name
    return _is_in_file(frame, other) or name == "conftest.py" or name.startswith("test_")


def _is_in_file(frame: Frame, other: Frame) -> bool:
    return frame.file == other.file or frame.file.endswith(f"/{other.file}")
