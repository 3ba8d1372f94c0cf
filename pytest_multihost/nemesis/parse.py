"""Parse faults from text, as on the command line; the text is never evaluated."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from pytest_multihost import at, faults
from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.fault import Fault, Point

T = TypeVar("T", Fault, Point)


def parse_fault(text: str) -> Fault:
    """Parse a fault, as ``kill(rank=1, at=at.sync_point("before-commit"))``.

    Raises:
        SettingError: It is no fault; the message has the nearest constructor or argument.
    """
    return _call(_tree(text), faults, "faults", Fault)


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        happened = f"{text!r} is no expression"
        raise SettingError(happened, remedy="Write it as slow_io(rank=0, seconds=2).") from error


def _call(tree: ast.expr, module: ModuleType, prefix: str, kind: type[T]) -> T:
    """Call the constructor in `module` that `tree` calls."""
    if not isinstance(tree, ast.Call):
        raise SettingError(f"{ast.unparse(tree)} is no call of a function of {prefix}")
    make = _constructor(tree.func, module, prefix)
    args = [_value(each) for each in tree.args]
    kwargs = {str(each.arg): _value(each.value) for each in tree.keywords}
    _check_arguments(make, args, kwargs)
    made = make(*args, **kwargs)
    assert isinstance(made, kind)  # noqa: S101 - the modules make nothing else
    return made


def _constructor(name: ast.expr, module: ModuleType, prefix: str) -> Callable[..., object]:
    text = ast.unparse(name).removeprefix(f"{prefix}.")
    if text in module.__all__:
        make: Callable[..., object] = getattr(module, text)
        return make
    near = difflib.get_close_matches(text, module.__all__, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    known = ", ".join(module.__all__)
    raise SettingError(f"there is no {prefix}.{text}; there are: {known}.{hint}")


def _value(tree: ast.expr) -> Any:  # noqa: ANN401 - a literal or a point
    if isinstance(tree, ast.Call):
        return _call(tree, at, "at", Point)
    try:
        return ast.literal_eval(tree)
    except ValueError as error:
        happened = f"{ast.unparse(tree)} is neither a number, a text, a list nor a point"
        raise SettingError(happened) from error


def _check_arguments(make: Callable[..., object], args: list[Any], kwargs: dict[str, Any]) -> None:
    signature = inspect.signature(make)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    unknown = [name for name in kwargs if name not in signature.parameters]
    if unknown and not takes_any:
        near = difflib.get_close_matches(unknown[0], signature.parameters, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        known = ", ".join(signature.parameters)
        name = getattr(make, "__name__", "it")
        raise SettingError(f"{name} takes no {unknown[0]}; it takes: {known}.{hint}")
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SettingError(f"{getattr(make, '__name__', 'it')}: {error}") from error
