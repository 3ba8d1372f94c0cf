"""What happens to a rank on its way to the test: it comes late, or hashes in its own way."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pytest_multihost.model.fault import Fault
from pytest_multihost.nemesis.kind import FaultKind, Strike, seconds, whole

HASH_SEED_VARIABLE = "PYTHONHASHSEED"

MAX_HASH_SEED = 4_294_967_295
"""What Python takes."""


def _nothing(strike: Strike) -> None:
    """Do nothing: it has happened before the test."""


def skew_s(faults: Sequence[Fault], rank: int) -> float:
    """Return how many seconds late a rank is to come to the rendezvous."""
    mine = [each for each in faults if each.kind == "start_skew" and rank in each.ranks]
    return float(sum(each.params["seconds"] for each in mine))


def hash_seed(faults: Sequence[Fault], rank: int, seed: int) -> int | None:
    """Return the seed of the hashes of a rank, None where it is as always.

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


def _hash_seed(value: object) -> str | None:
    if whole(value) is None and value <= MAX_HASH_SEED:  # type: ignore[operator]
        return None
    return f"a whole number from 0 to {MAX_HASH_SEED}"


START_SKEW = FaultKind(
    name="start_skew",
    perform=_nothing,
    params={"seconds": seconds},
    required=frozenset({"seconds"}),
)

HASH_SEED = FaultKind(name="hash_seed", perform=_nothing, params={"seed": _hash_seed})
