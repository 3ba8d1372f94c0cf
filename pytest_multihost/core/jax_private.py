"""All uses of what jax and jaxlib keep private; jax 0.8 to 0.10 are known.

Modules are looked up among those that are imported, so nothing is imported here. What is wrapped
is named by constants: a module, and paths in it. What another version lacks is not wrapped, or
counts as "may be": a backend may be up, a program may be one of several processes.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from types import ModuleType
from typing import Any, Final

JaxObject = Any
"""An object of jax's, which the type checker does not see."""

BINDINGS: Final = "jaxlib._jax"
"""The module with the client of the coordination service."""

CLIENT: Final = "DistributedRuntimeClient"

ARRAYS: Final = "jax._src.array"
ARRAY: Final = "ArrayImpl"
ARRAY_VALUE: Final = "ArrayImpl._value"
"""Behind float(), tolist(), __array__ and print."""

STATES: Final = "jax._src.distributed"
"""The module behind `jax.distributed`, whose functions are imported by name."""

STATE: Final = "State"

PROGRAMS: Final = "jax._src.interpreters.pxla"
START_PROGRAM: Final = "ExecuteReplicated.__call__"
"""How Python starts a program: at its first call, and at later ones with effects."""

START_PROGRAM_FRAME: Final = ("jax/_src/interpreters/pxla.py", "__call__")
"""End of the file and name of that function on a stack."""

IMPORTED_LATE: Final = ("jaxlib.mlir.dialects.builtin", "jaxlib.mlir.dialects.mhlo")
"""Modules that jax imports when it compiles for the first time."""

_BRIDGE = "jax._src.xla_bridge"


def state() -> JaxObject:
    """Return the state of `jax.distributed` in this process.

    Raises:
        Exception: jax is not imported, or has no such state.
    """
    return sys.modules[STATES].global_state


def processes_of(program: JaxObject) -> set[int]:
    """Return the processes on whose devices a program runs.

    Raises:
        Exception: This version of jax does not say it in this way.
    """
    shardings = (*program.out_handler.out_shardings, *program.in_handler.in_shardings)
    return {device.process_index for device in next(iter(shardings)).device_set}


def may_span_processes(program: JaxObject) -> bool:
    """Return whether a program may run on the devices of several processes."""
    try:
        return len(processes_of(program)) > 1
    except Exception:  # noqa: BLE001 - whatever another version raises
        return True


def may_have_backend() -> bool:
    """Return whether jax may have initialised a backend in this process; imports nothing."""
    bridge: ModuleType | None = sys.modules.get(_BRIDGE)
    if bridge is None:
        return "jax" in sys.modules
    is_initialized = getattr(bridge, "backends_are_initialized", None)
    return is_initialized is None or bool(is_initialized())


def advertise_to_gloo(address: str) -> None:
    """Have gloo's collectives advertise this address to the other ranks.

    By default they advertise what the host's name resolves to, which is a loopback address on
    Debian and nothing at all in many containers. jax has no setting for it.
    """
    with contextlib.suppress(AttributeError, KeyError):  # another version
        library = sys.modules[_BRIDGE]._jax
        library.make_gloo_tcp_collectives = functools.partial(
            library.make_gloo_tcp_collectives, hostname=address
        )
