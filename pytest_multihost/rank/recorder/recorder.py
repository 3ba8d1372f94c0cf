"""What all recorders write with: operations of this rank, with the user's line that began them.

A recorder wraps what a runtime offers so that every call says when it begins, when somebody waits
for it and when it ends. It never changes what the call does: arguments, result and exceptions pass
through, and an error in recording is no error of the test.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

from pytest_multihost.model.clock import now_ns
from pytest_multihost.model.operation import OperationKind
from pytest_multihost.model.user_code import is_library
from pytest_multihost.slots import NO_RECORD, Call, SlotPage

Ranks = tuple[int, ...]
OnBegin = Callable[[str, OperationKind], None]

SourceRef = tuple[int, int, int]
"""A line of the source: number of its file in the slot page, line, number of its function."""

_NOWHERE: SourceRef = (0, 0, 0)
_AGENT = str(Path(__file__).parents[1] / "agent" / "lifecycle.py")
"""Where a rank's life begins, and its stack as far as the user is concerned."""

_MAX_ERROR = 200


class _Thread(threading.local):
    """The calling thread. Asking the system for its id each time takes four times as long."""

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()


@dataclass(slots=True)
class Recorder:
    """Writes the operations of this rank into its slot page.

    Attributes:
        page: Where they are written.
        rank: This rank.
        size: Ranks of the world.
        on_begin: Called with name and kind before an operation is noted: what happens to a rank
            there happens before it has entered. Faults are bound to it.
    """

    page: SlotPage
    rank: int
    size: int
    on_begin: list[OnBegin] = field(default_factory=list)
    _codes: list[CodeType] = field(default_factory=list)
    _library: set[int] = field(default_factory=set)
    _places: dict[tuple[int, int], SourceRef] = field(default_factory=dict)
    _files: dict[int, str] = field(default_factory=dict)
    _thread: _Thread = field(default_factory=_Thread)

    def enter(self, path: Path, rank: int, size: int) -> None:
        """Become this rank's: write to its page at `path`, which must not exist."""
        self.page.open(path)
        self.rank, self.size = rank, size
        self._thread.native_id = threading.get_native_id()  # after a fork it is another one's

    @property
    def everybody(self) -> Ranks:
        """All ranks of the world."""
        return tuple(range(self.size))

    def begin(  # noqa: PLR0913 - as many as an operation has sides, and by name
        self,
        name: str,
        kind: OperationKind,
        group: Ranks,
        *,
        ordinal: int = 0,
        scope: str = "",
        sequence: int = 0,
        peer: int | None = None,
        root: int | None = None,
        detail: str = "",
        is_waited: bool = True,
    ) -> int:
        """Note that this thread begins an operation; return where it is noted.

        Args:
            name: As the runtime's users call it.
            kind: Who must do something for it to end.
            group: Members, ascending.
            ordinal: Which of the groups with these members.
            scope: Whose groups these are; see `Operation`.
            sequence: Its place among its like; 0: the group's next collective.
            peer: The other rank of a transfer.
            root: The rank that sends or receives for all.
            detail: More for the reader.
            is_waited: Whether this thread cannot go on until it has ended.

        Raises:
            Exception: What a listener raises, and nothing else.
        """
        self.announce(name, kind)
        try:
            page = self.page
            call = page.call(
                name,
                kind,
                page.group(group, ordinal, scope),
                peer=-1 if peer is None else peer,
                root=-1 if root is None else root,
            )
            number = page.detail(detail) if detail else 0
            return self.note(call, sequence, number, is_waited=is_waited)
        except Exception:  # noqa: BLE001 - an error in recording is no error of the test
            return NO_RECORD

    def announce(self, name: str, kind: OperationKind) -> None:
        """Let the listeners know of an operation that is about to begin; what they raise passes."""
        for listener in self.on_begin:
            listener(name, kind)

    def note(
        self, call: Call, sequence: int = 0, detail: int = 0, *, is_waited: bool = True
    ) -> int:
        """Do what `begin` does after the listeners have heard of it, with what was prepared."""
        where = self._where(3)  # note() is called by begin(), or by what wraps the runtime's call
        at_ns = now_ns()
        waited_ns = at_ns if is_waited else 0
        return self.page.begin(
            call, at_ns, waited_ns, self._thread.native_id, where, sequence, detail
        )

    def wait(self, at: int) -> None:
        """Note that this thread waits for the operation at `at`."""
        self.page.wait(at, now_ns(), self._thread.native_id, self._where(2))

    def leave(self, at: int) -> None:
        """Note that this thread waits no more for the operation at `at`, which goes on."""
        self.page.leave(at)

    def end(self, at: int) -> None:
        """Note that the operation at `at` is over."""
        self.page.end(at, now_ns())

    def fail(self, at: int, error: BaseException | None = None) -> None:
        """Note that the operation at `at` was left by an exception."""
        at_ns = now_ns()
        text = ""
        with contextlib.suppress(Exception):  # one that cannot be put into words
            text = f"{type(error).__name__}: {error}".partition("\n")[0] if error else ""
        self.page.fail(at, at_ns, text[:_MAX_ERROR])

    @contextlib.contextmanager
    def during(self, at: int) -> Iterator[None]:
        """End the operation at `at` with the block, whichever way the block ends."""
        try:
            yield
        except BaseException as error:
            self.fail(at, error)
            raise
        self.end(at)

    def users_line(self) -> tuple[str, int]:
        """Return the file and line that the user's innermost frame is at; empty if not known."""
        file, line, _ = self._where(2)
        return self._files[file] if file else "", line

    def _where(self, depth: int) -> SourceRef:
        """Return the line that the user's innermost frame is at, `depth` frames up or further.

        Code is known by its address, because its hash takes up to a microsecond, and a line by its
        instruction, because finding it takes as long. Each frame that is looked at costs, too:
        Python makes an object of it.
        """
        frame: FrameType | None = sys._getframe(depth)  # noqa: SLF001 - inspect is 100 times slower
        library = self._library
        while frame is not None:
            address = id(frame.f_code)
            if address not in library:
                where = self._places.get((address, frame.f_lasti)) or self._find(frame)
                if where is not None:
                    return where
            frame = frame.f_back
        return _NOWHERE

    def _find(self, frame: FrameType) -> SourceRef | None:
        """Return where the user is, None if the frame is not the user's."""
        code = frame.f_code
        self._codes.append(code)  # alive, so that no other gets its address
        if code.co_filename == _AGENT:  # below is what forked the rank: dozens of frames
            self._places[id(code), frame.f_lasti] = _NOWHERE
            return _NOWHERE
        if is_library(code.co_filename):
            self._library.add(id(code))
            return None
        file, function = self.page.text(code.co_filename), self.page.text(code.co_name)
        where = file, frame.f_lineno or 0, function
        self._files[file] = code.co_filename
        self._places[id(code), frame.f_lasti] = where
        return where
