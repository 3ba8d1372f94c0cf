"""Lanes are processes that run the disturbed worlds of a sweep in parallel.

Hung ranks wait and use no processor, so several worlds at a time take hardly longer than one. Each
lane runs and judges one world at a time, as pytest's own process does, but without a session of
pytest: only the sweep reports its worlds. Its ranks are forked by a server of its own, which is a
clone of the server of pytest's process.

`pool` is the controller's side, `process` has the processes of lanes, and `messages` has the
messages between them. `split_launcher` starts a world whose ranks several servers fork. The lane
parent, a process that imports everything once, forks the lanes. All lanes end with the controller,
however it ends, and the servers end with their lanes.
"""

from pytest_multihost.extensions.sweep.lanes.messages import (
    RunWorld,
    Share,
    WaitMeasured,
    WorldLost,
    WorldRun,
)
from pytest_multihost.extensions.sweep.lanes.pool import LanePool

__all__ = ["LanePool", "RunWorld", "Share", "WaitMeasured", "WorldLost", "WorldRun"]
