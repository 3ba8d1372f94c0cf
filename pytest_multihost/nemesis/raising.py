"""Raise an exception where there was none."""

from __future__ import annotations

import builtins
import importlib
import re
from typing import NoReturn

from pytest_multihost.model.errors import SettingError
from pytest_multihost.nemesis.kind import FaultKind, Strike, text

_NAME = re.compile(r"(\w+(\.\w+)*:)?\w+(\.\w+)*")


def _raise(strike: Strike) -> NoReturn:
    __tracebackhide__ = True  # the reader's own line raises
    name = strike.fault.params.get("error", "RuntimeError")
    message = strike.fault.params.get("message", f"planned by {strike.fault!r}")
    raise exception_class(name)(message)


def exception_class(name: str) -> type[BaseException]:
    """Return the class that `name` names: a built-in one, or ``module:Class``.

    Raises:
        SettingError: There is no such class of exceptions.
    """
    module, _, path = name.rpartition(":")
    try:
        found: object = importlib.import_module(module) if module else builtins
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"there is no exception {name!r}", seen=str(error)) from error
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise SettingError(f"{name!r} is no class of exceptions", seen=repr(found))
    return found


def _error(value: object) -> str | None:
    if isinstance(value, str) and _NAME.fullmatch(value):
        if ":" in value:  # imported only in the rank
            return None
        found = getattr(builtins, value, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return None
    return "the name of a built-in exception, or 'module:Class' of another"


RAISE_AT = FaultKind(name="raise_at", perform=_raise, params={"error": _error, "message": text})
