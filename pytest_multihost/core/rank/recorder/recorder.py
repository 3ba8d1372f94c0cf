"""Write the operations of this rank into its slot page, with the user's line that began them.

Recorders wrap the functions of a runtime, so that every call records when it begins, when a thread
waits for it and when it ends. They never change a call: arguments, result and exceptions pass
through, and an error in recording must not fail the test.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.operation import RUNTIME_SCOPE, OperationKind, Scope
from pytest_multihost.core.model.stack import Frame, is_library
from pytest_multihost.core.slots import NO_RECORD, Call, SlotPage, SourceRef

Ranks = tuple[int, ...]

OnBegin = Callable[[str, OperationKind, SourceRef], None]

_UNKNOWN: SourceRef = (0, 0, 0)
_AGENT = str(Path(__file__).parents[1] / "agent.py")
"""The file of a rank's outermost frames that matter to the user."""

_MAX_ERROR = 200


class _CallingThread(threading.local):
    """The calling thread. Its id is kept because asking the system takes four times as long.

    Attributes:
        depth: How many calls of the user it is in that may call other operations, and for which
            the listeners have been notified.
    """

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.depth = 0


@dataclass(slots=True)
class Recorder:
    """Writes the operations of this rank into its slot page.

    `begin` returns an operation's record, its index in the page, which names it from then on.

    Attributes:
        size: Number of ranks of the world.
        on_begin: Listeners, called with name, kind and the user's line before an operation is
            recorded, so before the rank has entered it. They perform faults.
        has_streams: Whether operations run one at a time, in the order of their launch.
        role: The ranks of this rank's role, which have the numbers 0, 1, ... in its runtime; None
            if the world has no roles.
        pid: The process that writes to the page.
        is_in_child: Whether that is a child of the rank.
    """

    page: SlotPage
    rank: int
    size: int
    on_begin: list[OnBegin] = field(default_factory=list)
    thread: _CallingThread = field(default_factory=_CallingThread)
    has_streams: bool = False
    role: range | None = None
    pid: int = 0
    is_in_child: bool = False
    _codes: list[CodeType] = field(default_factory=list)
    _library_files: set[str] = field(default_factory=set)
    _sources: dict[tuple[int, int], SourceRef] = field(default_factory=dict)
    _frames: dict[SourceRef, Frame] = field(default_factory=dict)

    def open(self, path: Path, rank: int, size: int, role: range | None = None) -> None:
        """Write to the slot page of this rank at `path`, which must not exist, from now on."""
        self.page.open(path)
        self.rank, self.size, self.role, self.pid = rank, size, role, os.getpid()
        self.thread.native_id = threading.get_native_id()  # a fork has changed it

    def claim(self) -> None:
        """Record in a page of its own, if this process is a child that is about to make a group.

        Engines of a role are often children of its rank. A world without roles has no such pages.
        """
        pid = os.getpid()
        if self.role is None or pid == self.pid:
            return
        self.pid, self.is_in_child = pid, True
        with contextlib.suppress(OSError):  # a full disk: nothing is recorded
            self.page.open_in_child(pid)
        self.thread.native_id = threading.get_native_id()

    @property
    def all_ranks(self) -> Ranks:
        """All ranks of the world."""
        return tuple(range(self.size))

    @property
    def role_ranks(self) -> Ranks:
        """The ranks of this rank's role; all ranks if the world has no roles."""
        return self.all_ranks if self.role is None else tuple(self.role)

    def are_all(self, size: int | None) -> bool:
        """Return whether so many processes are all ranks of the world, as far as that is known.

        With roles an equal count proves nothing: the processes may be children.
        """
        return self.role is None and size == self.size

    def is_numbered(self, rank: int | None, size: int | None) -> bool:
        """Return whether a process group has the ranks' own numbers; None: not said otherwise.

        In a world with roles it never counts as such: programs number their members themselves.
        """
        return self.role is None and rank in (None, self.rank) and size in (None, self.size)

    def begin(
        self,
        name: str,
        kind: OperationKind,
        group: Ranks | int,
        *,
        scope: Scope = RUNTIME_SCOPE,
        sequence: int = 0,
        peer: int = -1,
        detail: str = "",
        timeout_s: float | None = None,
    ) -> int:
        """Record that this thread begins an operation; return its record.

        Args:
            name: The runtime's own name for it.
            kind: Determines which ranks must act for it to end.
            group: The ranks of its group; if they are unknown, how many they are (0: unknown).
            scope: The scope of its group; see `Operation`.
            sequence: Its number among similar operations; 0: the group's next collective.
            peer: The other rank of a transfer.
            timeout_s: The timeout that the caller has set for it.

        Raises:
            Exception: A listener has raised it.
        """
        self.notify(name, kind)
        try:
            page = self.page
            ranks, ordinal = ((), group) if isinstance(group, int) else (group, 0)
            call = page.call(name, kind, page.group(ranks, ordinal, scope), peer=peer)
            record = self.begin_call(call, sequence, page.detail(detail) if detail else 0)
            if timeout_s is not None:
                page.set_timeout(record, timeout_s)
        except Exception:  # noqa: BLE001 - an error in recording must not fail the test
            return NO_RECORD
        return record

    def notify(self, name: str, kind: OperationKind, source: SourceRef | None = None) -> None:
        """Call the listeners for an operation that is about to begin; their exceptions propagate.

        Args:
            source: The user's line, if it is known.
        """
        try:
            source = source or self.user_source(2)
        except Exception:  # noqa: BLE001 - an error in recording must not fail the test
            source = _UNKNOWN
        for listener in self.on_begin:
            listener(name, kind, source)

    def begin_call(
        self, call: Call, sequence: int = 0, detail: int = 0, source: SourceRef | None = None
    ) -> int:
        """Record a prepared call, as `begin` does once the listeners have been notified."""
        try:
            # The callers are begin() and wrappers of the runtime's functions.
            source = source or self.user_source(3)
            at_ns = now_ns()
            return self.page.begin(call, at_ns, self.thread.native_id, source, sequence, detail)
        except Exception:  # noqa: BLE001 - an error in recording must not fail the test
            return NO_RECORD

    def wait(self, record: int) -> None:
        """Record that this thread waits for the operation."""
        try:  # noqa: SIM105 - suppress() would take as long as everything else
            self.page.wait(record, now_ns(), self.thread.native_id, self.user_source(2))
        except Exception:  # noqa: BLE001, S110 - an error in recording must not fail the test
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
        """End the operation with the block, even if an exception leaves the block."""
        try:
            yield
        except BaseException as error:
            self.fail(record, error)
            raise
        self.end(record)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Record that this thread is in a call of the user that may call other operations."""
        self.thread.depth += 1
        try:
            yield
        finally:
            self.thread.depth -= 1

    def user_line(self) -> tuple[str, int]:
        """Return file and line of the user's innermost frame; "" and 0 if unknown."""
        frame = self.frame_of(self.user_source(2))
        return (frame.file, frame.line) if frame else ("", 0)

    def user_source(self, depth: int) -> SourceRef:
        """Return the line of the user's innermost frame, at least `depth` frames up.

        `frame_of` returns its file, line and function.

        This is the most expensive part of recording, so everything is cached. The key of code is
        its address, because its hash takes up to a microsecond; the key of a line is its
        instruction, because `f_lineno` takes as long. Each frame on the way also costs, because
        Python makes an object for it.
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
        """Return the line that `user_source` has found; None if it is unknown."""
        return self._frames.get(source)

    def _add_source(self, frame: FrameType) -> SourceRef | None:
        """Cache and return the line of a frame; None if the frame is not the user's."""
        code, file = frame.f_code, frame.f_code.co_filename
        if file != _AGENT and is_library(file):
            self._library_files.add(file)
            return None
        self._codes.append(code)  # kept alive, so that no other code gets its address
        source = _UNKNOWN  # outside of the agent are dozens of frames of the server
        if file != _AGENT:
            text = self.page.text
            source = text(file), frame.f_lineno or 0, text(code.co_name)
            if source[0]:
                self._frames[source] = Frame(file, source[1], code.co_name)
        self._sources[id(code), frame.f_lasti] = source
        return source
