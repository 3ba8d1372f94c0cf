"""The calls and reads that the ranks of an undisturbed run have seen, with their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pytest_multihost.core.model.verdict import Place

RECORD_NAME = "service-local-decisions"
"""Beginning of the names of the records in a world's scratch directory; the rank follows."""

Sort = Literal["none", "truth", "whole", "number", "text", "list", "array", "generator", "other"]
"""The sort of a value; an array with one element is of the sort of that.

A generator is one of random numbers.
"""

Input = Literal["array", "clock", "environment", "file", "random"]
"""The kinds of data that a call has read while it ran, apart from its arguments."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A value that a rank has seen.

    Attributes:
        text: A truth value or number as text; of a list its length.
        digest: Equal for equal values; empty if it is unknown.
        is_measured: Whether it consists of numbers with fractions, as losses and weights do.
        is_array: Whether it is an array or tensor, or contains some.
    """

    omits_defaults: ClassVar = True
    sort: Sort = "other"
    text: str = ""
    digest: str = ""
    is_measured: bool = False
    is_array: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call of a function that has returned.

    Attributes:
        target: The function, as ``module:function``.
        nth: Its number among the rank's calls of the function, in the order of their ends.
        inputs: Its arguments, and the attributes and global variables that the function names.
        reads: The data that it read while it ran.
        measured: Digest of the numbers that it read from arrays.
        drawn: Digest of the random numbers that it drew.
        inside: The functions of the user's that call it, and have not returned.
        performed: Number of operations that it performed itself.
        before: Number of operations that the rank had begun before.
        at: The user's innermost line; None if it is unknown.
        is_asserted: Whether its result only decides an assertion.
        may_be_none: Whether the function is annotated to return None at times.
        may_be_empty: Whether code asks if its result, a list, is empty.
    """

    omits_defaults: ClassVar = True
    target: str
    nth: int
    result: Seen
    inputs: tuple[Seen, ...] = ()
    reads: frozenset[Input] = frozenset()
    measured: str = ""
    drawn: str = ""
    asked: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    performed: int = 0
    before: int = 0
    at: Place | None = None
    is_asserted: bool = False
    may_be_none: bool = False
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRead:
    """A line that reads a clock, and not only for an assertion.

    Attributes:
        first: The number of its first read among all reads of the rank's own code; 1 is the first.
        last: The number of its last read.
        before: Number of operations that the rank had begun before its first read.
    """

    omits_defaults: ClassVar = True
    at: Place
    first: int
    last: int
    before: int = 0


@dataclass(frozen=True, slots=True)
class SeenByRank:
    """The calls and reads of a rank in the undisturbed run.

    Attributes:
        calls: The calls of the user's functions, in the order of their ends.
        clock_reads: The lines that read clocks, in the order of their first reads.
        made: The files and folders that the rank has made or moved.
    """

    omits_defaults: ClassVar = True
    calls: tuple[SeenCall, ...] = ()
    clock_reads: tuple[ClockRead, ...] = ()
    made: frozenset[str] = frozenset()


RankRecords = Mapping[int, SeenByRank]
"""The records by rank."""
