"""How the ranks of a world form a process group: jax, gloo, nccl, or left to the test (none).

torch and jax are imported inside functions only, in ranks and in the server that forks them: the
process of pytest itself imports no runtime.

`backend` defines a backend; `torch_groups` has gloo and nccl, `jax` has jax. This module has
`none`, the list of built-in backends, and the look-up by name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

import pluggy

from pytest_multihost.core.backends.backend import Backend
from pytest_multihost.core.backends.jax import JAX
from pytest_multihost.core.backends.torch_groups import GLOO, NCCL, gpu_count
from pytest_multihost.core.model.errors import SettingError, known_names, shown
from pytest_multihost.core.model.setting_values import DEFAULT_BACKEND
from pytest_multihost.core.outcome import Symptoms

__all__ = [
    "BUILT_IN_BACKENDS",
    "Backend",
    "find_backend",
    "gpu_count",
    "named_backend",
    "offered_backends",
    "symptoms_of",
]


NONE = Backend(
    name=DEFAULT_BACKEND,
    noise=GLOO.noise,
    hints={
        "Default process group has not been initialized": 'The backend "none" makes no process'
        ' group: call init_process_group, or choose another backend (backend="gloo" in the marker,'
        " --backend gloo of multihost run)."
    },
    start=lambda _spec: None,
    symptoms=GLOO.symptoms + JAX.symptoms,
    fatal_symptoms=GLOO.fatal_symptoms + JAX.fatal_symptoms,
)
"""N processes and a rendezvous port, for code that initialises its runtime itself.

The rank's environment holds torchrun's variables, so `init_process_group("gloo")` and
`jax.distributed.initialize(f"{MASTER_ADDR}:{MASTER_PORT}", ...)` work as under torchrun. Failures
of either runtime are recognised as symptoms here too.
"""

BUILT_IN_BACKENDS = (NONE, GLOO, JAX, NCCL)


def offered_backends(hook: pluggy.HookRelay) -> list[Backend]:
    """Return all backends that plugins offer, those of the plugin registered last first."""
    return [backend for group in hook.pytest_multihost_backends() for backend in group]


def symptoms_of(backends: Iterable[Backend]) -> Symptoms:
    """Return how failures of these backends look when they follow from another rank's."""
    found = tuple(backends)
    return Symptoms(
        tuple(text for each in found for text in each.symptoms),
        tuple(text for each in found for text in each.fatal_symptoms),
        tuple(text for each in found if each not in BUILT_IN_BACKENDS for text in each.symptoms),
    )


def named_backend(name: str, offered: Iterable[Backend]) -> Backend:
    """Return the backend called `name`; of several, the first one offered.

    Raises:
        SettingError: No plugin offers it.
    """
    offered = list(offered)
    backend = next((each for each in offered if each.name == name), None)
    if backend is None:
        known = known_names([each.name for each in offered], name)
        raise SettingError(f"unknown backend {shown(name)}", seen=f"There are: {known}")
    return backend


def find_backend(name: str, offered: Iterable[Backend]) -> Backend:
    """Return the backend called `name`, which this process can start.

    Raises:
        SettingError: No plugin offers it, or the package it needs is not installed.
    """
    backend = named_backend(name, offered)
    if backend.package is not None and importlib.util.find_spec(backend.package) is None:
        happened = f"backend {name!r} needs the package {backend.package!r}"
        extra = backend.extra or backend.package
        remedy = f"Run: pip install '{backend.offered_by}[{extra}]'"
        raise SettingError(happened, seen="It is not installed.", remedy=remedy)
    return backend
