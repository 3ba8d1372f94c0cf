"""Refuses, in a simulated world, the functions of jax that are about several processes.

Only torch's groups and stores are simulated. Each rank has a jax of its own that knows of one
process, so a barrier or a gather of jax would return at once, with the values of one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from pytest_multihost.core.jax_private import STATE, STATES
from pytest_multihost.core.rank.recorder.imports import after_import

MULTIHOST_UTILS = "jax.experimental.multihost_utils"

_ABOUT_PROCESSES = (
    "assert_equal",
    "broadcast_one_to_all",
    "global_array_to_host_local_array",
    "host_local_array_to_global_array",
    "process_allgather",
    "reached_preemption_sync_point",
    "sync_global_devices",
)


class NotSimulatedError(RuntimeError):
    """A program asks for something that simulated worlds do not have."""


def refuse_jax() -> None:
    """Have the functions raise as soon as their modules are imported in this rank."""
    after_import(MULTIHOST_UTILS, partial(_refuse_all, names=_ABOUT_PROCESSES))
    after_import(STATES, lambda module: _refuse_all(getattr(module, STATE), ("initialize",)))


def _refuse_all(owner: ModuleType | type, names: tuple[str, ...]) -> None:
    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, _refusing(f"{_public_name(owner)}.{name}"))


def _public_name(owner: ModuleType | type) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else "jax.distributed"


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - as the function that it replaces
        raise NotSimulatedError(
            f"{name} is not simulated: backend='simulated' has the process groups of torch, and in"
            " each rank a jax with one process. Use backend='jax' for a program over several"
            " processes of jax."
        )

    return refuse
