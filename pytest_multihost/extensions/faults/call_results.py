"""Faults of a call's result in this rank alone: an error, the end of the data, another value."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.fault import FIELD_ERRORS
from pytest_multihost.faults.kind import FaultKind, Strike, error_name, error_number
from pytest_multihost.intercept.targets import Replaced

_OF_JAX = frozenset(
    {
        *(each.name for each in COLLECTIVES if each.runtime == "jax"),
        *("blocking_key_value_get", "blocking_key_value_get_bytes", "block_until_ready"),
        "get_live_nodes",
    }
)
"""Operations of jax whose names do not show it."""


def error_class(operation: str, backend_error: str) -> type[Exception]:
    """Return the exception of an operation of a runtime that fails.

    Args:
        operation: Its name, as its users call it.
        backend_error: The exception of operations of the world's backend, as ``module:Class``;
            empty: RuntimeError.
    """
    wanted = "" if operation.startswith("world.") else backend_error
    if operation in _OF_JAX or operation.startswith(("jax.", "key_value_")):
        wanted = "jax.errors:JaxRuntimeError"
    elif operation.startswith("store.") or operation == "TCPStore":
        wanted = "torch.distributed:DistStoreError"
    module, _, name = wanted.partition(":")
    found = getattr(sys.modules.get(module), name, RuntimeError) if name else RuntimeError
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError


def _fail(strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    strike.met()
    if strike.passed.point == "collective":
        error = error_class(strike.passed.name, strike.place.world.backend_facts.operation_error)
        raise error(f"{strike.passed.name}: planned by {strike.fault!r}")
    number = error_number(strike.fault.params.get("error", FIELD_ERRORS[strike.passed.call]))
    raise OSError(number, os.strerror(number), strike.passed.name)


def _end_data(_strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    raise StopIteration


def _return(strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    raise Replaced(strike.fault.params.get("value"))


VALUE_FAULTS = (
    FaultKind(
        name="fails",
        perform=_fail,
        params={"error": error_name},
        points=frozenset({"collective", "io"}),
        is_exclusive=True,
        sentence="{who}'s {what} failed with {error} ({often})",
        mending="agree-on-errors",
    ),
    FaultKind(
        name="short_data",
        perform=_end_data,
        points=frozenset({"batch"}),
        sentence="{who}'s data ended before {what}",
        mending="join-uneven-inputs",
    ),
    FaultKind(
        name="empty_data",
        perform=_end_data,
        points=frozenset({"batch"}),
        sentence="{who} got no data from {name}",
        mending="join-uneven-inputs",
    ),
    FaultKind(
        name="returns",
        perform=_return,
        params={"value": lambda _: None},
        points=frozenset({"call"}),
        is_exclusive=True,
        sentence="{who}'s {what} returned {value}",
        mending="broadcast-decisions",
    ),
)
