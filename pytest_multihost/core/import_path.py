"""Import paths, by which a spec names code for processes that have no plugin manager."""

from __future__ import annotations

import importlib
from typing import Any


def import_path(path: str) -> Any:  # noqa: ANN401 - whatever the path names
    """Return the object that "package.module:name" names.

    Raises:
        ImportError: There is no such module, or it has no such name.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise ImportError(f"there is no {path}") from error
