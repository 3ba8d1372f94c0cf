"""Rates weaknesses: what stays wrong, whether a log mentions it, and what ends the wait.

What ends a wait is measured: the witness runs again, and the harness then does not end ranks that
wait. Instead a failed rank ends as the process of a job does, and a model of the launcher ends the
others.

* `launcher` is the model, a service of such a world. `in_rank` is its part in a rank: it ends the
  process of a rank that has failed.
* `wait_end` finds out from the world what has ended the wait, and when.
* `weigh` rates weaknesses, and hides those that end soon and leave nothing wrong. It is pure.
"""
