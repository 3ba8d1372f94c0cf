"""The code that runs inside a rank.

Only `rank.agent` needs pytest, so programs can use a rank's world without it.

* `stages`: the steps of every rank, from its start to its end. `agent`: a rank that runs a test.
  `body`: a rank that runs a script or a function.
  `role_program`: the program of a role, `program_child`: in a child of its rank. `role_order`:
  after which others a role starts. `raised_errors`: exceptions as values.
* `after_fork`: resets inherited state. `environment`: sets the variables. `neighbours`: prepares
  hypothesis, tqdm and coverage.py.
* `points`: performs faults at points, with `portable_names` (files).
* `point_record`: records the points passed, with `meetings` (operations in which all ranks meet).
* `world`: the test's interface. `digest`: digests of values, to compare ranks;
  `tensor_bytes`: the elements of a tensor.
* `lock_waits`: which thread holds the lock that another one waits for. `polled_files`: the file
  for which a thread polls.
* `services`: the parts that services of a world have in a rank.
* `recorder`: records operations. `children`: recording in the interpreters that a rank starts.
"""

from pytest_multihost.core.rank.environment import (
    foreign_variables,
    own_variables,
    rank_variables,
    thread_variables,
)
from pytest_multihost.core.rank.recorder import operation, prepare_recording
from pytest_multihost.core.rank.world import World, current_world

__all__ = [
    "World",
    "current_world",
    "foreign_variables",
    "operation",
    "own_variables",
    "prepare_recording",
    "rank_variables",
    "thread_variables",
]
