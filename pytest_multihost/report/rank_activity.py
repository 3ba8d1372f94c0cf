"""What a rank was doing when its world ended, in two parts: a word and its details."""

from __future__ import annotations

from pytest_multihost.model.result import RankSnapshot, WorldResult
from pytest_multihost.model.verdict import RankOutcome


def rank_activity(
    outcome: RankOutcome, seen: RankSnapshot | None, result: WorldResult
) -> tuple[str, str]:
    """Return a rank's state and its details: ``waiting``, ``in all_reduce #3``.

    Args:
        outcome: What happened to the rank.
        seen: The last snapshot of it.
        result: Its world.
    """
    if outcome not in ("hung", "collateral") or seen is None:
        return outcome, ""
    waited = [each for each in seen.operations if each.waited_s is not None]
    # A wait within a collective, for a key of the store say, tells less than the collective.
    operation = next((e for e in waited if e.kind != "wait"), waited[0] if waited else None)
    if operation is not None:
        return "waiting", f"in {operation.describe(result.spec.size, names_world=False)}"
    if outcome == "collateral":
        return outcome, ""
    return (seen.label or "hung").lower(), str(seen.activity or "")
