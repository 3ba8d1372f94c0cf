"""What has been launched and not been waited for: torch's `Work` objects."""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass, field

from pytest_multihost.model.clock import now_ns
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.rank.recorder.torch.groups import Function, Group, Work, copy_identity

_WAITS = ("wait", "synchronize")


@dataclass(slots=True, eq=False)
class ThreadState:
    """What one thread has just launched.

    Attributes:
        work: Address of the work of its last synchronous call, which its caller waits for at once;
            0: none.
        record: That call's record.
        coalesced: Records of the calls of a coalesced batch; None: there is no batch.
    """

    work: int = 0
    record: int = 0
    coalesced: list[int] | None = None


class _Thread(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()


class AsyncWork(weakref.ref[Work]):
    """An asynchronous operation, for as long as anybody holds its work.

    It inherits because a weak reference's callback gets the reference and nothing else.

    Attributes:
        records: Its records; several for a coalesced batch.
        address: The address of its work.
        group: Its group.
        launched_ns: When the call that launched it returned.
    """

    __slots__ = ("address", "group", "launched_ns", "records")
    records: tuple[int, ...]
    address: int
    group: Group | None
    launched_ns: int


@dataclass(slots=True, eq=False)
class OpenWorks:
    """What this rank has launched.

    Attributes:
        recorder: Writes the records.
        pending: What nobody has waited for yet, by the address of its work.
    """

    recorder: Recorder
    pending: dict[int, AsyncWork] = field(default_factory=dict)
    _thread: _Thread = field(default_factory=_Thread)
    _is_completed: Function | None = None

    def wrap(self, work: type) -> None:
        """Wrap the methods of `Work` that wait."""
        self._is_completed = vars(work)["is_completed"]
        for name in _WAITS:
            setattr(work, name, self._wrap_wait(vars(work)[name], name))
        completed = self._wrap_is_completed(vars(work)["is_completed"])
        work.is_completed = completed  # type: ignore[attr-defined] # a bound class

    def launched(self, work: Work, record: int, group: Group, opts: object) -> None:
        """Record that a call has returned.

        Args:
            work: What it returned; None: it is done.
            record: Its record.
            group: Its group.
            opts: Its options, if it had any: `asyncOp` is whether its caller does not wait at once.
        """
        state = self._thread.state
        if state.coalesced is not None:
            self.recorder.page.leave(record)
            state.coalesced.append(record)
        elif work is None:
            self.recorder.end(record)
        elif getattr(opts, "asyncOp", True):
            if state.work == id(work):  # of a work that is gone without having been waited for
                state.work = 0
                self.recorder.end(state.record)
            self.recorder.page.leave(record)
            self._add(work, (record,), group)
        else:
            if state.work:
                self.recorder.end(state.record)
            state.work, state.record = id(work), record

    def _add(self, work: Work, records: tuple[int, ...], group: Group | None) -> None:
        pending = AsyncWork(work, self._remove)
        pending.records, pending.group, pending.launched_ns = records, group, now_ns()
        pending.address = address = id(work)
        self.pending[address] = pending

    def _remove(self, pending: AsyncWork) -> None:
        """End what nobody can wait for any more: its work is gone."""
        if self.pending.get(pending.address) is pending:
            del self.pending[pending.address]
        self._end(pending.records)

    def _end(self, records: tuple[int, ...]) -> None:
        at_ns = now_ns()
        for record in records:
            self.recorder.page.end(record, at_ns)

    def end_completed(self) -> None:
        """End what has completed unnoticed."""
        completed = self._is_completed
        for address, pending in list(self.pending.items()):
            with contextlib.suppress(Exception):  # a failed work raises in wait() again
                work = pending()
                if work is not None and completed is not None and completed(work):
                    self.pending.pop(address, None)
                    self._end(pending.records)

    def _begin_wait(self, work: object) -> tuple[int, ...]:
        """Record that this thread waits for `work`; return its records, if it has any."""
        pending = self.pending.get(id(work))
        if pending is None:
            return ()
        for record in pending.records:
            self.recorder.wait(record)
        return pending.records

    def _end_wait(self, work: object, records: tuple[int, ...]) -> None:
        self.pending.pop(id(work), None)
        self._end(records)

    def _fail_wait(self, work: object, records: tuple[int, ...], error: BaseException) -> None:
        with contextlib.suppress(Exception):
            self.pending.pop(id(work), None)
            for record in records:
                self.recorder.fail(record, error)

    def _wrap_wait(self, original: Function, name: str) -> Function:
        begin, end, fail = self._begin_wait, self._end_wait, self._fail_wait
        thread, end_record = self._thread, self.recorder.end

        def wait(work: Work, *args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            state = thread.state
            if state.work == id(work):
                state.work, record = 0, state.record
                try:
                    result = original(work, *args, **kwargs)
                except BaseException as error:
                    fail(work, (record,), error)
                    raise
                end_record(record)
                return result
            try:
                records = begin(work)
            except Exception:  # noqa: BLE001 - an error in recording is no error of the test
                records = ()
            if not records:
                return original(work, *args, **kwargs)
            try:
                result = original(work, *args, **kwargs)
            except BaseException as error:
                fail(work, records, error)
                raise
            end(work, records)
            return result

        return copy_identity(original, wait, name)

    def _wrap_is_completed(self, original: Function) -> Function:
        def is_completed(work: Work) -> object:
            result = original(work)
            pending = None
            with contextlib.suppress(Exception):  # an error in recording is no error of the test
                pending = self.pending.get(id(work)) if result else None
            if pending is not None:
                self._end_wait(work, pending.records)
            return result

        return copy_identity(original, is_completed, "is_completed")

    def begin_coalescing(self) -> None:
        """Collect what this thread launches from now on: one work will stand for all of it."""
        self._thread.state.coalesced = []

    def end_coalescing(
        self,
        work: Work,
        group: Group,
        *,
        error: BaseException | None = None,
    ) -> None:
        """Record that the batch of this thread has been launched, or could not be."""
        state = self._thread.state
        records, state.coalesced = tuple(state.coalesced or ()), None
        if error is not None:
            self._fail_wait(work, records, error)
        elif work is None:
            self._end(records)
        elif records:
            self._add(work, records, group)
