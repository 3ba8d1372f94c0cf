"""Find the file for which a thread of this process polls: a lock that is a file's existence.

Such a thread sleeps in a loop that asks again and again whether a file exists, or tries to create
it. The loop is found in the source, and the file's name in the variables of the frame. As in
`lock_waits`, nothing of the program is called.
"""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from types import FrameType
from typing import Final

from pytest_multihost.core.model.stack import Frame, PolledFile
from pytest_multihost.core.rank.lock_waits import UNKNOWN, value_of

_ASKS: Final = frozenset({"exists", "lexists", "isfile", "is_file", "access", "stat", "lstat"})
_MAKES: Final = frozenset({"open", "mkdir", "makedirs", "link", "symlink", "touch", "symlink_to"})
_WORDS: Final = tuple(f"{each}(" for each in (*_ASKS, *_MAKES))
_OF_FILES: Final = frozenset({"os", "path", "shutil"})
"""Modules whose functions take the path as an argument."""
_MAX_FRAMES = 12
_EXCLUSIVE = ("O_EXCL", "'x", '"x')

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def polled_file(interrupted: FrameType | None) -> PolledFile | None:
    """Return the file for which a thread polls; None if it does not seem to.

    Args:
        interrupted: The innermost frame of the thread.
    """
    frame = interrupted
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        path = next(_paths(frame), "")
        if path:
            code = frame.f_code
            at = Frame(code.co_filename, frame.f_lineno or 0, code.co_name)
            return PolledFile(os.path.abspath(path), at, os.path.lexists(path))  # noqa: PTH100
        frame = frame.f_back
    return None


def _paths(frame: FrameType) -> Iterator[str]:
    """Yield the names of the files that the loops around a frame's line ask for or create."""
    line = frame.f_lineno or 0
    functions, loops = _parsed(frame.f_code.co_filename)
    for loop in loops:  # innermost first
        if not loop.lineno <= line <= (loop.end_lineno or 0):
            continue
        calls = [each for each in ast.walk(loop) if isinstance(each, ast.Call)]
        own = [*calls]
        for each in calls:  # a function of the same file that the loop calls
            own += functions.get(_name(each), ())
        for each in own:
            path = _path_of(frame, each)
            if path:
                yield path


def _path_of(frame: FrameType, call: ast.Call) -> str:
    """Return the path about which a call asks, or which it creates; empty if it does neither."""
    name = _name(call)
    if name not in _ASKS and not (name in _MAKES and _is_exclusive(name, call)):
        return ""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_method = owner is not None and _name_of(owner) not in _OF_FILES
    asked = owner if is_method else (call.args[0] if call.args else None)
    if name in {"link", "symlink"} and not is_method and len(call.args) > 1:
        asked = call.args[1]
    return _text(frame, asked) if asked is not None else ""


def _is_exclusive(name: str, call: ast.Call) -> bool:
    """Return whether a call fails if the file exists."""
    text = ast.unparse(call)
    if name == "open":
        return any(each in text for each in _EXCLUSIVE)
    return name != "touch" or "exist_ok=False" in text


def _text(frame: FrameType, node: ast.expr) -> str:
    """Return the path that an expression means in a frame; empty if it is unknown."""
    match node:
        case ast.BinOp(left, ast.Div(), right):
            parts = [_text(frame, left), _text(frame, right)]
            return os.path.join(*parts) if all(parts) else ""  # noqa: PTH118
        case ast.Call(args=args) if _name(node) in {"join", "Path", "str", "fspath"} and args:
            parts = [_text(frame, each) for each in args]
            return os.path.join(*parts) if all(parts) else ""  # noqa: PTH118
        case ast.JoinedStr(values):
            parts = [_text(frame, each) for each in values]
            return "".join(parts) if all(parts) else ""
        case ast.FormattedValue() | ast.BinOp(op=ast.Mod()):
            return _formatted(frame, node)
        case ast.BinOp(left, ast.Add(), right) if value_of(frame, node) is UNKNOWN:
            parts = [_text(frame, left), _text(frame, right)]
            return "".join(parts) if all(parts) else ""
    value = value_of(frame, node)
    if value is UNKNOWN:
        return ""
    if type(value) in (str, int):
        return str(value)
    return str(value) if isinstance(value, PurePath) and _is_plain(value) else ""


def _plain(frame: FrameType, node: ast.expr) -> str | int:
    """Return the text or number that an expression means in a frame.

    Raises:
        ValueError: It means something else, or that is unknown.
    """
    value = value_of(frame, node)
    if type(value) in (str, int):
        return value  # type: ignore[no-any-return]
    text = _text(frame, node)
    if not text:
        raise ValueError
    return text


def _formatted(frame: FrameType, node: ast.expr) -> str:
    """Return the text of a value in an f-string, or of `"..." % ...`; empty if it is unknown."""
    try:
        match node:
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return str(_plain(frame, inner))
            case ast.FormattedValue(
                value=inner, conversion=-1, format_spec=ast.JoinedStr([ast.Constant(str() as form)])
            ):
                return format(_plain(frame, inner), form)
            case ast.BinOp(ast.Constant(str() as form), ast.Mod(), right):
                given = right.elts if isinstance(right, ast.Tuple) else [right]
                return form % tuple(_plain(frame, each) for each in given)
    except (ValueError, TypeError):
        return ""
    return ""


def _is_plain(path: PurePath) -> bool:
    """Return whether a path is one of `pathlib`'s own, whose text runs no code of the program."""
    return type(path).__module__.partition(".")[0] == "pathlib"


def _name(call: ast.Call) -> str:
    return _name_of(call.func)


def _name_of(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


@lru_cache(maxsize=64)
def _parsed(file: str) -> tuple[dict[str, list[ast.Call]], list[ast.While | ast.For]]:
    """Return a file's calls by the function that they are in, and its loops, innermost first."""
    text = "".join(linecache.getlines(file))
    if not any(each in text for each in _WORDS):
        return {}, []
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return {}, []
    loops = [each for each in nodes if isinstance(each, ast.While | ast.For)]
    functions = {
        each.name: [call for call in ast.walk(each) if isinstance(call, ast.Call)]
        for each in nodes
        if isinstance(each, _Function)
    }
    return functions, sorted(loops, key=lambda each: -each.lineno)
