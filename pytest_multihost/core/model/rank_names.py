"""The names of ranks in texts: "rank 3", or "engine 1" in a world with roles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

RoleNames = tuple[tuple[str, range], ...]
"""Names of roles with their ranks; the numbers in texts count from 0 within the role."""


@dataclass(frozen=True, slots=True)
class Names:
    """How texts call the ranks of a world; its spec has it.

    Attributes:
        size: How many ranks the world has; 0 if that is unknown.
        roles: Its roles in order, which have each rank once; empty: it has none.
    """

    size: int = 0
    roles: RoleNames = ()

    def of(self, ranks: Iterable[int]) -> str:
        """Return the text for ranks: "rank 3", "ranks 0-2,5", "trainer 0-1, engine 2"."""
        numbers = sorted(set(ranks))
        if self.roles:
            return _by_roles(numbers, self.roles)
        return f"rank{'' if len(numbers) == 1 else 's'} {rank_numbers(numbers)}"

    def rank(self, rank: int) -> str:
        """Return the text for one rank: "rank 3", "engine 2"."""
        return self.of((rank,))

    def in_roles(self, ranks: Iterable[int]) -> str:
        """Return the text for ranks by roles: "trainer 0-1, engine 2"; empty without roles."""
        return _by_roles(sorted(set(ranks)), self.roles) if self.roles else ""


PLAIN = Names()
"""The names of ranks that no world's spec comes with, as in a sweep's record: numbers."""


_MAX_PARTS = 12
"""How many numbers and spans a text for ranks has at most."""


def rank_numbers(ranks: Iterable[int]) -> str:
    """Return the numbers alone: "3", "0-2,5".

    Many of them are shortened: "0,8,…,1016" if they are evenly spaced, else "0,3,4,7 and 90 more".
    """
    found = spans(sorted(set(ranks)))
    parts: list[str] = []
    for first, last in found:
        parts += [_span(first, last)] if last > first + 1 else map(str, range(first, last + 1))
    if len(parts) <= _MAX_PARTS:
        return ",".join(parts)
    steps = {after[0] - before[0] for before, after in pairwise(found)}
    if len(steps) == 1 and len({last - first for first, last in found}) == 1:
        return ",".join((_span(*found[0]), _span(*found[1]), "…", _span(*found[-1])))
    shown = found[: _MAX_PARTS // 2]
    more = sum(last - first + 1 for first, last in found[len(shown) :])
    return f"{','.join(_span(*each) for each in shown)} and {more} more"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def spans(numbers: Iterable[int]) -> list[list[int]]:
    """Return ascending numbers, such as ranks, as spans of first and last number."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def _by_roles(numbers: Sequence[int], names: RoleNames) -> str:
    """Return the text for ranks. Ranks without a role, which no world has, are named as ranks."""
    by_role = {
        role: [rank - ranks.start for rank in numbers if rank in ranks] for role, ranks in names
    }
    parts = [f"{role} {rank_numbers(own)}" for role, own in by_role.items() if own]
    if others := [rank for rank in numbers if not any(rank in ranks for _, ranks in names)]:
        parts.append(f"rank{'' if len(others) == 1 else 's'} {rank_numbers(others)}")
    return ", ".join(parts)
