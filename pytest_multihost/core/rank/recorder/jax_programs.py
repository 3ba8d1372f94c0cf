"""Record the compiled programs of jax in which a rank communicates with others.

A program whose collectives lead to other processes counts as one collective of these: all of them
must start it. It has the name and number of its start, and its first collectives as its detail. A
program without such collectives waits for no rank, and is not counted.

The start of a program may return before the program has ended. Then its record stays open, and a
thread that waits for devices waits for the oldest program that has not ended, because programs with
collectives run in the order of their start.

While a program calls a function of the user on the host, no thread waits for other ranks, and the
program does not count as entered: its collectives may come after the function.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pytest_multihost.core.jax_private import JaxObject, devices_of, text_of
from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.operation import PROGRAM_PREFIX
from pytest_multihost.core.rank.recorder.hlo import collectives_of, described, members
from pytest_multihost.core.rank.recorder.recorder import Recorder

_OUTPUTS = 1000
"""How many results of a program are remembered, to know it again by one of them."""

_LAUNCHED = 64
"""How many programs are remembered that may not have ended."""


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A compiled program with collectives between processes.

    Attributes:
        name: Its name in XLA: ``jit_step``.
        processes: The processes that must start it for this one to end; this one among them.
        detail: Its first collectives, for the reader.
    """

    name: str
    processes: tuple[int, ...]
    detail: str


@dataclass(slots=True, eq=False)
class _Launch:
    """A program that was started, with weak references to some of its results."""

    record: int
    outputs: list[weakref.ref[JaxObject]]

    def has_ended(self) -> bool | None:
        """Return whether the program has ended; None if no result of it is left.

        `is_ready` of a deleted array ends the process (jax 0.10.2, SIGSEGV).
        """
        arrays = (each() for each in reversed(self.outputs))
        left = (each for each in arrays if each is not None and not each.is_deleted())
        last = next(left, None)  # the first results of a training step are given to the next one
        return None if last is None else bool(last.is_ready())

    def has_made(self, arrays: Iterable[JaxObject]) -> bool:
        """Return whether one of some arrays is a result of the program."""
        made = {id(each()) for each in self.outputs}
        return any(id(each) in made for each in arrays)


@dataclass(slots=True)
class JaxPrograms:
    """The programs that this rank has compiled and started."""

    recorder: Recorder
    _known: weakref.WeakKeyDictionary[JaxObject, CompiledProgram | None] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _launched: deque[_Launch] = field(default_factory=deque)
    _awaited: dict[int, int] = field(default_factory=dict)
    _places: dict[int, tuple[int, int]] = field(default_factory=dict)
    _callbacks: Iterator[int] = field(default_factory=itertools.count)
    _running: set[int] = field(default_factory=set)
    _held: tuple[int, int, int] | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def program(self, started: JaxObject, own: int) -> CompiledProgram | None:
        """Return the facts about a program; None if it has no collectives with other processes.

        Also None if this version of jax or the program does not tell.
        """
        if started not in self._known:
            found = None
            with suppress(Exception):  # another version of jax
                found = _parsed(started, own)
            self._known[started] = found
        return self._known[started]

    @contextmanager
    def running(self, record: int, group: int) -> Iterator[Callable[[Iterable[JaxObject]], None]]:
        """Record that this thread runs the program of a record, which it has begun.

        Yields:
            A function that takes the results of the start.
        """
        thread, outputs = threading.get_ident(), list[JaxObject]()
        self._places[record] = group, self.recorder.page.sequence(record)
        self._await(thread, record)
        try:
            yield outputs.extend
        except BaseException as error:
            self._awaited.pop(thread, None)
            self.recorder.fail(record, error)
            raise
        self._awaited.pop(thread, None)
        launch = _Launch(record, [])
        with suppress(Exception):  # results without weak references
            launch.outputs.extend(map(weakref.ref, outputs[-_OUTPUTS:]))
        has_ended = launch.has_ended()
        if has_ended or has_ended is None:
            # Programs end in the order of their start.
            self._end([*(self._take_all() if has_ended else ()), launch])
            return
        self.recorder.page.leave(record)
        self.recorder.page.hand_on(record)
        with self._lock:
            self._launched.append(launch)
            first = [self._launched.popleft()] if len(self._launched) > _LAUNCHED else []
        self._end(first)

    @contextmanager
    def awaited(self, arrays: Iterable[JaxObject]) -> Iterator[None]:
        """Record that this thread waits for arrays, so for the oldest program on the devices."""
        self.settle()
        makers = [each for each in self._launched if each.has_made(arrays)]
        thread, oldest = threading.get_ident(), next(iter(self._launched), None)
        if oldest is None or thread in self._awaited:
            yield
            return
        self.recorder.wait(oldest.record)
        self._await(thread, oldest.record)
        try:
            yield
            if makers:
                self._end_until(makers[-1])
        except BaseException as error:
            with self._lock, suppress(ValueError):
                self._launched.remove(oldest)
            self.recorder.fail(oldest.record, error)
            raise
        finally:
            self._awaited.pop(thread, None)
            if oldest in self._launched:
                self.recorder.page.leave(oldest.record)
            self.settle()

    def _await(self, thread: int, record: int) -> None:
        """Note that a thread waits for a program, unless a program calls the host meanwhile."""
        with self._lock:
            self._awaited[thread] = record
            if self._running:
                self.recorder.page.leave(record)

    def settle(self) -> None:
        """Record the end of all programs that have ended."""
        if not self._launched:
            return
        done = [each for each in [*self._launched] if each.has_ended()]
        if done:
            self._end_until(done[-1])

    def _end_until(self, last: _Launch) -> None:
        """Record the end of a program and of all that were started before it."""
        with self._lock:
            launched = [*self._launched]
            count = launched.index(last) + 1 if last in launched else 0
            ended = [self._launched.popleft() for _ in range(count)]
        self._end(ended)

    def callback(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return a recorded form of a function that a program calls on the host."""

        def called(*args: object) -> object:
            number = next(self._callbacks)
            with self._lock:
                if not self._running:
                    self._held = self._hold_back()
                self._running.add(number)
            try:
                return function(*args)
            finally:
                with self._lock:
                    self._running.discard(number)
                    if not self._running:
                        self._go_on()

        return called

    def _hold_back(self) -> tuple[int, int, int] | None:
        """Record that no thread waits for a program, and that the running program is not entered.

        Returns:
            Its group, and the group's count before and now; None if no program is known to run.
        """
        page = self.recorder.page
        for record in self._awaited.values():
            page.leave(record)
        # Programs run in the order of their start.
        unended = [*self._awaited.values(), *(each.record for each in self._launched)]
        places = [self._places[each] for each in unended if each in self._places]
        if not places:
            return None
        group, sequence = min(places, key=lambda each: each[1])
        before = page.reached(group)
        page.reach(group, sequence - 1)
        return group, before, sequence - 1

    def _go_on(self) -> None:
        """Record that threads wait for programs again, and that these are entered."""
        page = self.recorder.page
        for record in self._awaited.values():
            page.resume(record, now_ns())
        if self._held is not None:
            group, before, now = self._held
            if page.reached(group) == now:  # else another operation of the group has begun
                page.reach(group, before)

    def _take_all(self) -> list[_Launch]:
        with self._lock:
            found = [*self._launched]
            self._launched.clear()
        return found

    def _end(self, launches: Iterable[_Launch]) -> None:
        for each in launches:
            self.recorder.end(each.record)


def _parsed(started: JaxObject, own: int) -> CompiledProgram | None:
    """Return a program with collectives between processes, or None.

    Raises:
        Exception: This version of jax is another one.
    """
    processes = [each.process_index for each in devices_of(started)]
    if len({*processes}) == 1:
        return None
    name, text = text_of(started)
    collectives = collectives_of(text)
    theirs = {
        processes[each]
        for device, process in enumerate(processes)
        if process == own
        for each in members(collectives, device, len(processes))
    }
    if theirs <= {own}:
        return None
    name = name if name.startswith(PROGRAM_PREFIX) else f"{PROGRAM_PREFIX}{name}"
    order = [*dict.fromkeys(processes)]
    # Programs on the same devices in another order do not meet.
    on = f" on processes {','.join(map(str, order))}" if order != sorted(order) else ""
    return CompiledProgram(name, tuple(sorted(theirs)), f"{described(collectives)}{on}")
