"""All uses of parts of CPython that any release may change; 3.11 to 3.14 are known.

No other module touches private names of the interpreter or its standard library, reads exception
tables and instructions, or parses the text of `faulthandler`. If a release differs, the answer is
unknown, and unknown counts as "may be": an exception may be handled, a task may be unfinished, a
thread may still do something. A stack in an unknown form shows nothing.
"""

from __future__ import annotations

import ast
import atexit
import dis
import gc
import glob
import linecache
import multiprocessing.process
import multiprocessing.util
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final

from pytest_multihost.core.model.stack import Dump, Frame, ThreadStack

# These are the interpreter's own functions: a wrapper would add a frame.

get_frame = sys._getframe
"""Returns the frame at a depth; 0 is the caller's. `inspect` is 100 times slower."""

current_frames = sys._current_frames
"""Returns the innermost frame of each thread, by the thread's identifier."""


def run_as_child(process: multiprocessing.process.BaseProcess) -> None:
    """Run a process's function in this process, which was forked for it.

    As `multiprocessing` does, its queues get threads of their own, and are written out at the end.
    """
    parts: Any = multiprocessing.process
    parts._current_process = process
    parts._children = set()
    own: Any = process
    own._after_fork()
    try:
        process.run()
    finally:
        own_util: Any = multiprocessing.util
        own_util._exit_function()


def is_raised_at(code: CodeType, offset: int) -> bool:
    """Return whether the instruction at an offset of `code` is a raise statement."""
    return 0 <= offset < len(code.co_code) and code.co_code[offset] == _RAISE


_RAISE = dis.opmap.get("RAISE_VARARGS", -1)

Task = Any
"""A task of any event loop."""


def thread_names() -> dict[int, str]:
    """Return the names of all threads, without the lock that `threading.enumerate` takes."""
    return {number: thread.name for number, thread in list(_threads().items())}


def native_id(ident: int) -> int:
    """Return the kernel's id of a thread, without that lock; 0 if it is unknown."""
    thread = _threads().get(ident)
    return 0 if thread is None else thread.native_id or 0


def _threads() -> Mapping[int, threading.Thread]:
    known: Mapping[int, threading.Thread] = getattr(threading, "_active", {})
    return known


def wrap_poll(queue: Any, wrap: Callable[[Any], Any]) -> None:  # noqa: ANN401 - of any context
    """Replace the function by which a queue of multiprocessing waits for data with a timeout."""
    poll = getattr(queue, "_poll", None)
    if poll is not None:
        queue._poll = wrap(poll)


def wrap_server_polls(socketserver: Any, wrap: Callable[[Any], Any]) -> None:  # noqa: ANN401 - a module
    """Replace the function by which servers of `socketserver` wait for requests with a timeout.

    After the timeout a server only checks whether it is to shut down, and then calls its
    `service_actions`, which does nothing unless a subclass replaces it.
    """
    make_selector, serve = socketserver._ServerSelector, socketserver.BaseServer.serve_forever
    plain = socketserver.BaseServer.service_actions

    def selector(*args: object) -> object:
        found = make_selector(*args)
        caller = sys._getframe(1)
        server = caller.f_locals.get("self") if caller.f_code is serve.__code__ else None
        if server is not None and type(server).service_actions is plain:
            found.select = wrap(found.select)
        return found

    socketserver._ServerSelector = selector


def wrap_loop_polls(loop: Any, wrap: Callable[[Any], Any]) -> None:  # noqa: ANN401
    """Replace the function by which an event loop waits.

    Raises:
        AttributeError: The loop waits in another way, as uvloop's.
    """
    loop._selector.select = wrap(loop._selector.select)


def waits_for_one_timer(loop: Any, task: Task) -> bool:  # noqa: ANN401
    """Return whether a loop that is about to wait has nothing to do but resume a task, later.

    Its one timer is that of a sleep in which the task is.
    """
    timers = [each for each in loop._scheduled if not each._cancelled]
    if loop._ready or len(timers) != 1:
        return False
    [timer] = timers
    is_sleep = timer._callback is sys.modules["asyncio.futures"]._set_result_unless_cancelled
    return is_sleep and timer._args[:1] == (task._fut_waiter,)


def only_resumes(loop: Any, task: Task) -> bool:  # noqa: ANN401
    """Return whether a loop is about to resume a task, and to do nothing else."""
    return bool(loop._ready) and all(
        getattr(each._callback, "__self__", None) is task for each in loop._ready
    )


def lock_of_condition(condition: threading.Condition) -> object:
    """Return the lock of a condition."""
    return getattr(condition, "_lock", None)


def condition_that_waits(frame: FrameType) -> threading.Condition | None:
    """Return the condition whose `wait` a frame runs, which has released the lock; or None."""
    if frame.f_code is not threading.Condition.wait.__code__:
        return None
    condition = frame.f_locals.get("self")
    return condition if isinstance(condition, threading.Condition) else None


def joined_thread(innermost: FrameType) -> int | None:
    """Return the thread that a thread with this innermost frame joins; None if it joins none."""
    inner = getattr(threading.Thread, "_wait_for_tstate_lock", None)  # before 3.13
    codes = [each.__code__ for each in (threading.Thread.join, inner) if each is not None]
    thread = innermost.f_locals.get("self") if innermost.f_code in codes else None
    return thread.ident if isinstance(thread, threading.Thread) else None


def entered_with_items(frame: FrameType) -> int:
    """Return how many items of its `with` statement a frame has entered before the current one.

    Before 3.13 all of their instructions have the position of the whole statement.
    """
    positions = list(frame.f_code.co_positions())
    current = positions[frame.f_lasti // 2]
    return sum(
        each.opname == "BEFORE_WITH" and positions[each.offset // 2] == current
        for each in dis.get_instructions(frame.f_code)
        if each.offset < frame.f_lasti
    )


PROCESS_BEGIN: Final = "_bootstrap"
"""The function of multiprocessing that each process begins with; its caller may be the parent. In a
version that calls it otherwise no process can be distinguished from its parent's frames."""

WORKERS: Final = (
    ("multiprocessing/pool.py", "worker"),
    ("concurrent/futures/process.py", "_worker"),
)
"""The ends of files and names of the functions in which the workers of pools wait for work. In a
version without them an idle worker counts as a rank."""


@dataclass(frozen=True, slots=True)
class CoroutineLayout:
    """Where a coroutine of a version of CPython has its parts in memory, as offsets in bytes.

    Attributes:
        state: The state of its frame, in a coroutine.
        awaits: That state while it awaits.
        frame: The frame, in a coroutine.
        code: The code, in a frame.
        instruction: The address of the instruction, in a frame.
        top: The number of its variables and values, in a frame.
        stack: These, in a frame.
        first_line: The first line, in a code object.
        file: The name of its file, in a code object.
        qualified_name: Its name with those around it.
        lines: The table of its lines.
        ascii_text: The characters of a string that has only ASCII.
        other_text: Those of another string.
    """

    state: int
    awaits: int
    frame: int
    code: int
    instruction: int = 56
    top: int = 64
    stack: int = 72
    first_line: int = 68
    file: int = 112
    name: int = 120
    qualified_name: int = 128
    lines: int = 136
    ascii_text: int = 40
    other_text: int = 56


_COROUTINES: Final = {
    (3, 11): CoroutineLayout(
        75, -1, frame=80, code=32, first_line=72, ascii_text=48, other_text=72
    ),
    (3, 12): CoroutineLayout(67, -1, frame=72, code=0),
    (3, 13): CoroutineLayout(67, -1, frame=72, code=0),
}


def coroutine_layout(major: int, minor: int) -> CoroutineLayout | None:
    """Return the layout of coroutines in a version of CPython; None if it is not known.

    Not known is that of a build without the GIL, whose library lies in another folder.
    """
    return _COROUTINES.get((major, minor))


def clear_exit_handlers() -> None:
    """Forget all handlers registered with `atexit`; CPython's own tests do the same."""
    atexit._clear()


def note_exit_handlers(is_noted: Callable[[str], bool]) -> Collection[str]:
    """Collect the files whose code registers functions with `atexit` from now on.

    Args:
        is_noted: Whether a file counts.

    Returns:
        The files, which grow.
    """
    files: set[str] = set()
    register: Callable[..., Any] = atexit.register

    def noting(function: Callable[..., object], /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        file = sys._getframe(1).f_code.co_filename
        if is_noted(file):
            files.add(file)
        return register(function, *args, **kwargs)

    atexit.register = noting
    return files


def run_exit_handlers() -> None:
    """Run the handlers registered with `atexit`, as the interpreter does when it ends."""
    atexit._run_exitfuncs()


def wait_for_threads() -> None:
    """Wait for all non-daemon threads, as the interpreter does when it ends."""
    shut_down = getattr(threading, "_shutdown", None)
    if shut_down is not None:
        shut_down()
        return
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


def pool_threads() -> Collection[threading.Thread]:
    """Return the threads of `concurrent.futures` executors, which end only with their executor."""
    pools = sys.modules.get("concurrent.futures.thread")
    return frozenset(getattr(pools, "_threads_queues", ()))


def keep_sockets_in(directory: str) -> None:
    """Have multiprocessing keep its sockets in `directory` instead of its own directory in /tmp.

    multiprocessing removes its own directory at exit, which a killed rank never reaches.
    """
    this: Any = multiprocessing.process.current_process()
    this._config["tempdir"] = directory


def path_globber() -> type | None:
    """Return the class with which `pathlib` globs, if any; it may hold functions of `os`."""
    found: type | None = getattr(glob, "_StringGlobber", None)
    return found


def unfinished_tasks() -> list[Task]:
    """Return the asyncio tasks of all event loops that are not done.

    3.11 keeps all tasks in `_all_tasks`, 3.12 keeps standard tasks in `_scheduled_tasks`. 3.14
    keeps them in lists of its threads, which cannot be read. If no list can be read, the tasks come
    from the garbage collector.
    """
    return [each for each in _known_tasks() if not each.done()]


def failed_tasks() -> list[tuple[Task, BaseException]]:
    """Return the tasks that have ended with an exception that no code has retrieved."""
    ended = [each for each in _known_tasks() if getattr(each, "_log_traceback", False)]
    found = [(each, getattr(each, "_exception", None)) for each in ended]
    return [(each, error) for each, error in found if isinstance(error, BaseException)]


def _known_tasks() -> list[Task]:
    tasks: Any = sys.modules.get("asyncio.tasks")
    if tasks is None:
        return []
    lists = [getattr(tasks, name, None) for name in ("_scheduled_tasks", "_all_tasks")]
    known: Iterable[Task] = next(filter(None, lists), ())
    if sys.version_info >= (3, 14) or not any(each is not None for each in lists):
        known = {*known, *(each for each in gc.get_objects() if issubclass(type(each), tasks.Task))}
    return list(known)


# An exception table lists which instructions a `try` or a `with` covers, and where its handler
# begins: see CPython's InternalDocs/exception_handling.md.

_FIELDS = 4  # of an entry: first instruction, number of instructions, handler, stack depth
_CLEANUP = tuple(dis.opmap.get(each) for each in ("COPY", "POP_EXCEPT", "RERAISE"))
_LEAVING = tuple(dis.opmap.get(each) for each in ("PUSH_EXC_INFO", "WITH_EXCEPT_START"))
_OPENING = frozenset({"open", "scandir"})
"""Functions whose results, used as the manager of a `with`, only close themselves."""

_SAMPLE = "one()\ntry:\n    two()\nexcept Exception:\n    three()\n"


def is_covered(code: CodeType, offset: int) -> bool:
    """Return whether a handler covers the instruction at an offset in bytes."""
    if not reads_tables():
        return True
    return any(start <= offset < end for start, end, _ in _table(code))


@lru_cache(maxsize=4096)
def handler_of(code: CodeType, offset: int) -> int | None:
    """Return the offset of the handler that may end an exception of an instruction; None if none.

    Skips handlers that certainly raise again, and those of a `with` that only closes a file. If
    tables cannot be read, each instruction counts as having its own handler.
    """
    if not reads_tables():
        return offset
    for _ in range(len(_table(code))):
        target = next((each for start, end, each in _table(code) if start <= offset < end), None)
        if target is None or not (_begins(code, target, _CLEANUP) or _closes(code, target)):
            return target
        offset = target  # it raises again
    return None


@cache
def reads_tables() -> bool:
    """Return whether this interpreter's tables have the known form.

    Checks a sample: a handler that begins in the known way must cover its second call, and none
    may cover its first.
    """
    code = compile(_SAMPLE, "<sample>", "exec")
    try:
        handlers = [
            (line, _begins(code, target, _LEAVING[:1]))
            for first, _, line in code.co_lines()
            for start, end, target in _table(code)
            if start <= first < end
        ]
    except (AttributeError, TypeError, ValueError):
        return False
    return (3, True) in handlers and 1 not in dict(handlers)


@lru_cache(maxsize=4096)
def _table(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """Return first covered offset, end and handler of each entry, in bytes.

    A number in the table has six bits in each byte, the highest first; bit 6 is set if another byte
    follows. Numbers count units of two bytes.
    """
    numbers, number = list[int](), 0
    for byte in code.co_exceptiontable:
        number = number << 6 | byte & 63
        if not byte & 64:
            numbers.append(2 * number)
            number = 0
    entries = zip(*(numbers[index::_FIELDS] for index in range(3)), strict=True)
    return tuple((start, start + count, target) for start, count, target in entries)


def _begins(code: CodeType, offset: int, operations: tuple[int | None, ...]) -> bool:
    found = code.co_code[offset : offset + 2 * len(operations) : 2]
    return tuple(found) == operations


def _closes(code: CodeType, target: int) -> bool:
    """Return whether a handler belongs to a `with` whose manager is a file that it opens."""
    if not _begins(code, target, _LEAVING):
        return False
    unit = min(start for start, _, each in _table(code) if each == target) // 2 - 1
    if code.co_code[2 * unit] == dis.opmap.get("BEFORE_WITH"):  # its position: the whole statement
        unit -= 1
    first, last, begin, end = next(islice(code.co_positions(), unit, None), (None,) * 4)
    if first is None or first != last or begin is None or end is None:
        return False
    line = linecache.getline(code.co_filename, first).encode()
    try:
        manager = ast.parse(line[begin:end].decode(), mode="eval").body
    except (SyntaxError, ValueError):
        return False
    function = manager.func if isinstance(manager, ast.Call) else None
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name in _OPENING


FAULTHANDLER: Final = "faulthandler"
"""The source of a dump that faulthandler has written."""

_THREAD = re.compile(
    r"(Current thread|Thread|Stack)(?: (0x[0-9a-f]+)(?: \[(.*)\])?)? \(most recent call first\):"
)
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def parse_faulthandler(text: str, *, rank: int) -> Dump:
    """Return the dump that `faulthandler` wrote as text.

    Follows CPython's Python/traceback.c, 3.11 to 3.14: a thread's name in brackets is new in 3.14;
    after 100 frames comes an indented line with dots, after 100 threads such a line without
    indentation; other lines (``<no Python frame>``, ``Garbage-collecting``) carry no frame. If the
    file holds several dumps, the last one counts: an empty line separates the threads of one dump,
    but no empty line separates two dumps.

    Args:
        text: The file's content, possibly cut off at the end.
    """
    threads: list[ThreadStack] = []
    is_cut, last = False, "first"
    for line in text.splitlines():
        if head := _THREAD.match(line):
            if last:  # another dump begins
                threads, is_cut = [], False
            name = head[3] or head[2] or "MainThread"  # "Stack" heads a dump of one thread
            threads.append(ThreadStack(name=name, current=head[1] == "Current thread"))
        elif threads and (found := _FRAME.match(line)):
            number = int(found[2]) if found[2].isdigit() else 0
            frame = Frame(_unescaped(found[1]), number, _unescaped(found[3]))
            threads[-1] = replace(threads[-1], frames=(*threads[-1].frames, frame))
        is_cut = is_cut or line == "..."
        last = line
    return Dump(rank, FAULTHANDLER, tuple(threads), lacks_main=is_cut)


def _unescaped(name: str) -> str:
    """Undo the escapes that faulthandler, which may not allocate memory, writes for non-ASCII."""
    return _ESCAPE.sub(lambda found: chr(int(found[1][1:], 16)), name)
