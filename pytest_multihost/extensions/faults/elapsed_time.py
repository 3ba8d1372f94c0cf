"""The fault `elapsed_time`: more time has elapsed than the rank's code has seen pass.

A rank that was stopped, or that waited for a slow disk, finds that a time limit is over. All its
clocks are ahead from one moment on, as its own code reads them. Waits and timeouts of libraries
and runtimes are unchanged.
"""

from __future__ import annotations

import itertools
from types import FrameType

from pytest_multihost.faults.kind import FaultKind, Strike, is_number, must_be, seconds
from pytest_multihost.intercept.clocks import replace_clocks


def _jump(strike: Strike) -> None:
    params = strike.fault.params
    first = params.get("read", 1)
    by_s: float = params["seconds"]
    numbers = itertools.count(1)

    def ahead_s(_reader: FrameType) -> float:
        number = next(numbers)
        if number == first:
            strike.begun()
        if number < first:
            return 0.0
        strike.met()
        return by_s

    strike.armed()
    replace_clocks(ahead_s, strike.healing, strike.more_modules)


ELAPSED_TIME = FaultKind(
    name="elapsed_time",
    perform=_jump,
    params={
        "seconds": seconds,
        "read": must_be(
            "a whole number of at least 1",
            lambda each: is_number(each) and isinstance(each, int) and each >= 1,
        ),
    },
    required=frozenset({"seconds"}),
    lasts=True,
    tells_itself=True,
    one_per="rank",
    sentence="{who}'s clocks were {seconds} s ahead from its {read} read of a clock on",
    mending="broadcast-decisions",
)
