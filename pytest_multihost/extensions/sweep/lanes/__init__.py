"""Lanes: processes that run disturbed worlds beside each other, for a sweep.

Ranks that hang wait, and use no processor; so several worlds at a time take hardly longer than one.
Each lane runs and judges one world at a time as pytest's own process would, but knows no pytest:
its worlds are in no report but the sweep's. Its ranks are forked by a server of its own, which is a
clone of the one that pytest's process uses.

`pool` is the controller's side, `process` the lanes themselves, `messages` what both exchange.
Lanes are forked by a process that imports everything once, the lane parent. All of them end with
the controller, in whichever way that ends; and the servers with their lanes.
"""

from pytest_multihost.extensions.sweep.lanes.messages import RunWorld, WorldLost, WorldRun
from pytest_multihost.extensions.sweep.lanes.pool import LanePool

__all__ = ["LanePool", "RunWorld", "WorldLost", "WorldRun"]
