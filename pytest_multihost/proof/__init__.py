"""Is the world hung? A proof that no wait in it can end, from snapshots alone; pure functions."""

from pytest_multihost.proof.proof_state import ProofState, is_still
from pytest_multihost.proof.snapshot import Snapshot

__all__ = ["ProofState", "Snapshot", "is_still"]
