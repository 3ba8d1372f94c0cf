"""The proof that a world hangs: no wait in it can end, as shown by snapshots alone.

* `snapshot`: the input of a proof. `proof_state`: the proof.
* `blockers`: its rules, with `thread_blockers` and `descriptor_blockers`.
* `left_ranks`: the remains of ranks whose script is over, which do not count.
* `threads`: the activity of a thread. `system_calls`: how its wait can end. `runtime_threads`:
  whether it is a runtime's own. `lock_holders`: the holders of the file locks that ranks want.
"""

from pytest_multihost.core.proof.blockers import blockers
from pytest_multihost.core.proof.left_ranks import running_on, turns_of, without_left
from pytest_multihost.core.proof.lock_holders import (
    FileLockHolders,
    holders_among,
    lock_holders,
    with_lock_holders,
)
from pytest_multihost.core.proof.proof_state import (
    SHORT_S,
    SLACK_S,
    AskTurns,
    ProofSearch,
    ProofState,
    is_still,
    pollers,
)
from pytest_multihost.core.proof.runtime_threads import is_interpreter
from pytest_multihost.core.proof.snapshot import Snapshot, has_left_wait
from pytest_multihost.core.proof.threads import main_labels

__all__ = [
    "SHORT_S",
    "SLACK_S",
    "AskTurns",
    "FileLockHolders",
    "ProofSearch",
    "ProofState",
    "Snapshot",
    "blockers",
    "has_left_wait",
    "holders_among",
    "is_interpreter",
    "is_still",
    "lock_holders",
    "main_labels",
    "pollers",
    "running_on",
    "turns_of",
    "with_lock_holders",
    "without_left",
]
