"""Records a rank's view in the undisturbed run: calls of the user's functions, reads of clocks.

Functions of the user's modules are replaced, as points at calls replace them, so a rank that is not
swept pays nothing, and calls within libraries cost nothing. Closures, lambdas, generators and
coroutines are not recorded, nor are modules that the test itself imports.
"""

from __future__ import annotations

import functools
import itertools
import json
import linecache
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_multihost.core import files
from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.launch.launcher_env import is_foreign
from pytest_multihost.core.model.fault import IO_CALLS
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.model.operation import OperationKind
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.model.stack import is_library, is_ours, relative_to
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.rank.recorder import Recorder, SourceRef, current_recorder
from pytest_multihost.core.rank.services import RankPart
from pytest_multihost.extensions.sweep.local_decisions.facts import (
    RECORD_NAME,
    ClockRead,
    Input,
    Seen,
    SeenByRank,
    SeenCall,
)
from pytest_multihost.extensions.sweep.local_decisions.source import (
    Use,
    is_asked_whether_empty,
    use_of_line,
)
from pytest_multihost.extensions.sweep.local_decisions.summary import chained, seen
from pytest_multihost.extensions.sweep.local_decisions.watched import (
    METHODS_OF_ARRAYS,
    OF_ARRAYS,
    OF_LIBRARIES,
    OF_NUMBERS,
    WatchedFunction,
    code_of,
    functions_of_libraries,
    functions_of_the_user,
)
from pytest_multihost.intercept.calls import replace_attribute
from pytest_multihost.intercept.clocks import replace_clocks
from pytest_multihost.intercept.files import (
    FileAccess,
    FileObserver,
    matcher,
    observing_files,
)
from pytest_multihost.intercept.targets import replace_names

_CALLS_FOR_OTHERS = True  # see `extensions.faults.points`: `exists()` of the test asks for a file

_FIRST_CALLS = 24
"""The number of calls of one function that are all recorded."""

_MAX_INPUTS = 16
_MAX_FRAMES = 6
_MAKES = frozenset({"link", "mkdir", "rename"})
_DRAWS = ("random", "uniform", "randint", "randrange", "choice", "choices", "sample", "shuffle")
_READS_ARRAYS = frozenset({*OF_NUMBERS, *OF_ARRAYS, *METHODS_OF_ARRAYS})
_DATA = (int, float, list, tuple, dict, set)


def _is_recorded(number: int) -> bool:
    """Return whether the call of a function with this number is recorded.

    These are the first calls, and later ones ever more rarely, because recording takes 25 us.
    """
    return number <= _FIRST_CALLS or number & (number - 1) == 0


@functools.lru_cache(maxsize=4096)
def _place(root: str, file: str, line: int, function: str) -> Place:
    """Return a line of the user's with its source; calls come from the same lines."""
    source = linecache.getline(file, line).strip()
    return Place(relative_to(root, file), line, function, source)


@dataclass(slots=True)
class _OpenCall:
    """A call that has not returned."""

    target: str
    inputs: tuple[Seen, ...]
    before: int
    reads: set[Input] = field(default_factory=set)
    measured: str = ""
    drawn: str = ""
    asked: dict[str, None] = field(default_factory=dict)


class _WatchedThread(threading.local):
    """The calls that are open in this thread, outermost first, and whether it records itself."""

    def __init__(self) -> None:
        self.open: list[_OpenCall] = []
        self.is_busy = False


@dataclass(slots=True)
class Watch:
    """The recording of this rank's calls and reads, from `begin` to `end`.

    Attributes:
        root: Files below it are named relative to it.
        record: The file that the record is written to.
        recorder: Returns the recorder of the rank's operations.
    """

    root: str
    record: Path
    recorder: Callable[[], Recorder] = current_recorder
    operations: int = 0
    made: set[str] = field(default_factory=set)
    _calls: dict[str, list[SeenCall]] = field(default_factory=dict)
    _clock_reads: dict[tuple[object, int], ClockRead] = field(default_factory=dict)
    _clock_count: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _thread: _WatchedThread = field(default_factory=_WatchedThread)
    _undoing: ExitStack = field(default_factory=ExitStack)

    def begin(self) -> None:
        """Begin to record."""
        undoing = self._undoing
        self._watch_random_numbers()
        self._watch_environment()
        self._replace(list(functions_of_the_user()), spares=is_library)
        self._replace(list(functions_of_libraries()))
        replace_clocks(self._read_clock, undoing)
        undoing.enter_context(
            observing_files(FileObserver(matcher("*"), before=self._touch, calls=IO_CALLS))
        )
        recorder = self.recorder()
        recorder.on_begin.append(self._count)
        undoing.callback(recorder.on_begin.remove, self._count)

    def end(self) -> None:
        """End to record, and write the record."""
        self._undoing.close()
        calls = [each for found in self._calls.values() for each in found]
        found = SeenByRank(tuple(calls), tuple(self._clock_reads.values()), frozenset(self.made))
        files.write(self.record, json.dumps(to_json(found)))

    # Replacing

    def _replace(
        self, functions: list[WatchedFunction], *, spares: Callable[[str], bool] = bool
    ) -> None:
        pairs: list[tuple[object, object]] = []
        for each in functions:
            watcher = self._watching(each)
            replace_attribute(each.owner, each.name, watcher, self._undoing)
            if not isinstance(each.owner, type):
                pairs.append((each.function, watcher))
        if pairs:
            replace_names(pairs, spares=spares)
            back = [(new, old) for old, new in pairs]
            self._undoing.callback(replace_names, back, spares=spares)

    def _watching(self, watched: WatchedFunction) -> Callable[..., object]:
        """Return a function that replaces another one and records its calls."""
        function, target = watched.function, watched.target
        is_compiling = getattr(sys.modules.get("torch.compiler"), "is_compiling", bool)
        is_of_library = target in OF_LIBRARIES
        names = frozenset() if is_of_library else frozenset(code_of(function).co_names)
        space = {} if is_of_library else function.__globals__
        returns = getattr(function, "__annotations__", {}).get("return", "")
        may_be_none = "None" in str(returns) or "Optional" in str(returns)
        begun, numbers = itertools.count(1), itertools.count(1)
        thread = self._thread

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            if is_compiling() or thread.is_busy:
                return function(*args, **kwargs)
            frame = get_frame(1)
            is_of_no_interest = is_of_library and is_library(frame.f_code.co_filename)
            if is_of_no_interest or not _is_recorded(next(begun)):
                try:
                    return function(*args, **kwargs)
                finally:
                    next(numbers)
            opened = _OpenCall(target, self._inputs(args, kwargs, names, space), self.operations)
            thread.open.append(opened)
            try:
                result = function(*args, **kwargs)
            except BaseException:
                next(numbers)
                raise
            finally:
                thread.open.pop()
            self._close(opened, next(numbers), result, frame, may_be_none=may_be_none)
            return result

        return call

    def _inputs(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        names: frozenset[str],
        space: dict[str, Any],
    ) -> tuple[Seen, ...]:
        """Return the inputs of a call: its arguments, and the values named in the function's code.

        Args:
            names: The names of attributes and global variables in the code.
        """
        thread = self._thread
        thread.is_busy = True
        try:
            found: list[Seen] = []
            for each in (*args, *kwargs.values()):
                attributes = getattr(each, "__dict__", None)
                is_value = hasattr(each, "dtype") or isinstance(each, type | random.Random)
                if type(attributes) is dict and not is_value:
                    known = sorted(names & attributes.keys())
                    found += [seen(attributes[name]) for name in known]
                else:
                    found.append(seen(each))
            used = sorted(name for name in names if type(space.get(name)) in _DATA)
            found += [seen(space[name]) for name in used]
            return tuple(found[:_MAX_INPUTS])
        except Exception:  # noqa: BLE001 - an error in recording must not fail the test
            return ()
        finally:
            thread.is_busy = False

    def _close(
        self, opened: _OpenCall, nth: int, result: object, frame: FrameType, *, may_be_none: bool
    ) -> None:
        """Record a call that has returned."""
        thread = self._thread
        thread.is_busy = True
        try:
            found = seen(result)
            if opened.target in _READS_ARRAYS:
                for each in thread.open:
                    each.reads.add("array")
                    each.measured = chained(each.measured, found.digest)
            self._add(opened, nth, found, frame, may_be_none=may_be_none)
        except Exception:  # noqa: BLE001, S110 - an error in recording must not fail the test
            pass
        finally:
            thread.is_busy = False

    def _add(
        self, opened: _OpenCall, nth: int, result: Seen, frame: FrameType, *, may_be_none: bool
    ) -> None:
        at, asserted = self._around(frame)
        made = SeenCall(
            target=opened.target,
            nth=nth,
            result=result,
            inputs=opened.inputs,
            reads=frozenset(opened.reads),
            measured=opened.measured,
            drawn=opened.drawn,
            asked=tuple(opened.asked),
            inside=tuple(each.target for each in self._thread.open),
            performed=self.operations - opened.before,
            before=opened.before,
            at=at,
            is_asserted=asserted,
            may_be_none=may_be_none,
            may_be_empty=result.sort == "list"
            and is_asked_whether_empty(frame.f_code.co_filename, frame.f_lineno),
        )
        self._calls.setdefault(opened.target, []).append(made)

    def _around(self, frame: FrameType | None) -> tuple[Place | None, bool]:
        """Return the user's innermost line, and whether the value of that line is only asserted.

        A function may return it to the caller that asserts it.
        """
        at: Place | None = None
        use: Use = "returned"
        for _ in range(_MAX_FRAMES):
            if frame is None or use != "returned":
                break
            code = frame.f_code
            if not is_library(code.co_filename):
                if at is None:
                    at = _place(self.root, code.co_filename, frame.f_lineno, code.co_name)
                use = use_of_line(code.co_filename, frame.f_lineno)
            elif not is_ours(code.co_filename) and at is not None:
                break
            frame = frame.f_back
        return at, use == "asserted"

    # The data that a call reads

    def _count(self, _name: str, _kind: OperationKind, _source: SourceRef) -> None:
        self.operations += 1

    def _read_clock(self, frame: FrameType) -> float:
        number, thread = next(self._clock_count), self._thread
        for each in thread.open:
            each.reads.add("clock")
        key = (frame.f_code, frame.f_lineno)
        known = self._clock_reads.get(key)
        if known is not None and number > known.first + _FIRST_CALLS:
            self._clock_reads[key] = replace(known, last=number)
            return 0.0
        at, asserted = self._around(frame)
        if at is not None and not asserted:
            known = known or ClockRead(at=at, first=number, last=number, before=self.operations)
            self._clock_reads[key] = replace(known, last=number)
        return 0.0

    def _touch(self, access: FileAccess) -> None:
        for each in self._thread.open:
            each.reads.add("file")
            each.asked[access.path] = None
        if access.makes or access.call in _MAKES:
            self.made.update(filter(None, (access.path, access.other)))

    def _watch_environment(self) -> None:
        kind: Any = type(os.environ)
        original = kind.__getitem__

        @functools.wraps(original)
        def get(environment: object, name: str) -> object:
            if isinstance(name, str) and not is_foreign(name):
                for each in self._thread.open:
                    each.reads.add("environment")
            return original(environment, name)

        replace_attribute(kind, "__getitem__", get, self._undoing)

    def _watch_random_numbers(self) -> None:
        for name in _DRAWS:
            replace_attribute(random, name, self._drawing(getattr(random, name)), self._undoing)

    def _drawing(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def draw(*args: object, **kwargs: object) -> object:
            result = original(*args, **kwargs)
            if self._thread.open:
                digest = seen(result).digest
                for each in self._thread.open:
                    each.reads.add("random")
                    each.drawn = chained(each.drawn, digest)
            return result

        return draw


def join(spec: RankSpec) -> RankPart:
    """Record this rank's calls and reads while its test runs."""
    settings = next(
        part.settings
        for part in spec.world.services.values()
        if part.rank == f"{__name__}:{join.__name__}"
    )
    record = Path(spec.scratch, f"{RECORD_NAME}-{spec.rank}")
    watch = Watch(str(settings.get("root") or ""), record)
    return RankPart(begin=watch.begin, end=watch.end)
