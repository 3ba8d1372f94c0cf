"""Which ranks make a world hang: pure functions from snapshots and events to a diagnosis.

`judge_world` runs the steps in order: `rank_states` (the state of each rank), `wait_graph` (which
rank waits for which), `causes` (the sinks of that graph), `divergence` (where histories of ranks
part), `build_diagnosis` (what users read).
`called_functions` tells which threads run functions for other ranks, `inferred` adds waits that no
recorder has seen, `partition_blame` network partitions, `size_complaint` ranks that gloo ends
because of a size; `running` finds the blocking ranks of a world that still runs.
"""

from pytest_multihost.blame.judge_world import Judgement, judge_world
from pytest_multihost.blame.partition_blame import severed
from pytest_multihost.blame.running import (
    BlockingRanks,
    find_blocking_ranks,
    has_timeout_before,
    mismatched_ranks,
    waiting_ranks,
)

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
