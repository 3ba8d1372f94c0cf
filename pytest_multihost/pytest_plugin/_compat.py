"""Everything this package needs from pytest's private parts, in one place."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest._code.code import (
    ExceptionRepr,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTracebackNative,
    TerminalRepr,
)

__all__ = [
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
