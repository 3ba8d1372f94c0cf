"""Runs of pytest over several processes that a launcher has started.

`options` says whether this is one; `plugin` has the controller's additions to an ordinary run,
`agent` and `peer_server` the work of every other process. `state` has the run's state for the rest
of the plugin; from outside, the other modules are imported only by `entry`, and lazily.

`collected_tests` compares the processes' tests, `remote_snapshots` observes remote ranks.
"""
