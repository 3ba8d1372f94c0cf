"""The code that runs inside a rank.

Only `rank.agent` needs pytest, so programs can use a rank's world without it.

`stages` is what every rank does from its start to its end, whatever it runs; `script` is a rank
that runs a script.
`after_fork` resets inherited state, `environment` sets the variables, `points` performs faults,
`wrap_calls` and `batches` wrap what is called there, and `run_paths` names files alike in all runs.
`point_record` records what is passed, with which operations all ranks meet in (`meetings`) and what
the test's code does not look at (`used_code`).
`world` is the test's interface, with its clock (`world_clock`), `recorder` records operations.
`adapt_tools` prepares hypothesis, tqdm and coverage.py, `exceptions` makes values of exceptions.
"""

from pytest_multihost.rank.environment import own_variables, thread_variables
from pytest_multihost.rank.recorder import operation, prepare_recording
from pytest_multihost.rank.world import World, current_world

__all__ = [
    "World",
    "current_world",
    "operation",
    "own_variables",
    "prepare_recording",
    "thread_variables",
]
