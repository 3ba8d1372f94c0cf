"""The pytest plugin: the only part of this package, but for the agent in a rank, that knows pytest.

It exports nothing: pytest loads `entry`, whose hooks lead to everything else. A test goes through
`marks` and `options` to a `plan`, through `launchers` to a server (`server_process`), through
`attempt` to a world, its verdict, what follows from it (`analysis`) and its artifacts, and through
`item` to pytest's own report. `run` keeps what lasts from one attempt to the next.

`option` is what an option is, `option_texts` and `marker_values` are how its values are read;
`acceptances` reads the file of what the project accepts. `live_display` is what is shown while a
world runs.

`fixtures` are those of ranks, `tally` counts and ends the run.
"""
