"""Descriptions of faults: a disturbance, its ranks, and its point in the test.

Making a fault performs nothing. A fault may be invalid: all problems are reported together when the
test is planned, with the test's name, so a list of faults never fails halfway.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, ClassVar, Literal, get_args

from pytest_multihost.core.model.errors import shown

PointKind = Literal[
    "start",  # before the first fixture of the test is set up
    "call",  # a call of a Python function
    "batch",  # an item that is drawn from a data loader
    "collective",  # an operation of the runtime under test
    "sync_point",  # `world.sync_point(name)`
    "io",  # a call on a file or folder whose path matches
    "rendezvous",  # the rank is about to start its backend; for faults that a service performs
]

When = Literal["before", "after"]

IoCall = Literal[
    "open",
    "read",
    "write",
    "fsync",
    "stat",  # also calls that only ask whether a file exists
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "listdir",
]
"""Calls on files that are points."""

IO_CALLS: frozenset[str] = frozenset(get_args(IoCall))
DATA_CALLS: frozenset[str] = frozenset({"open", "read", "write", "fsync"})
"""Calls that `at.io` counts if it names none."""

FIELD_ERRORS: Mapping[str, str] = {
    "open": "EIO",
    "read": "EIO",
    "write": "ENOSPC",
    "fsync": "EIO",
    "stat": "ESTALE",
    "rename": "ESTALE",
    "link": "EPERM",
    "unlink": "EACCES",
    "mkdir": "ENOSPC",
    "rmdir": "ENOTEMPTY",
    "listdir": "ESTALE",
}
"""The usual error of each call on a file in the field: a full disk, a network file system."""

FaultParams = Mapping[str, Any]
"""Parameters of a kind of fault, by name: JSON values, which the kind itself checks."""

MAX_HASH_SEED = 4_294_967_295
"""The highest valid PYTHONHASHSEED."""

OTHERS_HASH_SEED = 1_000_003
"""The PYTHONHASHSEED of the ranks that no fault names, if the world has such a fault."""

RANK_WORDS = ("primary", "others", "one", "first", "all")
"""Values of `rank=` other than numbers; the world's seed selects "one", the run "first"."""

_CONSTRUCTORS = "pytest_multihost.faults"
"""The module with the constructors of faults, named as a text, because it imports this one."""

_OF_ANY_KIND = "other"
"""The constructor of faults of kinds that have none of their own."""

_MAX_DEPTH, _MAX_NUMBER = 20, 1 << 63
"""The deepest nesting of lists, and the largest number, in a fault's parameters."""

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, repr=False)
class Point:
    """A point that a rank passes.

    Attributes:
        name: Which: ``module:function``, ``module:loader``, the name of a sync point, a glob of
            paths, or the name of an operation ("" is any).
        nth: At which passage; 1 is the first. Each rank counts for itself.
        when: Whether the call or operation is about to begin or is over.
        call: Which call on a file; "" is any of `DATA_CALLS`.
        onwards: Whether each later passage counts as well.
    """

    omits_defaults: ClassVar = True
    point: PointKind
    name: str = ""
    nth: int = 1
    when: When = "before"
    call: str = ""
    onwards: bool = False

    @property
    def io_calls(self) -> frozenset[str]:
        """The calls on files that it counts."""
        return frozenset({self.call}) if self.call else DATA_CALLS

    def __repr__(self) -> str:
        """Return the expression that makes this point."""
        parts = []
        if self.name:
            parts.append(f"op={self.name!r}" if self.point == "collective" else repr(self.name))
        if self.call:
            parts.append(f"call={self.call!r}")
        if self.nth != 1:
            parts.append(f"nth={self.nth!r}")
        if self.onwards:
            parts.append("onwards=True")
        if self.when != "before":
            parts.append(f"when={self.when!r}")
        return f"at.{self.point}({', '.join(parts)})"

    def problems(self) -> list[str]:
        """Return its problems, a sentence each."""
        found = []
        if self.point not in get_args(PointKind):
            found.append(f"at.{self.point}() is not a point")
        if not _is_whole(self.nth) or not 1 <= self.nth < _MAX_NUMBER:
            found.append(f"nth must be a whole number of at least 1, not {shown(self.nth)}")
        if self.when not in get_args(When):
            found.append(f"when must be 'before' or 'after', not {shown(self.when)}")
        if not isinstance(self.onwards, bool):
            found.append(f"onwards must be True or False, not {shown(self.onwards)}")
        if not isinstance(self.name, str):
            found.append(f"at.{self.point} takes a text, not {shown(self.name)}")
        elif self.point in ("batch", "call") and not _TARGET.fullmatch(self.name):
            wanted = "'module:function' or 'module:Class.method'"
            if self.point == "batch":
                wanted = "'module:name' of a data loader, its class, or a function that returns it"
            found.append(f"at.{self.point} takes {wanted}: {shown(self.name)}")
        elif self.point in ("sync_point", "io") and not self.name:
            found.append(f"at.{self.point} needs {'a path' if self.point == 'io' else 'a name'}")
        if self.call and self.call not in get_args(IoCall):
            known = ", ".join(get_args(IoCall))
            found.append(f"call must be one of {known}, not {shown(self.call)}")
        return found


START = Point("start")

UNHANDLED = "test"
"""The handler of an exception that nothing handles: it fails the test."""


@dataclass(frozen=True, slots=True)
class ErrorPath:
    """The path of an exception out of a call; calls with equal paths have equal consequences.

    As text, in records: the parts, with a bar after each library, and "+" before `at`.

    Attributes:
        libraries: Library functions, called by the user, that the exception leaves; innermost
            first.
        handler: The function whose handler is the first that may end it; `UNHANDLED` if there is
            none, empty if it is not known.
        at: Which of the function's handlers, and the instructions of all frames further out.
    """

    libraries: tuple[str, ...] = ()
    handler: str = ""
    at: str = ""

    @property
    def is_handled(self) -> bool:
        """Whether something may handle it, as far as known."""
        return self.handler != UNHANDLED or bool(self.at)

    @property
    def asks(self) -> str:
        """The name of the handler's function, without its class: `exists` takes an error for no."""
        return self.handler.rpartition(".")[2]

    def __str__(self) -> str:
        """Return it as text."""
        last = f"{self.handler}+{self.at}" if self.at else self.handler
        return "|".join((*self.libraries, last))

    @classmethod
    def parse(cls, text: str) -> ErrorPath:
        """Return the path with this text."""
        *libraries, last = text.split("|")
        handler, _, at = last.partition("+")
        return cls(tuple(libraries), handler, at)


UNKNOWN_PATH = ErrorPath()


@dataclass(frozen=True, slots=True)
class FaultFacts:
    """Facts about a kind of fault, for code that does not know the kinds.

    Attributes:
        is_before_test: Whether it is performed before the test, so that its point is never passed.
        needs_shim: Whether a preloaded library must apply it to the files of C libraries.
        needs_fresh_interpreters: Whether each rank must be an interpreter of its own.
    """

    omits_defaults: ClassVar = True
    is_before_test: bool = False
    needs_shim: bool = False
    needs_fresh_interpreters: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Fault:
    """One disturbance. Made by the functions of `pytest_multihost.faults`.

    Attributes:
        kind: Which: ``delay``, ``kill``, ...
        ranks: The affected ranks: numbers, or a word resolved with the world's size and seed.
        params: The kind's parameters, by name; JSON values.
        must_fire: Whether the test fails if the fault did not happen.
        is_first: Whether it happens only to the one of `ranks` that reaches the point first.
    """

    kind: str
    ranks: tuple[int, ...] | str
    at: Point = START
    params: FaultParams = field(default_factory=dict, hash=False)
    must_fire: bool = True
    is_first: bool = False

    def __repr__(self) -> str:
        """Return the expression that makes this fault."""
        constructor = _constructor(self.kind)
        parts = [repr(self.kind)] if constructor == _OF_ANY_KIND else []
        parts.append(f"rank={('first' if self.is_first else _plain(self.ranks))!r}")
        parts += [f"{name}={_literal(value)}" for name, value in self.params.items()]
        if self.at != START:
            parts.append(f"at={self.at!r}")
        if not self.must_fire:
            parts.append("must_fire=False")
        return f"faults.{constructor}({', '.join(parts)})"

    @property
    def modules(self) -> frozenset[str]:
        """The modules that it names: that of a function or a loader, that of an exception."""
        is_of_module = isinstance(self.at, Point) and self.at.point in {"call", "batch"}
        named = [str(self.at.name)] * is_of_module
        named += [each for each in self.params.values() if isinstance(each, str) and ":" in each]
        return frozenset(each.partition(":")[0] for each in named)

    def problems(self) -> list[str]:
        """Return its problems, except those of its kind and of the world's size."""
        found = _rank_problems(self.ranks)
        if not isinstance(self.kind, str):
            found.append(f"the kind of a fault must be a text, not {shown(self.kind)}")
        if isinstance(self.at, Point):
            found += self.at.problems()
        else:
            found.append(f"at must be a point of pytest_multihost.at, not {shown(self.at)}")
        found += [
            f"{name} must be a number, a text, a truth value or a list of these, not {shown(value)}"
            for name, value in self.params.items()
            if not _is_json(value)
        ]
        if not isinstance(self.must_fire, bool):
            found.append(f"must_fire must be True or False, not {shown(self.must_fire)}")
        return found


def _constructor(kind: str) -> str:
    """Return the name of the function that makes faults of a kind."""
    return kind if kind in import_module(_CONSTRUCTORS).__all__ else _OF_ANY_KIND


def resolve(faults: Sequence[Fault], *, size: int, seed: int) -> tuple[Fault, ...]:
    """Return `faults` with words for ranks replaced by numbers.

    Args:
        faults: Faults without problems of their own.
        seed: Selects the rank for "one", separately for each fault of the list.
    """
    found = []
    for index, fault in enumerate(faults):
        ranks_of = {
            "primary": (0,),
            "others": tuple(range(1, size)),
            "one": (random.Random(f"{seed}/{index}").randrange(size),),
            "first": tuple(range(size)),
            "all": tuple(range(size)),
        }
        ranks = ranks_of[fault.ranks] if isinstance(fault.ranks, str) else fault.ranks
        is_first = fault.is_first or fault.ranks == "first"
        found.append(replace(fault, ranks=ranks, is_first=is_first))
    return tuple(found)


def size_problems(fault: Fault, size: int) -> list[str]:
    """Return why a world of `size` ranks cannot have `fault`."""
    if fault.ranks == "others" and size == 1:
        return ["rank='others' selects no rank: the test has 1 rank"]
    if isinstance(fault.ranks, str):
        return []
    beyond = [rank for rank in fault.ranks if _is_whole(rank) and rank >= size]
    last = f"the ranks are 0 to {size - 1}" if size > 1 else "the only rank is 0"
    return [f"rank {shown(rank)} is out of range: {last}" for rank in beyond]


def hash_seed_of(faults: Sequence[Fault], rank: int, seed: int) -> int | None:
    """Return the PYTHONHASHSEED of a rank, None if no fault changes any.

    Ranks that no fault names share one seed, as if they were forked from one process. It is the
    same in all worlds, so that a sweep can fork them from one server. Fresh interpreters would each
    draw their own, and no run could repeat another.

    Args:
        faults: The world's faults; ranks are numbers.
    """
    found = [each for each in faults if each.kind == "hash_seed"]
    if not found:
        return None
    mine = next((each for each in found if rank in each.ranks), None)
    if mine is None:
        return OTHERS_HASH_SEED
    drawn = random.Random(f"{seed}/hash/{rank}").randint(1, MAX_HASH_SEED)
    return int(mine.params.get("seed", drawn))


def _rank_problems(ranks: object) -> list[str]:
    if isinstance(ranks, str) and ranks in RANK_WORDS:
        return []
    if isinstance(ranks, tuple) and ranks and all(_is_whole(each) and each >= 0 for each in ranks):
        return (
            []
            if len(set(ranks)) == len(ranks)
            else [f"rank names a rank twice: {shown(list(ranks))}"]
        )
    words = ", ".join(map(repr, RANK_WORDS))
    return [f"rank must be an index, a list of them, or one of {words}, not {shown(_plain(ranks))}"]


def _plain(ranks: object) -> object:
    """Return ranks in the form in which a user writes them."""
    if isinstance(ranks, tuple):
        return ranks[0] if len(ranks) == 1 else list(ranks)
    return ranks


def _literal(value: object) -> str:
    """Return the expression of a parameter; NaN and infinity have no literal."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    is_finite = not isinstance(value, float) or math.isfinite(value)
    return repr(value) if is_finite else f"float('{value}')"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_json(value: object, depth: int = 0) -> bool:
    if isinstance(value, list | tuple):
        return depth < _MAX_DEPTH and all(_is_json(each, depth + 1) for each in value)
    if isinstance(value, float) and not math.isfinite(value):
        return True
    if isinstance(value, int | float):
        return abs(value) < _MAX_NUMBER
    return value is None or isinstance(value, str)
