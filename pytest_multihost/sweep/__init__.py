"""Plans the disturbances of a sweep, and judges what they brought about; pure.

The values are in `model.sweep`. What runs the worlds is `pytest_plugin.sweep`. A sweep calls, in
this order:

* `plan` makes the plan from the points of the undisturbed run: `roles` finds ranks that pass the
  same points, `classes` points that are alike, `order` what certainly comes after what, `sharing`
  files that several ranks use, `lock_files` what whoever holds a lock does. `lateness`, `failures`
  and `differences` make the `choices` of what to do where, and `brute_force` counts what all of it
  would be.
* `shards` cuts it; `order_rest` leaves out what would only show again what is known.
* `judge` says what a disturbance has brought about.
* `weaknesses` reduces the runs to what they show, and says what to repeat; `acceptances` marks
  what the project accepts.
"""

from pytest_multihost.sweep.acceptances import apply_acceptances
from pytest_multihost.sweep.judge import judge_run
from pytest_multihost.sweep.plan import order_rest, plan_sweep
from pytest_multihost.sweep.shards import merge_results, shard_of
from pytest_multihost.sweep.weaknesses import find_weaknesses, next_repeat

__all__ = [
    "apply_acceptances",
    "find_weaknesses",
    "judge_run",
    "merge_results",
    "next_repeat",
    "order_rest",
    "plan_sweep",
    "shard_of",
]
