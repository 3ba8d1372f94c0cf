"""Sweeps: run a passing test again and again, each time with one disturbance.

`marker`, `options` and `hookspecs` are what users and other extensions say; `family` and `result`
are the values. `run` sweeps tests, in the processes of `lanes`. `report`, `words` and `html` show
sweeps. A sweep calls, in this order, what follows; all of it is pure:

* `plan` makes the plan from the points of the undisturbed run, and cuts it into shards: `classes`
  finds points that are alike, and ranks that pass the same points, `sharing` files that several
  ranks use, what certainly comes after what, and what whoever holds a lock does. `choices` says
  what to do where, `lateness` where to hold a rank. `order_rest` leaves out what would only show
  again what is known.
* `judge` says what a disturbance has brought about.
* `weaknesses` reduces the runs to what they show, says what to repeat, and marks what the project
  accepts.
"""
