"""The former home of `pytest_multihost.faults.kind`, for plugins that still import from it."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_NAMES = frozenset({"FaultKind", "Strike", "positive", "seconds", "text", "truth", "whole"})
_HOME = "pytest_multihost.faults.kind"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class or a check
    """Return a name of the new module, with a warning."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"import {name} from {_HOME}: {__name__} will be removed"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(_HOME), name)
