"""What happens to a rank on its way to the test: it comes late, or hashes in its own way."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.model.fault import MAX_HASH_SEED, Fault
from pytest_multihost.nemesis.kind import FaultKind, Strike, seconds, whole


def _nothing(strike: Strike) -> None:
    """Do nothing: it has happened before the test."""


def skew_s(faults: Sequence[Fault], rank: int) -> float:
    """Return how many seconds late a rank is to come to the rendezvous."""
    mine = [each for each in faults if each.kind == "start_skew" and rank in each.ranks]
    return float(sum(each.params["seconds"] for each in mine))


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
