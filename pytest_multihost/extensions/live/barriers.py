"""Reads the id of a barrier of jax's coordination service from the call that waits at it.

The call ends in C++, so the innermost frame of Python has made it. Its line shows
the expression of the id, and its variables show the parts of the expression.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

BARRIER = "wait_at_barrier"
"""The method that waits at such a barrier, and the name of its operation."""

_LIMIT, _LIMIT_AT = "timeout_in_ms", 1
_PROCESSES, _PROCESSES_AT = "process_ids", 2
_CUT_OFF = "..."
_PLAIN = re.compile(r'"[^"\\]*"|-?\d{1,18}', re.ASCII)
"""Text of a value that is a string without escapes or a number."""

_NUMBERS = re.compile(r"\[\d{1,6}(, \d{1,6})*\]", re.ASCII)
_PRODUCT = re.compile(r"\d{1,15}( \* \d{1,15}){0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier that a call waits at.

    Attributes:
        ranks: The processes that meet there; None: all.
        limit_s: Its timeout, which begins when the first process arrives; None if unknown.
    """

    name: str
    ranks: tuple[int, ...] | None = None
    limit_s: float | None = None


def barrier_of_call(lines: Sequence[str], line: int, values: Mapping[str, str]) -> Barrier | None:
    """Return the barrier that the call at a line waits at; None unless all of it is known.

    Args:
        line: Where the frame is, from 1.
        values: The variables of the frame, as text.
    """
    try:
        module = ast.parse("".join(f"{each.rstrip()}\n" for each in lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    calls = [each for each in _calls(module) if each.lineno <= line <= (each.end_lineno or 0)]
    if len(calls) != 1:
        return None
    call = calls[0]
    named = {each.arg: each.value for each in call.keywords}

    def argument(at: int, keyword: str) -> ast.expr | None:
        return call.args[at] if len(call.args) > at else named.get(keyword)

    first, given = argument(0, "barrier_id"), argument(_PROCESSES_AT, _PROCESSES)
    name = None if first is None or None in named else _text(first, values)
    if not name or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    limit = argument(_LIMIT_AT, _LIMIT)
    limit_s = None if limit is None else _seconds(_shown(limit, values))
    shown = "None" if given is None else _shown(given, values)
    if shown == "None":
        return Barrier(name, limit_s=limit_s)
    if not _NUMBERS.fullmatch(shown):
        return None
    ranks = tuple(sorted({int(each) for each in re.findall(r"\d+", shown)}))
    return Barrier(name, ranks, limit_s)


def _seconds(milliseconds: str) -> float | None:
    """Return how long a number of milliseconds is; None if the text is not a product of numbers."""
    if not _PRODUCT.fullmatch(milliseconds):
        return None
    return math.prod(map(int, milliseconds.split(" * "))) / 1000


def _calls(module: ast.Module) -> Iterator[ast.Call]:
    for each in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        if isinstance(each.func, ast.Attribute) and each.func.attr == BARRIER:
            yield each


def _shown(expression: ast.expr, values: Mapping[str, str]) -> str:
    return (
        values.get(expression.id, "")
        if isinstance(expression, ast.Name)
        else ast.unparse(expression)
    )


def _text(expression: ast.expr, values: Mapping[str, str]) -> str | None:
    """Return the text that an expression of constants and variables makes; None if unknown."""
    if isinstance(expression, ast.Constant):
        return str(expression.value) if isinstance(expression.value, str | int) else None
    if isinstance(expression, ast.Name):
        value = values.get(expression.id, "")
        is_plain = bool(_PLAIN.fullmatch(value)) and _CUT_OFF not in value
        return value.strip('"') if is_plain else None
    if isinstance(expression, ast.FormattedValue):
        is_bare = expression.conversion == -1 and expression.format_spec is None
        return _text(expression.value, values) if is_bare else None
    parts: list[ast.expr] = []
    if isinstance(expression, ast.JoinedStr):
        parts = expression.values
    elif isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        parts = [expression.left, expression.right]
        if any(not _is_string(each, values) for each in parts):
            return None
    texts = [text for each in parts if (text := _text(each, values)) is not None]
    return "".join(texts) if parts and len(texts) == len(parts) else None


def _is_string(expression: ast.expr, values: Mapping[str, str]) -> bool:
    """Return whether an expression is a string, as far as it is known."""
    if isinstance(expression, ast.Constant):
        return isinstance(expression.value, str)
    if isinstance(expression, ast.Name):
        return values.get(expression.id, "").startswith('"')
    return isinstance(expression, ast.JoinedStr | ast.BinOp)
