"""Plans the disturbances of a sweep, and judges what they brought about; pure.

The values are in `model.sweep`. What runs the worlds is `pytest_plugin.sweep`. A sweep calls, in
this order:

* `plan` makes the plan from the points of the undisturbed run: `classes` finds points that are
  alike, and ranks that pass the same points, `sharing` files that several ranks use, what certainly
  comes after what, and what whoever holds a lock does. `choices` says what to do where, `lateness`
  where to hold a rank. `order_rest` leaves out what would only show again what is known.
* `judge` says what a disturbance has brought about.
* `weaknesses` reduces the runs to what they show, says what to repeat, and marks what the project
  accepts.
"""

from pytest_multihost.sweep.judge import judge_run
from pytest_multihost.sweep.plan import order_rest, plan_sweep
from pytest_multihost.sweep.weaknesses import apply_acceptances, find_weaknesses, next_repeat

__all__ = [
    "apply_acceptances",
    "find_weaknesses",
    "judge_run",
    "next_repeat",
    "order_rest",
    "plan_sweep",
]
