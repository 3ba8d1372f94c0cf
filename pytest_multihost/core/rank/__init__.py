"""The code that runs inside a rank.

Only `rank.agent` needs pytest, so programs can use a rank's world without it.

`stages` is what every rank does from its start to its end, whatever it runs, and makes values of
its exceptions; `agent` is a rank that runs a test, `script` one that runs a script.
`after_fork` resets inherited state and prepares hypothesis, tqdm and coverage.py, `environment`
sets the variables, `points` performs faults and names files alike in all runs, `wrap_calls` wraps
what is called there. `point_record` records what is passed, with which operations all ranks meet
in.
`world` is the test's interface, with its clock; `recorder` records operations.
"""

from pytest_multihost.core.rank.environment import own_variables, thread_variables
from pytest_multihost.core.rank.recorder import operation, prepare_recording
from pytest_multihost.core.rank.world import World, current_world

__all__ = [
    "World",
    "current_world",
    "operation",
    "own_variables",
    "prepare_recording",
    "thread_variables",
]
