"""Runs of pytest over several processes that a launcher has started.

`options` tells whether this is one; `plugin` is what the controller does beside an ordinary run,
`agent` and `peer_server` what every other process does. `state` tells the rest of the plugin what
it must know of the run; nothing else of it is imported from outside, but by `entry` and lazily.

`collected_tests` compares what the processes hold, `remote_snapshots` observes ranks elsewhere.
"""
