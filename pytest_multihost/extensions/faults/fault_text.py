"""The parsing of faults from text, as on the command line, which is never evaluated."""

from __future__ import annotations

import ast
import builtins
import inspect
from types import ModuleType
from typing import Any, TypeVar

from pytest_multihost import at, faults
from pytest_multihost.core.model.errors import SettingError, known_names, shown
from pytest_multihost.core.model.fault import Fault, Point

T = TypeVar("T", Fault, Point)
_MAX_TEXT = 200
_REMEDY = 'Write it as slow_io(rank=0, seconds=2, at=at.call("json:loads")).'
_NO_LITERALS = {
    text: name for name in ("nan", "inf", "-inf") for text in (name, f"float('{name}')")
}
"""Expressions of numbers that Python has no literals for."""


def parse_fault(text: str) -> Fault:
    """Parse a fault, as ``kill(rank=1, at=at.sync_point("before-commit"))``.

    Raises:
        SettingError: It is not a fault; the message has the nearest constructor or argument.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _call(tree, faults, Fault)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        happened = f"{shown(text)} is not a Python expression"
        raise SettingError(happened, seen=f"{error}.", remedy=_REMEDY) from error


def _call(tree: ast.expr, module: ModuleType, kind: type[T]) -> T:
    """Call the constructor in `module` that `tree` calls."""
    prefix = module.__name__.rpartition(".")[2]
    if not isinstance(tree, ast.Call):
        happened = f"{_text(tree)} is not a call of a function of pytest_multihost.{prefix}"
        raise SettingError(happened, remedy=_REMEDY)
    name = _text(tree.func).removeprefix(f"{prefix}.")
    if name not in module.__all__:
        known = known_names(module.__all__, name)
        raise SettingError(f"there is no {prefix}.{name}; there are: {known}")
    make = getattr(module, name)
    args = [_value(each) for each in tree.args]
    kwargs = {each.arg or "**": _value(each.value) for each in tree.keywords}
    if "**" in kwargs or len(kwargs) < len(tree.keywords):
        raise SettingError(f"{name}: name each argument, and each only once")
    signature = inspect.signature(make)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    unknown = [each for each in kwargs if each not in signature.parameters]
    if unknown and not takes_any:
        known = known_names(signature.parameters, unknown[0])
        raise SettingError(f"{name} takes no {shown(unknown[0])}; it takes: {known}")
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = f"It takes: {', '.join(signature.parameters)}."
        raise SettingError(f"{name}: {error}", remedy=takes) from error
    made = make(*args, **kwargs)
    assert isinstance(made, kind)  # noqa: S101 - the modules make nothing else
    return made


def _value(tree: ast.expr) -> Any:  # noqa: ANN401 - a literal or a point
    if ast.unparse(tree) in _NO_LITERALS:
        return float(_NO_LITERALS[ast.unparse(tree)])
    if isinstance(tree, ast.Call):
        return _call(tree, at, Point)
    error_class = getattr(builtins, tree.id, None) if isinstance(tree, ast.Name) else None
    if isinstance(error_class, type) and issubclass(error_class, BaseException):
        return error_class
    try:
        return ast.literal_eval(tree)
    except (ValueError, TypeError) as error:
        happened = f"{_text(tree)} is neither a number, a text, a list nor a point"
        raise SettingError(happened) from error


def _text(tree: ast.expr) -> str:
    """Return the text of an expression for a message."""
    text = ast.unparse(tree)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."
