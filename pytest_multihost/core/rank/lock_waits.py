"""Find which thread of this process holds the lock that another one waits for.

A lock of `threading` has no owner, and stacks show only lines. But a thread whose line is inside
``with lock:``, or inside a ``try`` whose ``finally`` releases the lock, holds that lock. So the
expressions of these lines are read from the source and looked up in the threads' variables; two
threads speak of the same lock if they find the same object. Nothing of the program is called:
expressions with calls, and attributes that are computed, stay unknown.
"""

from __future__ import annotations

import _thread
import ast
import inspect
import linecache
import operator
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType, MemberDescriptorType
from typing import Any, Final

from pytest_multihost.core.cpython_private import (
    condition_that_waits,
    current_frames,
    entered_with_items,
    joined_thread,
    lock_of_condition,
    native_id,
    thread_names,
)
from pytest_multihost.core.model.stack import Frame, LockHolder, LockWait, is_runner

_LOCKS = (_thread.LockType, type(threading.RLock()))
_OWNER = re.compile(r"\bowner=(\d+)")
_MAX_FRAMES = 200
UNKNOWN: Final = object()
"""The value of an expression that is not simple, or has none."""
_TAKING, _HOLDING = ("with ", "acquire"), ("with ", "release")
"""Parts of the source of a statement that takes a lock, and of a function that holds one."""

_PLAIN = (list, tuple, dict)
"""Containers whose items are looked up: subclasses may compute theirs."""


@dataclass(frozen=True, slots=True)
class _HeldLock:
    """A lock that a thread holds, and where it took it."""

    thread: int
    lock: object
    frame: Frame


def lock_waits(interrupted: FrameType | None) -> tuple[LockWait, ...]:
    """Return the waits of this process's threads for locks, and for the ends of other threads.

    Args:
        interrupted: The frame of the calling thread before it was interrupted by a signal.
    """
    frames = dict(current_frames())
    if interrupted is not None:
        frames[threading.get_ident()] = interrupted
    names = thread_names()
    held = [each for thread, frame in frames.items() for each in _held_by(thread, frame)]
    found = (_wait(thread, frame, frames, names, held) for thread, frame in frames.items())
    return tuple(each for each in found if each is not None)


def _wait(
    thread: int,
    innermost: FrameType,
    frames: Mapping[int, FrameType],
    names: Mapping[int, str],
    held: list[_HeldLock],
) -> LockWait | None:
    """Return the lock or the other thread that a thread waits for."""

    def holder(other: int | None, taken_at: Frame | None = None) -> LockHolder | None:
        if other is None or other not in frames:
            return None
        name, at = names.get(other, str(other)), _frame(frames[other])
        return LockHolder(other, name, taken_at, at, native_id(other))

    # A condition enters its lock in a frame of the standard library.
    at = next((each for each in _stack(innermost) if not _is_threading(each)), innermost)
    name, joined = "", joined_thread(innermost)
    if joined is not None:
        found = holder(joined)
    elif (wanted := _wanted(at)) is not None:
        name, lock = wanted
        owner = _owner(lock)
        taken = [each for each in held if each.lock is lock and owner in (None, each.thread)]
        is_one = len({each.thread for each in taken}) == 1
        found = holder(taken[-1].thread, taken[-1].frame) if is_one else holder(owner)
    else:
        return None
    is_main = thread == threading.main_thread().ident
    return LockWait(thread, names.get(thread, str(thread)), is_main, _frame(at), name, found)


def _stack(innermost: FrameType) -> Iterator[FrameType]:
    """Yield the frames of a thread, innermost first."""
    frame: FrameType | None = innermost
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _is_threading(frame: FrameType) -> bool:
    return frame.f_code.co_filename == threading.__file__


def _frame(frame: FrameType) -> Frame:
    return Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)


def _wanted(frame: FrameType) -> tuple[str, object] | None:
    """Return the lock that a frame is about to take, and its expression."""
    position = _position(frame)
    if position is None or not _has_words(frame.f_code, _TAKING):
        return None
    for node in _nodes(frame.f_code.co_filename):
        expression: ast.expr | None = None
        if isinstance(node, ast.With):
            items = [each.context_expr for each in node.items]
            at_items = [each for each in items if _span(each) == position]
            if not at_items and _span(node) == position:  # before 3.13
                at_items = items[entered_with_items(frame) :]
            expression = at_items[0] if at_items else None
        elif isinstance(node, ast.Call) and _span(node) == position:
            expression = _object_of(node, "acquire")
        if expression is not None:
            lock = _lock_in(frame, expression)
            return None if lock is None else (ast.unparse(expression), lock)
    return None


def _held_by(thread: int, innermost: FrameType) -> Iterator[_HeldLock]:
    """Yield the locks that a thread certainly holds."""
    released: list[object] = []  # by `Condition.wait`, further in
    for frame in _stack(innermost):
        if is_runner(frame.f_code.co_filename):
            continue
        condition = condition_that_waits(frame)
        if condition is not None:
            released.append(lock_of_condition(condition))
        for expression, taken_at in _taken(frame.f_code, frame.f_lineno or 0):
            lock = _lock_in(frame, expression)
            if lock is not None and all(lock is not each for each in released):
                code = frame.f_code
                yield _HeldLock(thread, lock, Frame(code.co_filename, taken_at, code.co_name))


def _taken(code: CodeType, line: int) -> Iterator[tuple[ast.expr, int]]:
    """Yield the locks, as expressions with lines, that the `with` and `try` around a line take."""
    if not _has_words(code, _HOLDING):
        return
    for node in _nodes(code.co_filename):
        if isinstance(node, ast.Call) or not _is_inside(node.body, line):
            continue
        if not _is_in_function(node, code):
            continue
        if isinstance(node, ast.With):
            taken = [each.context_expr for each in node.items]
        else:
            # Below an `if` it may not have been taken.
            calls = [each.value for each in node.finalbody if isinstance(each, ast.Expr)]
            released = (_object_of(each, "release") for each in calls if isinstance(each, ast.Call))
            taken = [each for each in released if each is not None]
        inner = [each for part in node.body for each in ast.walk(part)]
        early = (_object_of(each, "release") for each in inner if isinstance(each, ast.Call))
        given_back = {ast.dump(each) for each in early if each is not None}
        yield from ((each, node.lineno) for each in taken if ast.dump(each) not in given_back)


def _has_words(code: CodeType, words: Sequence[str]) -> bool:
    """Return whether one of some words is in the source of a function.

    This keeps large files, of which only other functions are of interest, from being parsed.
    """
    numbers = [number for *_, number in code.co_lines() if number]
    lines = linecache.getlines(code.co_filename)[
        min(numbers, default=1) - 1 : max(numbers, default=0)
    ]
    return any(word in line for line in lines for word in words)


def _is_inside(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _is_in_function(node: ast.stmt, code: CodeType) -> bool:
    """Return whether a statement is among the lines of a function's own code."""
    lines = [line for *_, line in code.co_lines() if line is not None]
    return bool(lines) and min(lines) <= node.lineno <= max(lines)


def _object_of(call: ast.Call, method: str) -> ast.expr | None:
    """Return the object whose method is called; None if it is another method."""
    match call.func:
        case ast.Attribute(value=owner, attr=name) if name == method:
            return owner
    return None


def _span(node: ast.expr | ast.stmt) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _position(frame: FrameType) -> tuple[int | None, ...] | None:
    """Return the span of a frame's current instruction in the source, in `_span`'s order."""
    positions = list(frame.f_code.co_positions())
    index = frame.f_lasti // 2
    return positions[index] if 0 <= index < len(positions) else None


@lru_cache(maxsize=64)
def _nodes(file: str) -> tuple[ast.With | ast.Try | ast.Call, ...]:
    """Return the statements and calls of a file that may take a lock."""
    text = "".join(linecache.getlines(file))
    if not ("with " in text or ".acquire(" in text):
        return ()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = (each for each in ast.walk(tree) if isinstance(each, ast.With | ast.Try | ast.Call))
    return tuple(
        each for each in found if not isinstance(each, ast.Call) or _object_of(each, "acquire")
    )


def _lock_in(frame: FrameType, expression: ast.expr) -> object | None:
    """Return the lock that an expression means in a frame; None if it is none, or unknown."""
    value = value_of(frame, expression)
    if isinstance(value, threading.Condition):
        value = lock_of_condition(value)
    return value if type(value) in _LOCKS else None


_SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}


def value_of(frame: FrameType, node: ast.expr) -> Any:  # noqa: ANN401 - any value of the program
    """Return the value of a simple expression without calling anything of the program."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            scopes = (frame.f_locals, frame.f_globals)
            return next((each[name] for each in scopes if name in each), UNKNOWN)
        case ast.Attribute(inner, name):
            owner = value_of(frame, inner)
            found = inspect.getattr_static(owner, name, UNKNOWN)
            is_read = isinstance(found, MemberDescriptorType) or _is_of_ours(owner, found)
            return found.__get__(owner) if is_read else found
        case ast.Subscript(inner, key):
            holder, index = value_of(frame, inner), value_of(frame, key)
            if type(holder) in _PLAIN and type(index) in (int, str):
                try:
                    return holder[index]
                except (IndexError, KeyError):
                    return UNKNOWN
        case ast.BinOp(left, sign, right) if type(sign) in _SIGNS:
            one, two = value_of(frame, left), value_of(frame, right)
            if type(one) is type(two) is int:
                try:
                    return _SIGNS[type(sign)](one, two)
                except ZeroDivisionError:
                    return UNKNOWN
    return UNKNOWN


def _is_of_ours(owner: object, found: object) -> bool:
    """Return whether an attribute is a property of ours, such as the rank of `world`."""
    ours = __name__.partition(".")[0]
    modules = [type(owner).__module__, getattr(getattr(found, "fget", None), "__module__", "")]
    return type(found) is property and {each.partition(".")[0] for each in modules} == {ours}


def _owner(lock: object) -> int | None:
    """Return the thread that owns a reentrant lock; None for another lock."""
    found = _OWNER.search(repr(lock)) if type(lock) is not _thread.LockType else None
    return int(found[1]) if found is not None and int(found[1]) else None
