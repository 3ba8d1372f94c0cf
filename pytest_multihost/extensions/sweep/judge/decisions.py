"""Finds the line of the user's code at which a disturbed rank decided otherwise than the others.

For a wrong clock it is the line that read the clock last before the rank parted from the others.
For an injected error that the rank handled, it is the handler.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_multihost.core.model.event import FaultMet
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import Frame, LinesOf

_SUPPRESS = "suppress"
"""The name of the context manager that handles errors, of `contextlib`."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class FaultMeeting:
    """A rank's code meets the effect of a fault.

    Attributes:
        frames: The user's frames, innermost first; at least one.
    """

    at_s: float
    frames: tuple[Frame, ...]


def meetings(result: WorldResult, index: int, rank: int) -> tuple[FaultMeeting, ...]:
    """Return the meetings of a rank with a fault, in order.

    Args:
        index: The fault's index among the world's faults.
    """
    return tuple(
        FaultMeeting(event.at_s, event.body.frames)
        for event in result.history
        if isinstance(event.body, FaultMet)
        and (event.body.index, event.rank) == (index, rank)
        and event.body.frames
    )


def last_before(found: Sequence[FaultMeeting], at_s: float) -> FaultMeeting | None:
    """Return the last meeting before a time; None if there is none."""
    return next((each for each in reversed(found) if each.at_s <= at_s), None)


def parted_s(result: WorldResult, rank: int) -> float:
    """Return when a rank first entered another collective than the others; infinite if never."""
    return min(
        (
            side.operation.since_s
            for parting in result.partings
            for side in parting.sides
            if rank in side.ranks and side.operation is not None
        ),
        default=math.inf,
    )


def handler_of(
    frames: Sequence[Frame], error: type[BaseException], lines_of: LinesOf
) -> Frame | None:
    """Return the first handler that ends an error; None if none certainly does.

    Args:
        frames: The user's frames when the error was raised, innermost first.
        lines_of: Reads the files of these frames.
    """
    for frame in frames:
        try:
            module = ast.parse("\n".join(lines_of(frame.file)))
        except (SyntaxError, ValueError):
            return None
        line = next(_handlers(_function_at(module, frame.line), frame.line, error), None)
        if line is not None:
            return Frame(frame.file, line, frame.function)
    return None


def _function_at(module: ast.Module, line: int) -> ast.AST:
    """Return the innermost function that contains a line; the module if none does."""
    around = [
        each for each in ast.walk(module) if isinstance(each, _Function) and _spans([each], line)
    ]
    return max(around, key=lambda each: each.lineno, default=module)


def _handlers(function: ast.AST, line: int, error: type[BaseException]) -> Iterator[int]:
    """Yield the lines of the handlers around a line that end an error, the innermost first."""
    around = [
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Try | ast.With | ast.AsyncWith) and _spans(each.body, line)
    ]
    for each in sorted(around, key=lambda each: each.lineno, reverse=True):
        if isinstance(each, ast.Try):
            handler = next((one for one in each.handlers if _catches(one.type, error)), None)
            if handler is not None and not _raises(handler):
                yield handler.lineno
        elif any(_suppresses(item.context_expr, error) for item in each.items):
            yield each.lineno


def _spans(nodes: Sequence[ast.stmt | ast.expr], line: int) -> bool:
    last = nodes[-1].end_lineno or nodes[-1].lineno
    return nodes[0].lineno <= line <= last


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(each, ast.Raise) for part in handler.body for each in ast.walk(part))


def _suppresses(manager: ast.expr, error: type[BaseException]) -> bool:
    if not isinstance(manager, ast.Call):
        return False
    name = getattr(manager.func, "attr", getattr(manager.func, "id", ""))
    return name == _SUPPRESS and any(_catches(each, error) for each in manager.args)


def _catches(kind: ast.expr | None, error: type[BaseException]) -> bool:
    """Return whether the expression of a handler's classes certainly matches an error."""
    if kind is None:
        return True
    if isinstance(kind, ast.Tuple):
        return any(_catches(each, error) for each in kind.elts)
    found = getattr(builtins, kind.id, None) if isinstance(kind, ast.Name) else None
    return isinstance(found, type) and issubclass(error, found)
