"""Whether a test waits for its processes as soon as it has started them.

The processes of a call begin together, when the test first waits for one of them. That is sound
only if the test does nothing else between their start and that wait: it may talk to them, or look
for their effects. Its source says so; unreadable parts count as something else.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

_HARMLESS = frozenset(
    {
        *("Process", "append", "dict", "enumerate", "len", "list", "print", "range", "start"),
        *("str", "int", "tuple", "zip", "sorted", "reversed", "Queue", "SimpleQueue", "Pipe"),
        *("Event", "Barrier", "Lock", "get_context", "format", "items", "values", "keys"),
    }
)
"""Functions that have nothing to do with a process that runs."""

_LOOPS = (ast.For, ast.While)
_MAX_LINES = 20_000


@dataclass(frozen=True, slots=True)
class _Found:
    """The first call that matters.

    Attributes:
        is_join: Whether it waits for a process.
        line: Where it is.
        what: Its text.
    """

    is_join: bool
    line: int
    what: str


def why_not_joined(file: str, line: int) -> str:
    """Return the acts of a test between the start of processes and its wait for them.

    Args:
        file: The file that starts them.
        line: The line that does so.

    Returns:
        A reason; empty if the wait comes next.
    """
    lines = linecache.getlines(file)
    tree = _parsed("".join(lines)) if len(lines) < _MAX_LINES else None
    path = [] if tree is None else list(_path_to(tree, line))
    if not path:
        return "the lines behind their start cannot be read"
    found = _next_call(path)
    if found is None:
        return f"the function that starts them (line {line}) does not wait for them"
    if found.is_join:
        return ""
    return f"line {found.line} comes between their start and the wait for them: {found.what}"


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:
        return None


Body = tuple[Sequence[ast.stmt], int, ast.stmt | None]
"""Statements, the number of the statement with the line, and the statement whose body they are."""


def _path_to(tree: ast.Module, line: int) -> Iterator[Body]:
    """Yield the bodies around a line inside its function, innermost first."""
    found: list[Body] = []
    bodies: list[tuple[Sequence[ast.stmt], ast.stmt | None]] = [(tree.body, None)]
    while bodies:
        body, parent = bodies.pop()
        for number, each in enumerate(body):
            if each.lineno <= line <= (each.end_lineno or each.lineno):
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found = []
                else:
                    found.insert(0, (body, number, parent))
                bodies = [(inner, each) for inner in _bodies(each)]
                break
    yield from found


def _bodies(statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if inner := getattr(statement, name, None):
            yield inner
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _next_call(path: Sequence[Body]) -> _Found | None:
    """Return the first call after a line that is a wait, or that is not harmless."""
    first = True
    for body, number, parent in path:
        own = body[number]
        if first and (found := _first_of([own], after_start=True)):
            return found
        first = False
        if found := _first_of(body[number + 1 :]):
            return found
        if isinstance(parent, _LOOPS) and (found := _first_of(body[:number])):
            return found  # in the next round
        if isinstance(parent, ast.With | ast.AsyncWith):
            item = parent.items[0]
            what = ast.unparse(item.context_expr)
            return _Found(is_join=False, line=parent.lineno, what=f"the end of with {what}")
        if isinstance(parent, ast.Try) and (found := _first_of(parent.finalbody)):
            return found
    return None


def _first_of(statements: Sequence[ast.stmt], *, after_start: bool = False) -> _Found | None:
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for call in _calls(statement):
            if _is_join(call):
                return _Found(is_join=True, line=call.lineno, what=ast.unparse(call))
            if _name(call) not in _HARMLESS and not after_start:
                return _Found(is_join=False, line=call.lineno, what=ast.unparse(call)[:60])
        if isinstance(statement, ast.Return | ast.Raise | ast.Yield):
            return _Found(is_join=False, line=statement.lineno, what=ast.unparse(statement)[:60])
    return None


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls of a statement in the order of the text."""
    calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call)]
    yield from sorted(calls, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_join(call: ast.Call) -> bool:
    """Return whether a call waits for a process: `join` of a text or a path has other arguments."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "join":
        return False
    names = {each.arg for each in call.keywords}
    is_text = isinstance(call.func.value, ast.Constant)
    return not is_text and names <= {"timeout", "grace_period"} and all(map(_is_time, call.args))


def _is_time(argument: ast.expr) -> bool:
    is_number = isinstance(argument, ast.Constant) and isinstance(argument.value, int | float)
    return is_number or "timeout" in ast.unparse(argument).lower()
