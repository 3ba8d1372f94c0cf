"""What all recorders write with: operations of this rank, with the user's line that began them.

A recorder wraps what a runtime offers so that every call says when it begins, when somebody waits
for it and when it ends. It never changes what the call does: arguments, result and exceptions pass
through, and an error in recording is no error of the test.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import get_native_id
from types import CodeType, FrameType
from typing import get_args

from pytest_multihost.analysis.frames import is_library
from pytest_multihost.model.operation import OperationKind
from pytest_multihost.rank.clock import now_ns
from pytest_multihost.watch.slots import SlotPage

Ranks = tuple[int, ...]
OnBegin = Callable[[str, OperationKind], None]

_KINDS: dict[OperationKind, int] = {kind: i for i, kind in enumerate(get_args(OperationKind))}
_LIBRARY = (0, 0)


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
    _places: dict[CodeType, tuple[int, int]] = field(default_factory=dict)

    @property
    def everybody(self) -> Ranks:
        """All ranks of the world."""
        return tuple(range(self.size))

    def begin(
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
        """
        for listener in self.on_begin:
            listener(name, kind)
        page = self.page
        at_ns = now_ns()
        file, function, line = self._caller()
        return page.begin(
            page.text(name),
            _KINDS[kind],
            page.group(group, ordinal, scope),
            at_ns,
            sequence=sequence,
            waited_ns=at_ns if is_waited else 0,
            peer=-1 if peer is None else peer,
            root=-1 if root is None else root,
            detail=page.text(detail) if detail else 0,
            thread=get_native_id(),
            file=file,
            line=line,
            function=function,
        )

    def wait(self, at: int) -> None:
        """Note that this thread waits for the operation at `at`."""
        file, function, line = self._caller()
        self.page.wait(
            at, now_ns(), thread=get_native_id(), file=file, line=line, function=function
        )

    def leave(self, at: int) -> None:
        """Note that this thread waits no more for the operation at `at`, which goes on."""
        self.page.leave(at)

    def end(self, at: int) -> None:
        """Note that the operation at `at` is over."""
        self.page.end(at, now_ns())

    def fail(self, at: int) -> None:
        """Note that the operation at `at` was left by an exception."""
        self.page.fail(at, now_ns())

    @contextlib.contextmanager
    def during(self, at: int) -> Iterator[None]:
        """End the operation at `at` with the block, whichever way the block ends."""
        try:
            yield
        except BaseException:
            self.fail(at)
            raise
        self.end(at)

    def _caller(self) -> tuple[int, int, int]:
        """Return file, function (numbers of texts) and line of the user's innermost frame."""
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - inspect is 100 times slower
        while frame is not None:
            place = self._places.get(frame.f_code)
            if place is None:
                place = self._place(frame.f_code)
            if place is not _LIBRARY:
                return *place, frame.f_lineno
            frame = frame.f_back
        return 0, 0, 0

    def _place(self, code: CodeType) -> tuple[int, int]:
        if is_library(code.co_filename):
            place = _LIBRARY
        else:
            place = (self.page.text(code.co_filename), self.page.text(code.co_name))
        self._places[code] = place
        return place
