"""What all recorders write with: operations of this rank, with the user's line that began them.

A recorder wraps what a runtime offers so that every call records when it begins, when a thread
waits for it and when it ends. It never changes what the call does: arguments, result and
exceptions pass through, and an error in recording is no error of the test.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.operation import RUNTIME_SCOPE, OperationKind, Scope
from pytest_multihost.core.model.stack import Frame, is_library
from pytest_multihost.core.slots import NO_RECORD, Call, SlotPage

Ranks = tuple[int, ...]

SourceRef = tuple[int, int, int]
"""A line of the source: number of its file in the slot page, line, number of its function."""

OnBegin = Callable[[str, OperationKind, SourceRef], None]

_UNKNOWN: SourceRef = (0, 0, 0)
_AGENT = str(Path(__file__).parents[1] / "agent.py")
"""Where a rank's life begins, and its stack as far as the user is concerned."""

_MAX_ERROR = 200


class _Thread(threading.local):
    """The calling thread. Asking the system for its id each time takes four times as long.

    Attributes:
        depth: How many calls of the user's it is in of which listeners were notified, and which
            call other operations.
    """

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.depth = 0


@dataclass(slots=True)
class Recorder:
    """Writes the operations of this rank into its slot page.

    An operation is known by the record that `begin` returns: its index in the page.

    Attributes:
        size: Ranks of the world.
        on_begin: Called with name, kind and the user's line before an operation is recorded: what
            happens to a rank there happens before it has entered. Faults are bound to it.
        thread: What is known of the calling thread.
        has_streams: Whether operations run one at a time, in the order of their launch.
    """

    page: SlotPage
    rank: int
    size: int
    on_begin: list[OnBegin] = field(default_factory=list)
    thread: _Thread = field(default_factory=_Thread)
    has_streams: bool = False
    _codes: list[CodeType] = field(default_factory=list)
    _library_files: set[str] = field(default_factory=set)
    _sources: dict[tuple[int, int], SourceRef] = field(default_factory=dict)
    _frames: dict[SourceRef, Frame] = field(default_factory=dict)

    def open(self, path: Path, rank: int, size: int) -> None:
        """Become this rank's: write to its page at `path`, which must not exist."""
        self.page.open(path)
        self.rank, self.size = rank, size
        self.thread.native_id = threading.get_native_id()  # a fork has changed it

    @property
    def all_ranks(self) -> Ranks:
        """All ranks of the world."""
        return tuple(range(self.size))

    def begin(
        self,
        name: str,
        kind: OperationKind,
        group: Ranks,
        *,
        scope: Scope = RUNTIME_SCOPE,
        sequence: int = 0,
        peer: int = -1,
        detail: str = "",
        timeout_s: float | None = None,
    ) -> int:
        """Record that this thread begins an operation; return its record.

        Args:
            name: As the runtime's users call it.
            kind: Who must do something for it to end.
            scope: Whose groups these are; see `Operation`.
            sequence: Its number among its like; 0: the group's next collective.
            peer: The other rank of a transfer.
            detail: More for the reader.
            timeout_s: The timeout that the caller has set for it.

        Raises:
            Exception: What a listener raises, and nothing else.
        """
        self.notify(name, kind)
        try:
            page = self.page
            call = page.call(name, kind, page.group(group, scope=scope), peer=peer)
            record = self.begin_call(call, sequence, page.detail(detail) if detail else 0)
            if timeout_s is not None:
                page.set_timeout(record, timeout_s)
        except Exception:  # noqa: BLE001 - an error in recording is no error of the test
            return NO_RECORD
        return record

    def notify(self, name: str, kind: OperationKind, source: SourceRef | None = None) -> None:
        """Call the listeners for an operation that is about to begin; what they raise passes.

        Args:
            kind: Who must do something for it to end.
            source: The user's line, if it is known.
        """
        try:
            source = source or self.user_source(2)
        except Exception:  # noqa: BLE001 - an error in recording is no error of the test
            source = _UNKNOWN
        for listener in self.on_begin:
            listener(name, kind, source)

    def begin_call(
        self, call: Call, sequence: int = 0, detail: int = 0, source: SourceRef | None = None
    ) -> int:
        """Do what `begin` does after the listeners were notified, with what was prepared."""
        try:
            # called by begin(), or by what wraps the runtime's call
            source = source or self.user_source(3)
            at_ns = now_ns()
            return self.page.begin(call, at_ns, self.thread.native_id, source, sequence, detail)
        except Exception:  # noqa: BLE001 - an error in recording is no error of the test
            return NO_RECORD

    def wait(self, record: int) -> None:
        """Record that this thread waits for the operation."""
        try:  # noqa: SIM105 - suppress() would take as long as all the rest
            self.page.wait(record, now_ns(), self.thread.native_id, self.user_source(2))
        except Exception:  # noqa: BLE001, S110 - an error in recording is no error of the test
            pass

    def end(self, record: int) -> None:
        """Record that the operation is over."""
        self.page.end(record, now_ns())

    def fail(self, record: int, error: BaseException | None = None) -> None:
        """Record that an exception has left the operation."""
        at_ns = now_ns()
        text = ""
        with contextlib.suppress(Exception):  # its __str__ may raise anything
            text = f"{type(error).__name__}: {error}".partition("\n")[0] if error else ""
        self.page.fail(record, at_ns, text[:_MAX_ERROR])

    @contextlib.contextmanager
    def during(self, record: int) -> Iterator[None]:
        """End the operation with the block, whichever way the block ends."""
        try:
            yield
        except BaseException as error:
            self.fail(record, error)
            raise
        self.end(record)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Take note that this thread is in a call of the user's that calls other operations."""
        self.thread.depth += 1
        try:
            yield
        finally:
            self.thread.depth -= 1

    def user_line(self) -> tuple[str, int]:
        """Return the file and line that the user's innermost frame is at; empty if not known."""
        frame = self.frame_of(self.user_source(2))
        return (frame.file, frame.line) if frame else ("", 0)

    def user_source(self, depth: int) -> SourceRef:
        """Return the line that the user's innermost frame is at, `depth` frames up or further.

        `frame_of` says which line it is.

        This is the dearest part of recording, so everything is remembered. Code is known by its
        address, because its hash takes up to a microsecond; a line by its instruction, because
        `f_lineno` takes as long. Each frame passed costs, too: Python makes an object of it.
        """
        frame: FrameType | None = get_frame(depth)
        library_files, sources = self._library_files, self._sources
        while frame is not None:
            code = frame.f_code
            if code.co_filename not in library_files:
                source = sources.get((id(code), frame.f_lasti)) or self._add_source(frame)
                if source is not None:
                    return source
            frame = frame.f_back
        return _UNKNOWN

    def frame_of(self, source: SourceRef) -> Frame | None:
        """Return the line that `user_source` has found; None if it is not known."""
        return self._frames.get(source)

    def _add_source(self, frame: FrameType) -> SourceRef | None:
        """Remember where the user is and return it; None if the frame is not the user's."""
        code, file = frame.f_code, frame.f_code.co_filename
        if file != _AGENT and is_library(file):
            self._library_files.add(file)
            return None
        self._codes.append(code)  # kept alive, so that no other code gets its address
        source = _UNKNOWN  # beneath the agent are dozens of frames of what forked the rank
        if file != _AGENT:
            text = self.page.text
            source = text(file), frame.f_lineno or 0, text(code.co_name)
            if source[0]:
                self._frames[source] = Frame(file, source[1], code.co_name)
        self._sources[id(code), frame.f_lasti] = source
        return source
