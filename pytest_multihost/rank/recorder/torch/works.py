"""What has been launched and not been waited for: torch's `Work` objects."""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from pytest_multihost.model.clock import now_ns
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.rank.recorder.torch.groups import Function, Group, pose_as

WAITS = ("wait", "synchronize")


class Thread(threading.local):
    """The last synchronous call of this thread: its caller waits for it at once.

    Attributes:
        work: The address of its work; 0: none.
        at: Where it is noted.
        coalesced: Where the calls of a coalesced batch are noted; None: there is no batch.
    """

    work = 0
    at = 0
    coalesced: list[int] | None = None


class Held(weakref.ref[Any]):
    """An asynchronous operation, for as long as somebody holds its work.

    Attributes:
        at: Where it is noted; several for a coalesced batch.
        address: The address of its work.
        group: Where it goes on.
        launched_ns: When the call that launched it returned.
    """

    __slots__ = ("address", "at", "group", "launched_ns")
    at: tuple[int, ...]
    address: int
    group: Group | None
    launched_ns: int


@dataclass(slots=True, eq=False)
class Works:
    """What this rank has launched.

    Attributes:
        recorder: What writes it down.
        held: What nobody has waited for yet, by the address of its work.
        thread: The calling thread, for each a state of its own.
    """

    recorder: Recorder
    held: dict[int, Held] = field(default_factory=dict)
    thread: Thread = field(default_factory=Thread)
    _is_completed: Function | None = None

    def watch(self, work: type) -> None:
        """Wrap the methods of `Work` by which somebody waits."""
        self._is_completed = vars(work)["is_completed"]
        for name in WAITS:
            setattr(work, name, self._noted_wait(vars(work)[name], name))
        completed = self._noted_completed(vars(work)["is_completed"])
        work.is_completed = completed  # type: ignore[attr-defined] # a bound class

    def hold(self, work: Any, at: int, group: Group, opts: object) -> None:  # noqa: ANN401 - torch's
        """Note that the call noted at `at` has returned.

        Args:
            work: What it returned; None: it is done.
            at: Where it is noted.
            group: Where.
            opts: Its options, if it had any: they tell whether its caller waits at once.
        """
        thread = self.thread
        if thread.coalesced is not None:
            self.recorder.page.leave(at)
            thread.coalesced.append(at)
        elif work is None:
            self.recorder.end(at)
        elif getattr(opts, "asyncOp", True):
            if thread.work == id(work):  # one that is gone without having been waited for
                thread.work = 0
                self.recorder.end(thread.at)
            self.recorder.page.leave(at)
            self._hold(work, (at,), group)
        else:
            if thread.work:
                self.recorder.end(thread.at)
            thread.work, thread.at = id(work), at

    def _hold(
        self,
        work: Any,  # noqa: ANN401 - torch's
        at: tuple[int, ...],
        group: Group | None,
    ) -> None:
        held = Held(work, self._drop)
        held.at, held.group, held.launched_ns = at, group, now_ns()
        held.address = id(work)
        self.held[held.address] = held

    def _drop(self, held: Held) -> None:
        """End what nobody can wait for any more: its work is gone."""
        if self.held.get(held.address) is held:
            del self.held[held.address]
        self._end(held.at)

    def _end(self, places: tuple[int, ...]) -> None:
        at_ns = now_ns()
        for at in places:
            self.recorder.page.end(at, at_ns)

    def sweep(self) -> None:
        """End what has completed without anybody's asking."""
        completed = self._is_completed
        for address, held in list(self.held.items()):
            with contextlib.suppress(Exception):  # a broken work says so to who waits for it
                work = held()
                if work is not None and completed is not None and completed(work):
                    self.held.pop(address, None)
                    self._end(held.at)

    def _begin_wait(self, work: object) -> tuple[int, ...]:
        """Note that this thread waits for `work`; return where it is noted, if it is."""
        held = self.held.get(id(work))
        if held is None:
            return ()
        for at in held.at:
            self.recorder.wait(at)
        return held.at

    def _end_wait(self, work: object, places: tuple[int, ...]) -> None:
        self.held.pop(id(work), None)
        self._end(places)

    def _fail_wait(self, work: object, places: tuple[int, ...], error: BaseException) -> None:
        with contextlib.suppress(Exception):
            self.held.pop(id(work), None)
            for at in places:
                self.recorder.fail(at, error)

    def _noted_wait(self, original: Function, name: str) -> Function:
        begin, end, fail = self._begin_wait, self._end_wait, self._fail_wait
        thread, recorder = self.thread, self.recorder

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            if thread.work == id(work):
                thread.work, at = 0, thread.at
                try:
                    result = original(work, *args, **kwargs)
                except BaseException as error:
                    fail(work, (at,), error)
                    raise
                recorder.end(at)
                return result
            try:
                places = begin(work)
            except Exception:  # noqa: BLE001 - an error in recording is no error of the test
                places = ()
            if not places:
                return original(work, *args, **kwargs)
            try:
                result = original(work, *args, **kwargs)
            except BaseException as error:
                fail(work, places, error)
                raise
            end(work, places)
            return result

        return pose_as(original, wait, name)

    def _noted_completed(self, original: Function) -> Function:
        def is_completed(work: Any) -> Any:  # noqa: ANN401 - torch's
            result = original(work)
            held = None
            with contextlib.suppress(Exception):  # an error in recording is no error of the test
                held = self.held.get(id(work)) if result else None
            if held is not None:
                self._end_wait(work, held.at)
            return result

        return pose_as(original, is_completed, "is_completed")

    def begin_batch(self) -> None:
        """Collect what is launched from now on in this thread: one work will stand for it all."""
        self.thread.coalesced = []

    def end_batch(
        self,
        work: Any,  # noqa: ANN401 - torch's
        group: Group,
        *,
        error: BaseException | None = None,
    ) -> None:
        """Note that the batch of this thread has been launched, or has failed to be."""
        places, self.thread.coalesced = tuple(self.thread.coalesced or ()), None
        if error is not None:
            self._fail_wait(work, places, error)
        elif work is None:
            self._end(places)
        elif places:
            self._hold(work, places, group)
