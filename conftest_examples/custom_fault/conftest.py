import time
from unittest import mock

from pytest_multihost.hookspecs import FaultKind


def a_number(value):
    """Say what a value must be, or None if it is that."""
    return None if isinstance(value, int | float) else "a number of seconds"


def set_clock(strike):
    """Make this rank's clock wrong until the test's body is over."""
    right, off = time.time, strike.fault.params["seconds"]

    def wrong():
        return right() + off

    strike.healing.enter_context(mock.patch("time.time", wrong))


def pytest_multihost_faults():
    return [
        FaultKind(
            name="wrong_clock",
            perform=set_clock,
            params={"seconds": a_number},
            required=frozenset({"seconds"}),
            lasts=True,
        )
    ]
