"""Everything this package needs from pytest's private parts, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from _pytest._code.code import (
    ExceptionRepr,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTracebackNative,
    TerminalRepr,
)

Paint = Callable[[str], Iterable[tuple[str, Mapping[str, bool]]]]
"""Splits a line into parts with their markup."""

__all__ = [
    "ColouredRepr",
    "ExceptionRepr",
    "TerminalRepr",
    "describe_subtest",
    "is_doctest",
    "make_longrepr",
    "rename_subtest",
]


def make_longrepr(text: str, *, file: str, line: int, message: str) -> ReprExceptionInfo:
    """Return a failure representation that survives xdist and names its cause.

    Only one with `reprcrash` keeps its one-line reason in the short summary and in JUnit.
    """
    traceback = ReprTracebackNative([f"{line}\n" for line in text.splitlines()])
    return ReprExceptionInfo(traceback, ReprFileLocation(file, line, message))


class ColouredRepr(ExceptionRepr):
    """A failure representation whose sections have colours where there are any.

    It holds what the plain one holds, so that JUnit and others find it.
    """

    def __init__(self, plain: ExceptionRepr, paint: Paint) -> None:
        """Take a representation, and what knows the colours of a line."""
        self.sections = plain.sections
        self.reprcrash = plain.reprcrash
        self.reprtraceback = plain.reprtraceback
        self._plain = plain
        self._paint = paint

    def toterminal(self, tw: Any) -> None:  # noqa: ANN401 - private to pytest
        """Write everything; what happened without a traceback in the colour of errors."""
        sections, self._plain.sections = self._plain.sections, []
        try:
            if type(self._plain) is ReprExceptionInfo:  # made by make_longrepr
                tw.line(str(self._plain), red=True, bold=True)
            else:
                self._plain.toterminal(tw)
        finally:
            self._plain.sections = sections
        for title, text, separator in sections:
            tw.sep(separator, title)
            for line in text.splitlines():
                for part, markup in self._paint(line):
                    tw.write(part, **markup)
                tw.line()


def rename_subtest(report: Any, suffix: str) -> None:  # noqa: ANN401 - SubtestReport is private
    """Add `suffix` to the description of a subtest's report.

    The context is frozen, and `dataclasses.replace` would quote its values a second time.
    """
    message = report.context.msg
    object.__setattr__(report.context, "msg", f"{message} {suffix}" if message else suffix)


def describe_subtest(report: Any) -> str:  # noqa: ANN401 - SubtestReport is private
    """Return what tells one subtest of a test from another."""
    context = report.context
    return f"{context.msg} {dict(context.kwargs)}"


def is_doctest(item: pytest.Item) -> bool:
    """Return whether pytest collected `item` from a docstring."""
    return type(item).__module__ == "_pytest.doctest"
