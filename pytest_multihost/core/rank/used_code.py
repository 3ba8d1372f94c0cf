"""What the test's own code certainly does not look at: the wall clock, the hashes of strings.

What is reached is found by names alone: whatever code of the user's has a name that reached code
mentions, is reached. So more is taken to be reached than is, never less, but for what is called
from outside by no name at all. Where reached code calls an installed package other than the
runtimes, nothing is known.
"""

from __future__ import annotations

import dis
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

from pytest_multihost.core.model.stack import is_library

Namespace = Mapping[str, object]
"""The names of a module, or of a class."""

Values = dict[str, list[object]]
"""What names stand for, in any of the modules."""

_KNOWN = frozenset(
    {"_pytest", "jax", "jaxlib", "numpy", "pluggy", "pytest", "pytest_multihost", "torch"}
)
"""Installed packages whose own sets and times are none of the test's."""

_CLOCKS = frozenset(
    {
        *("asctime", "clock_gettime", "clock_gettime_ns", "ctime", "gmtime", "localtime"),
        *("now", "strftime", "time", "time_ns", "today", "utcnow"),
    }
)
"""Names of functions and methods that tell the time of day."""

_CLOCK_FUNCTIONS = frozenset(
    id(each) for name in _CLOCKS if (each := getattr(time, name, None)) is not None
)

_SETS = frozenset({"frozenset", "hash", "set"})
_MAKE_SETS = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
_VIEWS = frozenset({"items", "keys"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"})
_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"})
_MAX_CODES = 5_000
_WRAPPERS = 5
"""How many functions are looked for that wrap each other."""

_ALWAYS = ""
"""The name of what runs without being named."""


@dataclass(slots=True)
class UsedCode:
    """Code of the user's that has passed points, and the modules that it is from."""

    _codes: dict[int, CodeType] = field(default_factory=dict)
    _namespaces: dict[int, Namespace] = field(default_factory=dict)

    def see(self, frame: FrameType | None) -> None:
        """Take note of the user's code on a stack."""
        while frame is not None:
            code = frame.f_code
            if id(code) not in self._codes and not is_library(code.co_filename):
                self._codes[id(code)] = code
                self._namespaces[id(frame.f_globals)] = frame.f_globals
            frame = frame.f_back

    def unused(self) -> tuple[str, ...]:
        """Return what is certainly not looked at, of ``clock`` and ``hashes``."""
        try:
            return self._unused() if self._codes else ()
        except Exception:  # noqa: BLE001 - objects of the user's may raise anything
            return ()

    def _unused(self) -> tuple[str, ...]:
        namespaces = [*self._namespaces.values(), *_user_modules(self._namespaces)]
        reached = _reached(self._codes.values(), namespaces)
        values: Values = {}
        for namespace in namespaces:
            for name, value in list(namespace.items()):
                values.setdefault(name, []).append(value)
        if reached is None or any(_is_foreign(each, values) for each in reached):
            return ()
        used = {
            "clock": any(_reads_clock(each, values) for each in reached),
            "hashes": any(_uses_hashes(each, values) for each in reached),
        }
        return tuple(what for what, is_used in used.items() if not is_used)


def _user_modules(known: Mapping[int, Namespace]) -> Iterator[Namespace]:
    for module in sys.modules.copy().values():
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not is_library(file) and id(vars(module)) not in known:
            yield vars(module)


def _reached(
    codes: Iterable[CodeType], namespaces: Iterable[Namespace]
) -> tuple[CodeType, ...] | None:
    """Return all code that may have run; None if that is too much to look at."""
    by_name: dict[str, list[CodeType]] = {}
    for namespace in namespaces:
        for name, code in _functions(namespace):
            by_name.setdefault(name, []).append(code)
    found: dict[CodeType, None] = {}
    left = [*codes, *by_name.get(_ALWAYS, ())]
    while left:
        code = left.pop()
        if code in found:
            continue
        found[code] = None
        if len(found) > _MAX_CODES:
            return None
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
        # A fixture's name is that of an argument.
        for name in (*code.co_names, *code.co_varnames[: code.co_argcount]):
            left += by_name.get(name, ())
    return tuple(found)


def _functions(namespace: Namespace) -> Iterator[tuple[str, CodeType]]:
    """Yield the user's functions of a module; of a class, all methods under its own name, too."""
    for name, value in list(namespace.items()):
        if isinstance(value, type):
            for member, inner in [each for base in value.__mro__ for each in vars(base).items()]:
                for code in _codes(inner):
                    yield member, code
                    yield name, code
        else:
            for code in _codes(value):
                yield name, code
                if _is_autouse(value):
                    yield _ALWAYS, code


def _codes(value: object) -> Iterator[CodeType]:
    """Yield the user's code of a function and of what it wraps."""
    for _ in range(_WRAPPERS):
        if isinstance(value, FunctionType) and not is_library(value.__code__.co_filename):
            yield value.__code__
        value = _wrapped(value)


def _wrapped(value: object) -> object:
    """Return the function that another one wraps, without asking an object of the user's."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    names = _names_of(value)
    inner = (names.get(each) for each in ("__wrapped__", "_fixture_function", "func"))
    return next((each for each in inner if each is not None), None)


def _names_of(value: object) -> Namespace:
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_autouse(value: object) -> bool:
    """Return whether a value is a fixture of pytest's that no test names."""
    names = _names_of(value)
    marker = names.get("_fixture_function_marker", names.get("_pytestfixturefunction"))
    return bool(getattr(marker, "autouse", False))


def _is_foreign(code: CodeType, values: Values) -> bool:
    """Return whether code mentions an installed package of which nothing is known."""
    for name in code.co_names:
        for value in (*values.get(name, ()), sys.modules.get(name)):
            module = value.__name__ if isinstance(value, ModuleType) else None
            if isinstance(value, type | FunctionType | BuiltinFunctionType):
                module = value.__module__
            if module is not None and not _is_known(module):
                return True
    return False


def _is_known(module: str) -> bool:
    top = module.partition(".")[0]
    if top in _KNOWN or top in sys.stdlib_module_names:
        return True
    found = sys.modules.get(module)
    paths = (getattr(found, "__file__", None), *getattr(found, "__path__", ()))
    file = next((each for each in paths if isinstance(each, str)), None)
    return file is None or not is_library(file)


def _reads_clock(code: CodeType, values: Values) -> bool:
    for each in dis.get_instructions(code):
        name = each.argval
        if each.opname in _ATTRIBUTES and name in _CLOCKS:
            return True
        if each.opname in _NAMES and any(
            id(value) in _CLOCK_FUNCTIONS for value in values.get(name, ())
        ):
            return True
    return False


def _uses_hashes(code: CodeType, values: Values) -> bool:
    """Return whether code makes a set, asks for a hash, or uses a set of its module's.

    A constant set that is only asked whether it contains something has no order.
    """
    found = list(dis.get_instructions(code))
    joins = any(each.opname == "BINARY_OP" and each.argrepr[:1] in "&|^-" for each in found)
    if joins and not _VIEWS.isdisjoint(code.co_names):
        return True
    for each, after in zip(found, [*found[1:], None], strict=True):
        if each.opname in _MAKE_SETS or (each.opname in _NAMES and each.argval in _SETS):
            return True
        is_asked = after is not None and after.opname == "CONTAINS_OP"
        if each.opname == "LOAD_CONST" and isinstance(each.argval, frozenset) and not is_asked:
            return True
        if each.opname in _NAMES and any(
            isinstance(value, set | frozenset) for value in values.get(each.argval, ())
        ):
            return True
    return False
