"""The pytest plugin; except for the agent in a rank, only this part of the package knows pytest.

It exports nothing. pytest loads `entry`, whose hooks lead to everything else:

* `marks` and `options` read the settings of a test,
  and `acceptances` reads the file of accepted weaknesses. `id_hints` has advice for a
  test's id that was not found.
* `plan` decides how each test runs, and `launchers` starts a server (`server_process`) for it.
* `attempt` runs the world in a directory of `scratch_folders`, judges it and writes its artifacts;
  an `analysis` adds an extension's findings; `live_display` shows the world while it runs.
* `item` transfers the ranks' results into pytest's own report.
* `run` holds the state that lasts over attempts; `tally` counts, and ends the run.
  `other_machines` is the interface to machines that start the ranks in place of this one.
* `usage_errors` makes the errors of usage, whose texts are printable.
* `calls` runs a function on ranks, in the middle of a test of this process.
* `fixtures` are the fixtures for ranks.
* `shared_fixtures` sets up the session fixtures that all ranks share.
"""
