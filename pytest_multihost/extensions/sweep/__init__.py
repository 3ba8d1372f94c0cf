"""Plans the disturbances of a sweep, and judges what they brought about; pure.

The values are in `model.sweep`. What runs the worlds is `pytest_plugin.sweep`. `families` lists
what a sweep can do to a rank; every run of pytest imports that, and so this module imports nothing.
A sweep calls, in this order:

* `plan` makes the plan from the points of the undisturbed run: `classes` finds points that are
  alike, and ranks that pass the same points, `sharing` files that several ranks use, what certainly
  comes after what, and what whoever holds a lock does. From these the families make `choices`.
* `judge` says what a disturbance has brought about. `rest` skips what would only show again what is
  known.
* `weaknesses` reduces the runs to what they show, says what to repeat, and marks what the project
  accepts. `mendings` are the patterns that remove weaknesses.
"""
