"""What is to disturb which ranks, and at which point of their way through the test.

A fault describes; nothing happens when it is made. It may be wrong: its problems are told all at
once when the test is planned, with the test's name, so a list of faults never fails halfway.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

PointKind = Literal[
    "start",  # before the first fixture of the test is set up
    "call",  # a call of a function of Python's
    "collective",  # an operation of the runtime under test
    "sync_point",  # `world.sync_point(name)`
    "io",  # an open, read or write of a file on a path that matches
    "rendezvous",  # the rank is about to start its backend; faults of the network alone
]

When = Literal["before", "after"]

FaultParams = Mapping[str, Any]
"""What a kind of fault takes, by name: JSON values, which the kind itself checks."""

MAX_HASH_SEED = 4_294_967_295
"""What PYTHONHASHSEED takes."""

RANK_WORDS = ("primary", "others", "one", "all")
"""What `rank=` takes instead of numbers; "one" is drawn from the world's seed."""

NETWORK_KINDS = frozenset(
    {"dns_failure", "net_delay", "net_loss", "net_rate", "partition", "reset"}
)
"""Kinds that disturb the network between hosts, and not the rank that passes their point."""

BUILT_IN = NETWORK_KINDS | {
    "cpu_throttle",
    "delay",
    "fd_pressure",
    "freeze",
    "hash_seed",
    "kill",
    "memory_pressure",
    "raise_at",
    "slow_io",
    "start_skew",
}
"""Kinds with a constructor of their own name in `pytest_multihost.faults`."""

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, repr=False)
class Point:
    """A point that a rank passes.

    Attributes:
        point: What is passed there.
        name: Which: ``module:function``, the name of a sync point, a glob of paths, or the name of
            an operation ("" is any).
        nth: At which of the passages; 1 is the first. Counted in each rank for itself.
        when: Whether a call, or whatever is passed, is about to begin or is over.
    """

    omits_defaults: ClassVar = True
    point: PointKind
    name: str = ""
    nth: int = 1
    when: When = "before"

    def __repr__(self) -> str:
        """Return the expression that makes this point."""
        parts = []
        if self.name:
            parts.append(f"op={self.name!r}" if self.point == "collective" else repr(self.name))
        if self.nth != 1:
            parts.append(f"nth={self.nth!r}")
        if self.when != "before":
            parts.append(f"when={self.when!r}")
        return f"at.{self.point}({', '.join(parts)})"

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        found = []
        if self.point not in get_args(PointKind):
            found.append(f"at.{self.point}() is no point")
        if not _is_whole(self.nth) or self.nth < 1:
            found.append(f"nth must be a whole number of at least 1, not {self.nth!r}")
        if self.when not in get_args(When):
            found.append(f"when must be 'before' or 'after', not {self.when!r}")
        if not isinstance(self.name, str):
            found.append(f"at.{self.point} takes a text, not {self.name!r}")
        elif self.point == "call" and not _TARGET.fullmatch(self.name):
            found.append(f"at.call takes 'module:function' or 'module:Class.method': {self.name!r}")
        elif self.point in ("sync_point", "io") and not self.name:
            found.append(f"at.{self.point} needs {'a path' if self.point == 'io' else 'a name'}")
        return found


START = Point("start")


@dataclass(frozen=True, slots=True, repr=False)
class Fault:
    """One disturbance. Made by the functions of `pytest_multihost.faults`.

    Attributes:
        kind: Which: ``delay``, ``kill``, ...
        ranks: Whom it concerns: numbers, or a word that a world's size and seed turn into numbers.
        at: From which point on.
        params: What the kind takes, by name; JSON values.
        must_fire: Whether a test in which it did not happen fails.
    """

    kind: str
    ranks: tuple[int, ...] | str
    at: Point = START
    params: FaultParams = field(default_factory=dict, hash=False)
    must_fire: bool = True

    def __repr__(self) -> str:
        """Return the expression that makes this fault."""
        is_built_in = self.kind in BUILT_IN
        parts = [] if is_built_in else [repr(self.kind)]
        parts.append(f"rank={_plain(self.ranks)!r}")
        parts += [f"{name}={value!r}" for name, value in self.params.items()]
        if self.at != START:
            parts.append(f"at={self.at!r}")
        if not self.must_fire:
            parts.append("must_fire=False")
        return f"faults.{self.kind if is_built_in else 'other'}({', '.join(parts)})"

    def problems(self) -> list[str]:
        """Return what is wrong with it, apart from what only its kind and a world's size tell."""
        found = _rank_problems(self.ranks)
        if isinstance(self.at, Point):
            found += self.at.problems()
        else:
            found.append(f"at must be a point of pytest_multihost.at, not {self.at!r}")
        found += [
            f"{name} must be a number, a text, a truth value or a list of these, not {value!r}"
            for name, value in self.params.items()
            if not _is_json(value)
        ]
        if not isinstance(self.must_fire, bool):
            found.append(f"must_fire must be True or False, not {self.must_fire!r}")
        return found


def resolve(faults: Sequence[Fault], *, size: int, seed: int) -> tuple[Fault, ...]:
    """Return `faults` with numbers for words.

    Args:
        faults: Without problems of their own.
        size: Ranks of the world.
        seed: Decides whom "one" is; another fault of the list draws for itself.
    """
    return tuple(
        replace(fault, ranks=_ranks(fault.ranks, size, random.Random(f"{seed}/{index}")))
        for index, fault in enumerate(faults)
    )


def size_problems(fault: Fault, size: int) -> list[str]:
    """Return why a world of `size` ranks cannot have `fault`."""
    if fault.ranks == "others" and size == 1:
        return ["rank='others' of a world of 1 rank is nobody"]
    if isinstance(fault.ranks, str):
        return []
    beyond = [rank for rank in fault.ranks if rank >= size]
    last = f"the ranks are 0 to {size - 1}" if size > 1 else "the only rank is 0"
    return [f"rank {rank} is out of range: {last}" for rank in beyond]


def disturbs_network(faults: Sequence[Fault]) -> bool:
    """Tell whether any of `faults` disturbs the network between hosts."""
    return any(each.kind in NETWORK_KINDS for each in faults)


def hash_seed_of(faults: Sequence[Fault], rank: int, seed: int) -> int | None:
    """Return the PYTHONHASHSEED of a rank, None where it is as always.

    Args:
        faults: Of the world; ranks are numbers.
        rank: Whose.
        seed: The world's.
    """
    for each in faults:
        if each.kind == "hash_seed" and rank in each.ranks:
            drawn = random.Random(f"{seed}/hash/{rank}").randint(1, MAX_HASH_SEED)
            return int(each.params.get("seed", drawn))
    return None


def _ranks(ranks: tuple[int, ...] | str, size: int, chance: random.Random) -> tuple[int, ...]:
    if not isinstance(ranks, str):
        return ranks
    chosen = {
        "primary": (0,),
        "others": tuple(range(1, size)),
        "one": (chance.randrange(size),),
        "all": tuple(range(size)),
    }
    return chosen[ranks]


def _rank_problems(ranks: object) -> list[str]:
    if isinstance(ranks, str) and ranks in RANK_WORDS:
        return []
    if isinstance(ranks, tuple) and ranks and all(_is_whole(each) and each >= 0 for each in ranks):
        return [] if len(set(ranks)) == len(ranks) else [f"rank names one twice: {list(ranks)}"]
    words = ", ".join(map(repr, RANK_WORDS))
    return [f"rank must be an index, a list of them, or one of {words}, not {_plain(ranks)!r}"]


def _plain(ranks: object) -> object:
    """Return what a user would have given."""
    if isinstance(ranks, tuple):
        return ranks[0] if len(ranks) == 1 else list(ranks)
    return ranks


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_json(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_json(each) for each in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | bool)
