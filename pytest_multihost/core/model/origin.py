"""The observer of a world, the engine or an extension, and the known facts about its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_multihost.core.model.operation import GroupKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The observer of a world: the words of its page, and how certain a verdict may be.

    Attributes:
        detected_by: The word in verdict.json for the evidence of the hang; None if the world's end
            is that.
        ground: Returns why the world counts as hung, given the seconds from its last known progress
            to the look at it; None if the world's end says why.
        is_counted: Whether the number of each operation in its group is known.
        is_ordered: Whether the causes of several hangs in one world have an order in time.
        is_proof: Whether a hang that it shows is one; if not, only `WorldResult.reason` proves it.
    """

    stays_in_memory: ClassVar = True
    detected_by: str | None = None
    ground: Callable[[float], str] | None = None
    is_counted: bool = True
    is_ordered: bool = True
    is_proof: bool = True


ENGINE = Origin()
"""The engine, which has run the world and watched all of its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The ranks of a world about which facts lack; all is known of ranks in none of its sets.

    Attributes:
        unseen: Ranks about which nothing is known; no rank is judged to wait for them.
        silent: Ranks about which nothing is known, but which have not moved since: a rank waits for
            one of them if it waits for no other rank.
        unrecorded: By rank, its `RankState.unrecorded`.
    """

    stays_in_memory: ClassVar = True
    unseen: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()
    unrecorded: Mapping[int, frozenset[tuple[GroupKey, int | None]]] = field(default_factory=dict)


ALL_KNOWN = Known()
"""Everything is known of each rank."""
