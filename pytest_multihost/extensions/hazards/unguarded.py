"""The rule about calls that can fail on some ranks only, between two operations.

A rank that does what the others of a group do not, before all of them meet, never comes there if
that fails - unless its program handles the failure so that it comes there all the same, to tell the
others or to go on. What the code around a call does about its failure is read
from the source, by lines. Only what is certain counts: a manager, a handler or a `finally` that may
do anything else than to let the error through, or to note it, may tell the other ranks.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from pytest_multihost.core.model.fault import ErrorPath
from pytest_multihost.core.model.operation import RUNTIME_SCOPE
from pytest_multihost.core.model.recorded_point import ASKS, STORE_READS
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.extensions.hazards.model import Launch, Passed, RankRecord
from pytest_multihost.extensions.hazards.rules import Found, Place, Records

TextOf = Callable[[str], str]
"""Returns the text of a file; empty if it cannot be read."""

_PASS_ON = frozenset(
    {
        *("Path.mkdir", "Path.read_bytes", "Path.read_text", "Path.unlink", "Path.write_bytes"),
        *("Path.write_text", "copy", "copy2", "copyfile", "copytree", "makedirs", "move"),
        *(
            "context_decorator.<locals>.decorate_context",
            "ContextDecorator.__call__.<locals>.inner",
        ),
    }
)
"""Functions of libraries that handle an error only to raise it again."""

_TRANSPARENT = frozenset(
    {
        *("autocast", "enable_grad", "inference_mode", "no_grad", "open", "record_function"),
        *("scandir", "set_grad_enabled"),
    }
)
"""Managers that pass each error on, and do nothing else that matters here."""

_QUIET = frozenset(
    {
        *("append", "critical", "debug", "error", "exception", "format_exc", "info", "log"),
        *("print", "print_exc", "repr", "str", "warn", "warning"),
    }
)
"""Functions that only note an error."""

_CATCHING = frozenset({"BaseException", "EnvironmentError", "Exception", "IOError", "OSError"})
_OPAQUE = (ast.AsyncFunctionDef, ast.AsyncWith, ast.TryStar)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_skipped(
    error_path: ErrorPath, frames: Sequence[Frame], following: Sequence[Frame], text_of: TextOf
) -> bool:
    """Return whether an error of a call certainly keeps its rank from what it does next.

    Args:
        error_path: The way of the error.
        frames: The user's lines at the call, innermost first.
        following: Those at what comes next.
        text_of: Reads files.
    """
    is_known = error_path.handler != "" and error_path.asks not in ASKS
    if not is_known or not _PASS_ON.issuperset(error_path.libraries):
        return False
    if not error_path.is_handled:
        return True
    for index, frame in enumerate(frames):
        at = _line_in(frame, frames[index + 1 :], following)
        around = _around(text_of(frame.file), frame)
        for number, node in enumerate(around):
            effect = _effect(node, frame.line, at)
            if effect is not None:
                return effect and not any(map(_has_last_word, around[number + 1 :]))
    return bool(frames)


def _line_in(frame: Frame, outer: Sequence[Frame], following: Sequence[Frame]) -> int | None:
    """Return the line at which the same call of a function is later; None if it has returned."""
    inner = following[: len(following) - len(outer)]
    is_same = tuple(following[len(inner) :]) == tuple(outer)
    later = inner[-1] if inner and is_same else None
    if later is None or (later.file, later.function) != (frame.file, frame.function):
        return None
    return later.line


def _around(text: str, frame: Frame) -> Sequence[ast.AST]:
    """Return the statements that a line is in, innermost first, in its own function."""
    if frame.function == "<lambda>" or frame.function.startswith("<gen"):
        return ()
    chain: list[ast.AST] = []
    node: ast.AST | None = _parsed(text)
    while node is not None:
        chain = [node] if isinstance(node, _FUNCTIONS) else [node, *chain]
        node = next((each for each in _statements(node) if _has(each, frame.line)), None)
    return chain


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.AST | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _has_last_word(node: ast.AST) -> bool:
    """Return whether a statement does something whichever way it is left."""
    return isinstance(node, ast.Try) and bool(node.finalbody)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    kinds = (ast.stmt, ast.ExceptHandler, ast.match_case)
    return (each for each in ast.iter_child_nodes(node) if isinstance(each, kinds))


def _has(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.match_case):
        return _is_in(node.body, line)
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    return first <= line <= (last or first)


def _is_in(body: Sequence[ast.stmt], line: int | None) -> bool:
    if not body or line is None:
        return False
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _effect(node: ast.AST, line: int, at: int | None) -> bool | None:
    """Return what a statement does to an error from a line in it.

    None: it passes on. True: it ends there, and what follows at line `at` is left out. False: what
    follows is done all the same, or it is not certain that it is not.
    """
    if isinstance(node, _OPAQUE):
        return False
    if isinstance(node, ast.With):
        is_clear = all(_name(each.context_expr) in _TRANSPARENT for each in node.items)
        return False if _is_in(node.body, line) and not is_clear else None
    if not isinstance(node, ast.Try):
        return None
    is_certain = all(map(_is_quiet, node.finalbody))
    if _is_in(node.body, line):
        handler = next((each for each in node.handlers if _catches(each.type)), None)
        if handler is not None:
            effect = _effect_of_handler(handler, at, is_inside=_is_in(node.body, at))
            return effect if is_certain or effect is False else False
    is_covered = not _is_in(node.finalbody, line)
    return False if is_covered and not is_certain else None


def _effect_of_handler(
    handler: ast.ExceptHandler, at: int | None, *, is_inside: bool
) -> bool | None:
    if not all(map(_is_quiet, handler.body)):
        return False
    last = handler.body[-1]
    if isinstance(last, ast.Raise):
        return None
    if any(isinstance(each, ast.Raise) for node in handler.body for each in ast.walk(node)):
        return False
    if isinstance(last, ast.Return):
        return at is not None
    return is_inside and not isinstance(last, ast.Break | ast.Continue)


def _catches(kind: ast.expr | None) -> bool:
    names = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or _name(each) in _CATCHING for each in names)


def _is_quiet(node: ast.stmt) -> bool:
    """Return whether a statement does nothing but to note something."""
    calls = [_name(each) for each in ast.walk(node) if isinstance(each, ast.Call)]
    leaves = isinstance(node, ast.With | ast.For | ast.While | ast.Try)
    return not leaves and all(each in _QUIET or each[:1].isupper() for each in calls)


def _name(node: ast.expr) -> str:
    """Return the last part of a name, or of that of what is called."""
    called = node.func if isinstance(node, ast.Call) else node
    return getattr(called, "attr", getattr(called, "id", ""))


_NEVER_FAIL = frozenset({"stat"})
"""Calls whose failure mostly is an answer."""

Site = tuple[str, object]


@dataclass(frozen=True, slots=True)
class _Span:
    """What a rank does before a collective.

    Attributes:
        calls: Its calls that can fail.
        launch: The same, as its rank has launched it.
    """

    calls: tuple[Passed, ...]
    ending: Passed
    launch: Launch

    @property
    def sites(self) -> set[Site]:
        """Where the calls are."""
        return {_site(each) for each in self.calls}


def unguarded(records: Records, *, text_of: TextOf) -> Iterator[Found]:
    """Find calls of some members of a group that keep them from a collective if they fail.

    Args:
        records: What each rank has launched and passed.
        text_of: Reads the program's files.
    """
    spans = {rank: _spans(record) for rank, record in records.items() if not record.is_truncated}
    for rank, mine in spans.items():
        for place, span in mine.items():
            members = [each for each in place[0][0] if each != rank]
            theirs = {each: spans.get(each, {}).get(place) for each in members}
            for call in span.calls:
                waiting = [
                    each
                    for each, other in theirs.items()
                    if other is not None and _site(call) not in other.sites
                ]
                if waiting and _is_unguarded(call, span, text_of):
                    other = theirs[waiting[0]]
                    assert other is not None  # noqa: S101 - for the type checker
                    sides = (rank, (call, span.launch)), (waiting[0], (other.launch,))
                    yield Found("unguarded", sides, place[0][0])
                    break


def _is_unguarded(call: Passed, span: _Span, text_of: TextOf) -> bool:
    return is_skipped(call.point.error_path, call.frames, span.ending.frames, text_of)


def _site(call: Passed) -> Site:
    where = call.point.where
    return call.point.point.call or call.point.point.name, where and (where.file, where.line)


def _spans(record: RankRecord) -> Mapping[Place, _Span]:
    """Return what a rank does before each of its collectives, in its main thread."""
    found: dict[Place, _Span] = {}
    calls: list[Passed] = []
    for passed, launch in _with_launches(record):
        if _can_fail(passed):
            calls.append(passed)
        elif passed.point.point.point == "collective":
            if launch is not None and launch.operation.kind != "collective":
                continue
            if launch is not None and _is_awaited(launch):
                found[launch.operation.place] = _Span(tuple(calls), passed, launch)
            calls = []
    return found


def _with_launches(record: RankRecord) -> Iterator[tuple[Passed, Launch | None]]:
    """Yield the points of the main thread, with what the rank has launched there.

    Some operations consist of others, as `broadcast_object_list` does: then it is the next one of
    the thread.
    """
    by_name = {(each.operation.name, each.nth): each for each in record.launches}
    last: Launch | None = None
    for passed in record.passed:
        point = passed.point.point
        launch = None
        if passed.point.is_main and point.point == "collective":
            launch = by_name.get((point.name, point.nth)) or _next(record.launches, last)
            last = launch or last
        if passed.point.is_main:
            yield passed, launch


def _next(launches: Sequence[Launch], last: Launch | None) -> Launch | None:
    if last is None:
        return next(iter(launches), None)
    later = islice(launches, bisect_right(launches, last.number, key=_number), None)
    return next((each for each in later if each.thread == last.thread), None)


def _number(launch: Launch) -> int:
    return launch.number


def _can_fail(passed: Passed) -> bool:
    point = passed.point.point
    if point.point == "io":
        return point.call not in _NEVER_FAIL
    return point.point == "call" or point.name in STORE_READS


def _is_awaited(launch: Launch) -> bool:
    """Return whether the members of a group wait for each other there, whatever the runtime."""
    operation = launch.operation
    is_runtimes = operation.scope == RUNTIME_SCOPE or operation.scope.kind == "barrier"
    return is_runtimes and len(operation.group) > 1
