"""Rates weaknesses: the lasting error, its mention in a log, and the end of the wait.

The end of a wait is measured: the witness runs again, and the harness then does not end ranks that
wait. Instead a failed rank ends as the process of a job does, and a model of the launcher ends the
others.

* `launcher` is the model, a service of such a world. `in_rank` is its part in a rank: it ends the
  process of a rank that has failed.
* `wait_end` finds the end of the wait in the world's record: its cause and its time.
* `weigh` rates weaknesses, and hides weaknesses that end soon and leave nothing wrong. It is pure.
"""
