"""Patterns by which a rank's failure is known to follow only from another's."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_multihost.core.model.event import RaisedError

_RAISED_BY_TESTS = frozenset({"AssertionError", "Failed", "_pytest.outcomes.Failed"})
"""Exceptions that only a test raises: no runtime asserts that a peer is gone, so they are never a
symptom, whatever text they quote."""

_STATUS = re.compile(r"(ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL|UNAVAILABLE|UNKNOWN): ")
"""How an error of XLA begins, which jaxlib may raise as a ValueError."""

_CLOSED = re.compile(
    r"(BrokenPipe|ConnectionAborted|ConnectionReset|EOF|IncompleteRead)Error\b"
    r"|connection.*(abort|clos|lost|reset)|broken pipe|socket closed",
    re.IGNORECASE,
)
"""Exceptions of a rank whose peer has closed the connection, from any library."""

_UNANSWERED = re.compile(
    r"(Connection|ConnectionRefused|Timeout)Error\b|connection.*refused|timed out", re.IGNORECASE
)


_SIGNS = frozenset(r"\^$.|?*+()[]{}")
"""The characters of regular expressions: a text without them stands for itself."""


def is_closed_connection(error: RaisedError) -> bool:
    """Return whether an exception, or its cause, is of a closed connection.

    It may come from any library. It follows from another rank's failure only if one has failed.
    """
    return _matches_chain(_CLOSED, error)


def is_unanswered(error: RaisedError) -> bool:
    """Return whether an exception, or its cause, says that no answer came."""
    return _matches_chain(_UNANSWERED, error)


def _matches_chain(pattern: re.Pattern[str], error: RaisedError) -> bool:
    texts = (f"{error.type}: {error.message}", *error.causes)
    return error.type not in _RAISED_BY_TESTS and any(map(pattern.search, texts))


@dataclass(frozen=True, slots=True)
class Symptoms:
    """A backend's patterns of failures that follow from another rank's.

    Attributes:
        raised: Regular expressions for the text of an exception.
        fatal: Regular expressions for the log of a rank whose runtime ended it.
        by_users: Those of `raised` that belong to a backend of the project, whose own code may
            raise such an exception.
    """

    raised: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()
    by_users: tuple[str, ...] = ()

    def known_among(self, known: Symptoms) -> tuple[Symptoms, tuple[str, ...]]:
        """Return the symptoms that may be looked for if a file has named these, and the others.

        A file brings no regular expressions: a foreign one may never end.
        So a pattern counts if this installation has it as well, or if it is plain text.

        Args:
            known: All patterns of this installation's backends.
        """
        ours = {*known.raised, *known.fatal}
        given = dict.fromkeys((*self.raised, *self.fatal))
        others = tuple(each for each in given if each not in ours and _SIGNS & {*each})
        raised, fatal = (
            tuple(each for each in group if each not in others)
            for group in (self.raised, self.fatal)
        )
        return Symptoms(
            raised, fatal, tuple(each for each in self.by_users if each in raised)
        ), others

    def is_in_error(self, text: str) -> bool:
        """Return whether the text of an exception matches a symptom."""
        return _matches(self.raised, text)

    def is_in_log(self, text: str) -> bool:
        """Return whether the end of a rank's log matches a symptom."""
        return _matches(self.fatal, text)

    def is_symptom(self, error: RaisedError, text: str) -> bool:
        """Return whether an exception follows from another rank's failure.

        A runtime raises it in an operation. An exception that the user's code makes, or of a type
        that no runtime raises, only has the same text: it may quote any other program.
        """
        if error.type in _RAISED_BY_TESTS:
            return False
        may_be = _may_be_of_runtime(error.type) or _STATUS.match(error.message) is not None
        is_of_runtime = (not error.is_by_user or _matches(self.by_users, text)) and may_be
        return error.is_harness_symptom or (is_of_runtime and self.is_in_error(text))

    def is_raised_from_symptom(self, error: RaisedError) -> bool:
        """Return whether an exception was raised from a symptom, or while handling one."""
        return error.type not in _RAISED_BY_TESTS and any(map(self.is_in_error, error.causes))


def _may_be_of_runtime(kind: str) -> bool:
    """Return whether a runtime may raise exceptions of a type: its own, or a few of Python."""
    found = getattr(builtins, kind, None)
    return not isinstance(found, type) or issubclass(found, (RuntimeError, OSError))


def _matches(patterns: Iterable[str], text: str) -> bool:
    return any(re.search(pattern, text, re.DOTALL) for pattern in patterns)
