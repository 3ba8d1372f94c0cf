"""Which ranks make a world hang: pure functions from snapshots and events to a diagnosis.

`judge_world` runs the steps in order: `rank_states` (the state of each rank), `wait_graph` (which
rank waits for which), `causes` (the sinks of that graph, and ranks that gloo ends because of a
size), `divergence` (where histories of ranks part), `build_diagnosis` (what users read). It also
finds the blocking ranks of a world that still runs.
`inferred` adds waits that no recorder has seen, with the threads that run functions for other
ranks; `partition_blame` adds network partitions.
"""

from pytest_multihost.core.blame.judge_world import (
    BlockingRanks,
    Judgement,
    find_blocking_ranks,
    has_timeout_before,
    judge_world,
    mismatched_ranks,
    waiting_ranks,
)
from pytest_multihost.core.blame.partition_blame import severed

__all__ = [
    "BlockingRanks",
    "Judgement",
    "find_blocking_ranks",
    "has_timeout_before",
    "judge_world",
    "mismatched_ranks",
    "severed",
    "waiting_ranks",
]
