"""Is the world hung? A proof that no wait in it can end, from snapshots alone.

`snapshot` holds the input of a proof, `proof_state` the proof, and `blockers` its rules; `threads`
says what a thread is doing and how its wait can end.
"""

from pytest_multihost.core.proof.proof_state import (
    SHORT_S,
    SLACK_S,
    ProofSearch,
    ProofState,
    is_still,
    pollers,
)
from pytest_multihost.core.proof.snapshot import Snapshot, has_left_wait

__all__ = [
    "SHORT_S",
    "SLACK_S",
    "ProofSearch",
    "ProofState",
    "Snapshot",
    "has_left_wait",
    "is_still",
    "pollers",
]
