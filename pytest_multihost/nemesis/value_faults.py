"""Faults of what a call gives to this rank alone: an error, the end of the data, another value."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from pytest_multihost.model.fault import FIELD_ERRORS
from pytest_multihost.nemesis.kind import FaultKind, Strike, error_name, error_number
from pytest_multihost.nemesis.targets import Replaced

_JAX = frozenset(
    {
        *("assert_equal", "blocking_key_value_get", "blocking_key_value_get_bytes"),
        *("block_until_ready", "broadcast_one_to_all", "get_live_nodes", "process_allgather"),
        *("sync_global_devices", "wait_at_barrier"),
    }
)
"""Operations of jax's."""


def error_class(operation: str, backend: str) -> type[Exception]:
    """Return what an operation of a runtime raises when it fails.

    Args:
        operation: Its name, as its users call it.
        backend: The world's backend.
    """
    module, name = "torch.distributed", ""
    if operation in _JAX or operation.startswith(("jax.", "key_value_")):
        module, name = "jax.errors", "JaxRuntimeError"
    elif operation.startswith("store.") or operation == "TCPStore":
        name = "DistStoreError"
    elif backend == "nccl" and not operation.startswith("world."):
        name = "DistBackendError"
    found = getattr(sys.modules.get(module), name, RuntimeError) if name else RuntimeError
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError


def _fail(strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    if strike.passed.point == "collective":
        error = error_class(strike.passed.name, strike.place.world.backend)
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
    ),
    FaultKind(name="short_data", perform=_end_data, points=frozenset({"batch"})),
    FaultKind(name="empty_data", perform=_end_data, points=frozenset({"batch"})),
    FaultKind(
        name="returns",
        perform=_return,
        params={"value": lambda _: None},
        points=frozenset({"call"}),
    ),
)
