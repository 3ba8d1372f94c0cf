"""Stacks of a rank's threads, and which of their frames are the user's code."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path, PurePath

from pytest_multihost.core.model.source import ANY_SOURCE, SourceFiles
from pytest_multihost.core.model.verdict import Place

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_ANY_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python\d\.\d+/")
"""The standard library of another Python, as an inspected job may use it."""

_OURSELVES = str(Path(__file__).parents[2])
_RUNNER = "_pytest/runner.py"
_RUNNERS = ("/_pytest/", "/pluggy/")
_SERVER = "pytest_multihost/core/launch/server/serve.py"
_BEGIN = "multiprocessing/process.py"
_FILES = 4096
"""Size of the cache of files: stacks name the same few files thousands of times."""

_OUR_PARENT = Path(__file__).parents[3]

SourceOf = Callable[[str, int], str]
"""Returns the text of a line of a file, empty if it cannot be read."""

LinesOf = Callable[[str], Sequence[str]]
"""Returns the lines of a file, none if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame. `line` is 0 if the dumper does not know it."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Frames of one thread, innermost first.

    Attributes:
        name: The thread's name if the dumper knows it, else its identifier.
        current: Whether this thread held the GIL when the dump was taken.
    """

    name: str
    frames: tuple[Frame, ...] = ()
    current: bool = False


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The thread that another one waits for.

    Attributes:
        taken_at: Where it took the lock; None if that is not known, or if it is joined.
        native_id: Its id in the kernel; 0 if that is not known.
    """

    ident: int
    thread: str
    taken_at: Frame | None
    at: Frame
    native_id: int = 0


@dataclass(frozen=True, slots=True)
class LockWait:
    """A thread's wait for a lock of its process, or for the end of another thread.

    Attributes:
        ident: The identifier, in Python, of the thread that waits.
        is_main: Whether it is the main thread.
        at: Its innermost frame; if it joins a thread, the frame that does.
        lock: The expression of the lock in the source; empty if it joins a thread.
        holder: The thread that holds the lock, or is joined; None if that is not known.
    """

    ident: int
    thread: str
    is_main: bool
    at: Frame
    lock: str
    holder: LockHolder | None = None


@dataclass(frozen=True, slots=True)
class ChildStack:
    """The main thread of a child process of a rank."""

    pid: int
    name: str
    frames: tuple[Frame, ...]

    @property
    def own_frames(self) -> tuple[Frame, ...]:
        """The frames since the process began: a forked one has its parent's frames outside."""
        return tuple(takewhile(lambda frame: not frame.file.endswith(_BEGIN), self.frames))


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task of asyncio that has not ended, or whose exception no code has retrieved.

    Attributes:
        awaits: The coroutines it awaits, outermost first: a text for each coroutine.
        frame: The user's innermost line; None if it only serves or only waits for other tasks.
        is_first: Whether the event loop was started for it.
        error: The exception with which it has ended, in one line; empty if it has not ended.
    """

    name: str
    awaits: tuple[str, ...] = ()
    frame: Frame | None = None
    is_first: bool = False
    error: str = ""

    @property
    def text(self) -> str:
        """Its text for the reader."""
        if self.error:
            return f"{self.name} ended with {self.error}, and no code has retrieved it"
        return f"{self.name}: {' → '.join(self.awaits)}"


_FOR_OTHERS = frozenset(
    {
        ("base_events.py", "serve_forever"),
        ("base_events.py", "wait_closed"),
        ("taskgroups.py", "__aexit__"),
        ("tasks.py", "_wait"),
        ("tasks.py", "wait"),
    }
)
"""Functions of asyncio, by their file, in which a task waits for requests, or for other tasks."""


def _waits_for_others(frame: Frame) -> bool:
    folder, _, file = frame.file.rpartition("/")
    return folder.endswith("/asyncio") and (file, frame.function) in _FOR_OTHERS


def task_state(
    name: str, awaits: Sequence[str], frames: Sequence[Frame], *, is_first: bool
) -> TaskState:
    """Return the state of a task that has not ended.

    Args:
        awaits: A text for each coroutine that it awaits, outermost first.
        is_first: Whether the event loop was started for it.
    """
    own = [frame for frame in frames if not is_library(frame.file)]
    is_for_others = any(map(_waits_for_others, frames))
    frame = own[-1] if own and not is_for_others else None
    return TaskState(name, tuple(awaits), frame, is_first)


@dataclass(frozen=True, slots=True)
class FailedThread:
    """A thread that an exception has ended.

    Attributes:
        frame: The user's innermost line in its traceback.
    """

    name: str
    error: str
    frame: Frame | None = None

    @property
    def text(self) -> str:
        """Its text for the reader."""
        at = ""
        if self.frame is not None:
            at = f" at {PurePath(self.frame.file).name}:{self.frame.line}"
        return f"thread {self.name} has ended with {self.error}{at}"


@dataclass(frozen=True, slots=True)
class PolledFile:
    """A file for which a thread polls: a lock that is a file's existence, or one to come.

    Attributes:
        frame: The line at which the thread sleeps between two looks.
        holders: The processes that have it open, and their ancestors.
        made_s: How many seconds ago it was made; None if unknown.
        author: The process whose id is its text; 0: it holds none.
    """

    path: str
    frame: Frame
    exists: bool = False
    holders: tuple[int, ...] = ()
    made_s: float | None = None
    author: int = 0
    is_alive: bool = False


@dataclass(frozen=True, slots=True)
class Dump:
    """All stacks of one rank at one instant.

    Attributes:
        source: The dumper, e.g. ``faulthandler``.
        threads: In the dumper's order; empty if the rank did not answer.
        lacks_main: Whether the dumper omitted threads: the oldest first, so also the main thread.
        has_moved: Whether the main thread was elsewhere at the first of two requests.
        tasks: The waits of asyncio's tasks: a line for each, outermost first.
        awaiting: The user's lines at which tasks wait, except for requests or other tasks.
        failed_tasks: Tasks that have ended with an exception that no code has retrieved, as texts.
        failed_threads: Threads that an exception has ended.
        keys: The keys of jax's coordination service that it has set last and has not deleted.
        is_deaf: Whether the main thread did not return from native code to report its tasks.
        locks: The waits of its threads for locks and for each other, as far as it reported them.
        file: The file for which its main thread polls, as far as it reported one.
        children: Its child processes, as far as they were forked from it and answered.
    """

    rank: int
    source: str
    threads: tuple[ThreadStack, ...]
    lacks_main: bool = False
    has_moved: bool = False
    tasks: tuple[str, ...] = ()
    awaiting: tuple[Frame, ...] = ()
    failed_tasks: tuple[str, ...] = ()
    failed_threads: tuple[FailedThread, ...] = ()
    keys: tuple[str, ...] = ()
    is_deaf: bool = False
    locks: tuple[LockWait, ...] = ()
    children: tuple[ChildStack, ...] = ()
    file: PolledFile | None = None

    @property
    def main(self) -> ThreadStack | None:
        """The main thread: the oldest, which faulthandler prints last; None if it was omitted."""
        return self.threads[-1] if self.threads and not self.lacks_main else None


@dataclass(frozen=True, slots=True)
class NativeThread:
    """Native frames of one thread at one instant, whether or not it is a Python thread.

    Attributes:
        thread: Its native id; that of the main thread is the process id.
        symbols: Demangled names of the functions, innermost first.
    """

    thread: int
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads have the same stack. Frames are innermost first."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]


def group_by_main_stack(dumps: Iterable[Dump]) -> tuple[StackGroup, ...]:
    """Return groups of ranks with equal main-thread stacks, the smallest group first.

    The smallest group is usually the culprit's. A rank that did not answer has no frames.
    """
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for dump in dumps:
        frames = dump.main.frames if dump.main else ()
        groups.setdefault(frames, []).append(dump.rank)
    found = [StackGroup(tuple(sorted(ranks)), frames) for frames, ranks in groups.items()]
    return tuple(sorted(found, key=lambda group: (len(group.ranks), group.ranks)))


@lru_cache(maxsize=_FILES)
def is_library(file: str) -> bool:
    """Return whether `file` belongs to Python, an installed package, or this one."""
    if file.startswith("<") or not _INSTALLED.isdisjoint(file.split("/")):
        return True
    if _ANY_STANDARD_LIBRARY.search(file):
        return True
    return any(_is_below(base, file) for base in (*_STANDARD_LIBRARY, _OURSELVES))


def _is_below(folder: str, file: str) -> bool:
    return file.startswith(f"{folder}/")  # without `Path`, which costs each rank pages


@lru_cache(maxsize=_FILES)
def is_ours(file: str) -> bool:
    """Return whether `file` belongs to this package."""
    return _is_below(_OURSELVES, file)


def is_runner(file: str) -> bool:
    """Return whether `file` belongs to a runner of the test: this package, pytest or pluggy."""
    return is_ours(file) or any(each in file for each in _RUNNERS)


def innermost_user_frame(frames: Iterable[Frame]) -> Frame | None:
    """Return the first of `frames`, innermost first, that is the user's own code."""
    return next((frame for frame in frames if not is_library(frame.file)), None)


def innermost_package_frame(frames: Iterable[Frame]) -> Frame | None:
    """Return the first of `frames`, innermost first, of an installed package.

    None if the user's own code comes first, because it called Python's library itself.
    """
    for frame in frames:
        if not is_library(frame.file):
            return None
        if not _INSTALLED.isdisjoint(PurePath(frame.file).parts) and not is_ours(frame.file):
            return frame
    return None


def called_in_threads(dump: Dump) -> tuple[Frame, ...]:
    """Return the user's lines that libraries have called in threads beside the main one.

    The result is empty unless the main thread waits in a library, which may wait for them: a loader
    that reads ahead, a remote call, a pool. A thread that the user has started may be unrelated.
    """
    main = dump.main
    if main is None or not main.frames or not is_library(main.frames[0].file):
        return ()
    found = []
    for thread in dump.threads:
        users = [index for index, frame in enumerate(thread.frames) if not is_library(frame.file)]
        outside = thread.frames[users[-1] + 1 :] if users else ()
        callers = [each for each in outside if PurePath(each.file).name != "threading.py"]
        if thread is not main and callers:
            found.append(thread.frames[users[0]])
    return tuple(dict.fromkeys(found))


def inside_the_test(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of the user's test or fixture and its calls, innermost first.

    Frames outside pytest's runner belong to the caller of pytest, say a script of the user, not to
    the test. If no user code is left, as during start-up, the stack ends at the server that the
    rank was forked from.
    """
    inside = list(takewhile(lambda frame: not frame.file.endswith((_RUNNER, _SERVER)), frames))
    users = [index for index, frame in enumerate(inside) if not is_library(frame.file)]
    return inside[: users[-1] + 1] if users else inside


def relative_to(root: str, file: str) -> str:
    """Return `file` relative to `root` in POSIX form where it is below it, else unchanged."""
    path = PurePath(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


@lru_cache(maxsize=_FILES)
def short_path(root: str, file: str) -> str:
    """Return `file` relative to rootdir, to its package, or to Python's library."""
    if not is_library(file):
        return relative_to(root, file)
    path = PurePath(file)
    for base in (*(parent for parent in path.parents if parent.name in _INSTALLED), _OUR_PARENT):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.name


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Converts frames into places in source files.

    Attributes:
        root: pytest's rootdir; files below it are named relative to it.
        source_of: Reads a line of a file.
    """

    root: str
    source_of: SourceOf = ANY_SOURCE.line
    lines_of: LinesOf = ANY_SOURCE.lines

    def place(self, frame: Frame) -> Place:
        """Return the place of a frame, with the text of its line.

        The frame's file may be absolute, or relative to the root.
        """
        path = frame.file if frame.file.startswith(("/", "<")) else f"{self.root}/{frame.file}"
        source = self.source_of(path, frame.line)
        return Place(short_path(self.root, frame.file), frame.line, frame.function, source)


def context_of(root: str, files: SourceFiles) -> SourceContext:
    """Return a context for frames that another program has named: it reads only these files."""
    return SourceContext(root, files.line, files.lines)
