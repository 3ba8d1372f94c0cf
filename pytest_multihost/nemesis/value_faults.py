"""Faults of what a call gives to this rank alone: an error, the end of the data, another value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn

from pytest_multihost.nemesis.kind import FaultKind, Strike, error_name, error_number
from pytest_multihost.nemesis.targets import Replaced

ERRORS: Mapping[str, str] = {
    "open": "EIO",
    "read": "EIO",
    "write": "ENOSPC",
    "fsync": "EIO",
    "stat": "ESTALE",
    "rename": "ESTALE",
    "link": "EPERM",
    "unlink": "EACCES",
    "mkdir": "ENOSPC",
    "rmdir": "ENOTEMPTY",
    "listdir": "ESTALE",
}
"""What a call on a file usually fails with in the field: a full disk, a network file system."""


def _fail(strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    number = error_number(strike.fault.params.get("error", ERRORS[strike.passed.call]))
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
