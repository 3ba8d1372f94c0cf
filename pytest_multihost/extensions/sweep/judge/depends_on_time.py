"""Finds out from the source of a test whether one of its assertions may depend on time.

It does if a name says so, of its inputs or of their inputs. A time does not count
if it is only part of the name of a file that the function has used, or if things are only ordered
by it: then the assertion is about the file, or about the order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

_TIME = frozenset(
    {
        *("age", "attempt", "attempts", "clock", "ctime", "date", "datetime", "deadline"),
        *("duration", "elapsed", "latency", "monotonic", "ms", "mtime", "now", "perf", "retries"),
        *("retry", "s", "secs", "seconds", "sleep", "time", "timeout", "timer"),
        *("timestamp", "today", "took", "tries", "utcnow"),
    }
)
"""Words in names of values that depend on time, or on the number of tries."""

_WORDS = re.compile(r"[a-z]+")

_TEXTS = frozenset({"ctime", "format", "isoformat", "str", "strftime"})
"""Functions that return a text."""

_PATHS = re.compile(r"(.*\.)?(Path|PurePath|joinpath)|(.*\bpath\.)?join")
"""Matches functions that make a path from texts; ``", ".join`` is none of them."""

_ORDERS = frozenset({"max", "min", "sort", "sorted"})
"""Functions that order things by a key."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def depends_on_time(function: Function, statement: ast.stmt) -> bool:
    """Return whether an assertion may depend on time.

    Args:
        statement: The assertion, a statement of it.
    """
    used, texts = _used(function, statement), _texts(function)
    known: set[str] = set()
    new = set(_names(statement))
    while new:
        if any(_TIME.intersection(_WORDS.findall(each.lower())) for each in new):
            return True
        known |= new
        new = {
            each
            for node in ast.walk(function)
            for names, value in _assigned(node)
            if names & new
            for each in _names(value, None if names.isdisjoint(used) else texts)
        } - known
    return False


def _used(function: Function, statement: ast.stmt) -> set[str]:
    """Return the names in all calls of a function, except those of one statement."""
    own = set(ast.walk(statement))
    calls = (each for each in ast.walk(function) if isinstance(each, ast.Call) and each not in own)
    return {each.id for call in calls for each in ast.walk(call) if isinstance(each, ast.Name)}


def _texts(function: Function) -> frozenset[str]:
    """Return the names to which a function only gives texts."""
    values = [pair for node in ast.walk(function) for pair in _assigned(node)]
    others = {name for names, value in values if not _is_text(value) for name in names}
    return frozenset({name for names, _ in values for name in names} - others)


def _is_text(node: ast.AST, texts: Collection[str] = ()) -> bool:
    """Return whether the value of an expression is certainly a text."""
    if isinstance(node, ast.Name):
        return node.id in texts
    return isinstance(node, ast.JoinedStr) or _called(node) in _TEXTS


def _names(node: ast.AST, texts: Collection[str] | None = None) -> Iterator[str]:
    """Yield the names on which the value of an expression depends.

    Args:
        texts: Names of texts; None: the rest of a path counts as well.
    """
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    parts = _parts_of_path(node, texts) if texts is not None else ()
    for each in ast.iter_child_nodes(node):
        if each not in parts and not _is_key(each, node):
            yield from _names(each, texts)


def _parts_of_path(node: ast.AST, texts: Collection[str]) -> Sequence[ast.AST]:
    """Return the expressions after the first from which a path is made; empty if none is."""
    match node:
        case ast.BinOp(op=ast.Div(), right=right) if _is_text(right, texts):
            return (right,)
        case ast.Call(func=function, args=args) if _PATHS.fullmatch(ast.unparse(function)):
            return args
    return ()


def _is_key(node: ast.AST, parent: ast.AST) -> bool:
    """Return whether an expression is only the key by which a call orders things."""
    return _called(parent) in _ORDERS and isinstance(node, ast.keyword) and node.arg == "key"


def _called(node: ast.AST) -> str:
    """Return the name of the function that an expression calls; empty if it calls none."""
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _assigned(node: ast.AST) -> Iterator[tuple[set[str], ast.AST]]:
    """Yield the names to which a statement gives values, each with the expression of the value."""
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [(each, value) for each in targets]
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            pairs = [(target, value)]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            pairs = [(target, value)]
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            pairs = [(target, value)]
        case ast.With(items=items) | ast.AsyncWith(items=items):
            pairs = [(e.optional_vars, e.context_expr) for e in items if e.optional_vars]
        case _:
            return
    for target, value in pairs:
        yield set(_names(target)), value
