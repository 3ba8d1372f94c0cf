"""Faults of what a call gives to this rank alone: an error, the end of the data, another value."""

from __future__ import annotations

import os
from typing import NoReturn

from pytest_multihost.model.fault import FIELD_ERRORS
from pytest_multihost.nemesis.kind import FaultKind, Strike, error_name, error_number
from pytest_multihost.nemesis.targets import Replaced


def _fail(strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    number = error_number(strike.fault.params.get("error", FIELD_ERRORS[strike.passed.call]))
    raise OSError(number, os.strerror(number), strike.passed.name)


def _end_data(_strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    raise StopIteration


def _return(strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    raise Replaced(strike.fault.params.get("value"))


VALUE_FAULTS = (
    FaultKind(name="fails", perform=_fail, params={"error": error_name}, points=frozenset({"io"})),
    FaultKind(name="short_data", perform=_end_data, points=frozenset({"batch"})),
    FaultKind(name="empty_data", perform=_end_data, points=frozenset({"batch"})),
    FaultKind(
        name="returns",
        perform=_return,
        params={"value": lambda _: None},
        points=frozenset({"call"}),
    ),
)
