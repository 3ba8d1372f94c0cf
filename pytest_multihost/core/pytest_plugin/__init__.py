"""The pytest plugin: the only part of this package, but for the agent in a rank, that knows pytest.

It exports nothing: pytest loads `entry`, whose hooks lead to everything else. A test goes through
`marks` and `options` to a `plan`, through `launchers` to a server (`server_process`), through
`attempt` to a world, its verdict, its hazards and its artifacts, and through `item` to pytest's own
report. `run` keeps what lasts from one attempt to the next.

`sweep` runs passing tests with disturbances.

`fixtures` are those of ranks, `tally` counts and ends the run; `attach` joins processes that a
launcher has started.
"""
