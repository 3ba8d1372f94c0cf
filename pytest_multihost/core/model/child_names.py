"""The names that ranks give to their children, as slot pages tell them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pytest_multihost.core.model.operation import GroupKey, Operations, Scope

_NAMED = "child"
_GIVEN = re.compile(r"(Fork|Spawn|ForkServer)?Process(-\d+)+")
"""Names that multiprocessing gives to processes without one."""

_MAX_NAME = 100


def child_key(rank: int, pid: int, name: str) -> GroupKey:
    """Return the key by which a rank declares the name of a child."""
    return (rank,), 0, Scope(_NAMED, f"{pid} {name[:_MAX_NAME]}")


def find_names(pages: Iterable[Operations]) -> Mapping[int, str]:
    """Return the names of the children that the slot pages of a world tell, by process id."""
    found: dict[int, str] = {}
    for page in pages:
        for _, _, scope in page.entered:
            if scope.kind == _NAMED:
                pid, _, name = scope.name.partition(" ")
                if pid.isdecimal() and not _GIVEN.fullmatch(name):
                    found[int(pid)] = name
    return found
