"""The built-in backends, and how one is found by its name."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from pytest_multihost.backends.backend import Backend
from pytest_multihost.backends.gloo import GLOO
from pytest_multihost.backends.jax import JAX
from pytest_multihost.backends.nccl import NCCL
from pytest_multihost.backends.none import NONE
from pytest_multihost.model.errors import SettingError

BUILT_IN = (NONE, GLOO, JAX, NCCL)


def find(name: str, offered: Iterable[Backend]) -> Backend:
    """Return the backend called `name`; the first one offered wins.

    Raises:
        SettingError: Nobody offers it, or the package it needs is not installed.
    """
    offered = list(offered)
    for backend in offered:
        if backend.name == name:
            _check_package(backend)
            return backend
    known = ", ".join(f"{each.name} ({each.offered_by})" for each in offered)
    happened = f"unknown backend {name!r}"
    raise SettingError(happened, seen=f"There are: {known}.")


def _check_package(backend: Backend) -> None:
    if backend.package is None or importlib.util.find_spec(backend.package) is not None:
        return
    happened = f"backend {backend.name!r} needs the package {backend.package!r}"
    extra = backend.extra or backend.package
    remedy = f"Run: pip install '{backend.offered_by}[{extra}]'"
    raise SettingError(happened, seen="It is not installed.", remedy=remedy)
