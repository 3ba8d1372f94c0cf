"""Which ranks make a world hang: pure functions from snapshots and events to a diagnosis.

`judge_world` runs the steps in order:

* `rank_states`: the state of each rank. `masked_symptoms`: errors that hide a runtime's timeout.
* `wait_graph`: which rank waits for which. `left_programs`: ranks inside of a program of jax that
  others have left.
* `causes`: the sinks of that graph, each a `cause` of one of the `kinds`.
* `refinements`: functions that make a cause more precise, in order. `planned_freeze`: faults that
freeze.
  `partition_blame`: cuts of the network. `lock_deadlocks`, by `lock_cycles` of threads.
  `size_complaint`: ranks that gloo ends because of a size. `children`: which process of a rank.
  `other_programs`, `payloads`, `other_members`, `unmatched_transfers`: ranks that do not match.
* `shared_failures`: failures of several ranks that have one cause.
* `partings`: where histories of ranks part. `divergence`: the parting that explains a hang.
  `program_threads`: threads of a rank that run jitted programs at once, in an order left to chance.
* `build_diagnosis`: the diagnosis for users, with its `headline`, `evidence`, `places` and `notes`;
  `wording`: words that headlines have in common. `native_call` names the call that holds the GIL.

Waits that no recorder has seen are `inferred` from native frames, from sockets (`socket_waits`)
and from stacks (`program_members`); those of ranks with roles for each other by `role_waits`.
`polled_files`: ranks that poll for a file which another rank has made. `rpc_functions` are
functions that ranks run for others. `running_world`: the blocking ranks of a world that still runs.
`own_failures`: failures of ranks that the end of a world does not explain.
"""

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.inferred import operation_of
from pytest_multihost.core.blame.judge_world import Judgement, judge_world
from pytest_multihost.core.blame.partition_blame import as_cut, severed
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.running_world import (
    Blocked,
    BlockingRanks,
    blocked_ranks,
    find_blocking_ranks,
    has_timeout_before,
    mismatched_ranks,
    waiting_ranks,
)

__all__ = [
    "Blocked",
    "BlockingRanks",
    "Cause",
    "Judgement",
    "RankState",
    "as_cut",
    "blocked_ranks",
    "find_blocking_ranks",
    "find_causes",
    "has_timeout_before",
    "judge_world",
    "mismatched_ranks",
    "operation_of",
    "severed",
    "waiting_ranks",
]
