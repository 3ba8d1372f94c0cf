"""Record the collectives and transfers of torch's process groups, from launch to wait."""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import update_wrapper
from types import FrameType, ModuleType

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.model.collectives import BY_METHOD
from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.operation import OperationKind, tensor_text
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.rank.recorder.calls import replace_code
from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_groups import (
    Argument,
    Function,
    Group,
    Groups,
    ProcessGroup,
    Work,
    copy_identity,
)
from pytest_multihost.core.rank.recorder.torch_streams import Streams
from pytest_multihost.core.torch_private import END_COALESCING, START_COALESCING, TAKE_WORK

Arguments = tuple[Argument, ...]
Options = dict[str, Argument]
Describe = Callable[[Arguments, Options], tuple[int, int, int]]
"""Returns the number of the root or peer in the group, the tag, and the number of a detail text."""

_BITS = re.compile(r"^(float|bfloat|int|uint|complex)(\d+)")
_LETTERS = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
_DETAILS = 2048
_NESTED = 2


_FUNCTIONS = ("/distributed_c10d.py", "/c10d_logger.py", "/recorder/calls.py", __file__)
"""Files of the frames between a user's call and the method of `ProcessGroup`."""


@dataclass(slots=True, eq=False)
class ProcessGroupRecorder:
    """Records each call of `ProcessGroup`.

    The wrappers run at every collective of a program, thousands of times a second. So they look up
    little, and use `try` because `contextlib.suppress` takes half a microsecond.
    """

    recorder: Recorder
    groups: Groups
    works: OpenWorks
    _details: dict[object, int] = field(default_factory=dict)

    def wrap(self, process_group: type) -> None:
        """Wrap the methods that the bound class has."""
        methods = vars(process_group)
        wrapped = dict.fromkeys(("send", "recv", "recv_anysource"), self._transfer)
        wrapped |= dict.fromkeys(BY_METHOD, self._collective)
        wrapped[START_COALESCING] = self._start_coalescing
        wrapped[END_COALESCING] = self._end_coalescing
        for method in wrapped.keys() & methods.keys():
            recorded = wrapped[method](methods[method])
            setattr(process_group, method, copy_identity(methods[method], recorded))

    def wrap_backend(self, backend: type) -> None:
        """Wrap the inherited methods of a class of groups that programs make themselves.

        A `ProcessGroup` calls its backends in C++, past these methods.
        """
        wrapped = dict.fromkeys(("send", "recv", "recv_anysource"), self._transfer)
        for name, wrap in (wrapped | dict.fromkeys(BY_METHOD, self._collective)).items():
            if original := getattr(backend, name, None):
                setattr(backend, name, copy_identity(original, wrap(original)))

    def _collective(self, original: Function) -> Function:
        collective = BY_METHOD[original.__name__]
        root_at, sent = collective.root_argument, collective.sent_argument
        detail_of = self._detail

        def describe(args: Arguments, kwargs: Options) -> tuple[int, int, int]:
            root: Argument = -1  # its number in the group
            if root_at is not None:
                root = getattr(kwargs.get("opts", args[-1] if args else None), "rootRank", None)
                if root is None:
                    root = kwargs["root"] if "root" in kwargs else args[root_at]
            detail = 0 if sent is None or len(args) <= sent else detail_of(args[sent])
            return int(root), 0, detail

        return self._recorded(original, collective.name, "collective", describe)

    def _transfer(self, original: Function) -> Function:
        method, detail_of = original.__name__, self._detail
        name = method.removesuffix("_anysource")
        peer_name = "dstRank" if method == "send" else "srcRank"

        def describe(args: Arguments, kwargs: Options) -> tuple[int, int, int]:
            if method == "recv_anysource":
                peer, tag = -1, args[1]
            else:
                peer = args[1] if len(args) > 1 else kwargs[peer_name]
                tag = args[2] if len(args) > 2 else kwargs["tag"]  # noqa: PLR2004 - the third
            detail = detail_of(args[0] if args else None, f"tag={tag}")
            return int(peer), int(tag), detail

        return self._recorded(original, name, "transfer", describe)

    def _detail(self, sent: Argument, prefix: str = "") -> int:
        """Return the number of a text for a tensor, a list of tensors, or a list of lists.

        The text is `prefix`, then for example ``f32[3]`` or ``f32[3] +1``.
        """
        more = depth = 0
        while (type(sent) is list or type(sent) is tuple) and sent and depth < _NESTED:
            more, sent, depth = len(sent) - 1, sent[0], depth + 1
        try:
            key = sent.dtype, sent.shape, more, prefix
        except AttributeError:  # no tensor
            return self.recorder.page.detail(prefix)
        if number := self._details.get(key):
            return number
        dtype = str(sent.dtype).removeprefix("torch.")
        short = _BITS.sub(lambda match: _LETTERS[match[1]] + match[2], dtype)
        text = f"{prefix} {tensor_text(short, sent.shape, more=more)}".strip()
        number = self.recorder.page.detail(text)
        if len(self._details) < _DETAILS:
            self._details[key] = number
        return number

    def _recorded(
        self, original: Function, name: str, kind: OperationKind, describe: Describe
    ) -> Function:
        known, get, launched = self.groups.known, self.groups.get, self.works.launched
        recorder = self.recorder
        on_begin, begin_call, fail = recorder.on_begin, recorder.begin_call, recorder.fail
        user_source = recorder.user_source

        def recorded(pg: ProcessGroup, *args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            try:
                group = known.get(id(pg)) or get(pg)
                other, tag, detail = describe(args, kwargs)
                prepared = group.prepared.get((name, other, tag))
                call, sequence = prepared or group.prepare(name, kind, other, tag)
                source = user_source(2)
            except Exception:  # noqa: BLE001 - an error in recording must not fail the test
                return original(pg, *args, **kwargs)
            if on_begin:
                recorder.notify(name, kind, source)
            stream = None
            if recorder.has_streams:
                stream = self.works.await_stream(group, kind, other)
            gpu = _gpu_of(args[0]) if self.works.streams.is_used and args else None
            record = begin_call(call, next(sequence), detail, source)
            try:
                work = original(pg, *args, **kwargs)
            except BaseException as error:
                fail(record, error)
                raise
            try:
                opts = args[-1] if args else kwargs.get("opts")
                launched(work, record, group, opts, stream, gpu)
            except Exception:  # noqa: BLE001, S110 - as above
                pass
            return work

        return recorded

    def _start_coalescing(self, original: Function) -> Function:
        def recorded(pg: ProcessGroup, *args: object, **kwargs: object) -> object:
            result = original(pg, *args, **kwargs)
            # One work will stand for all operations that this thread launches from now on.
            self.works.thread.state.coalesced = []
            return result

        return recorded

    def _end_coalescing(self, original: Function) -> Function:
        def recorded(pg: ProcessGroup, *args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            work = failed = None
            try:
                work = original(pg, *args, **kwargs)
            except BaseException as error:
                failed = error
                raise
            finally:
                with contextlib.suppress(Exception):
                    self.works.end_coalescing(work, self.groups.get(pg), error=failed)
            return work

        return recorded


def _gpu_of(sent: Argument) -> int | None:
    """Return the number of the GPU of a tensor, or of the first one of a list or list of lists."""
    depth = 0
    while (type(sent) is list or type(sent) is tuple) and sent and depth < _NESTED:
        sent, depth = sent[0], depth + 1
    return int(sent.get_device()) if getattr(sent, "is_cuda", False) is True else None


@dataclass(slots=True, eq=False)
class ThreadState:
    """The operations that one thread launched last.

    Attributes:
        work: Address of the work of its last synchronous call, for which the caller waits at once;
            0: none.
        coalesced: Records of the calls of a coalesced batch; None: there is no batch.
        gpu: The number of the GPU on which that call, or the batch, runs; None: on none.
        is_in_batch: Whether the thread is in `batch_isend_irecv`.
    """

    work: int = 0
    record: int = 0
    group: Group | None = None
    coalesced: list[int] | None = None
    gpu: int | None = None
    is_in_batch: bool = False


class _LaunchingThread(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()


class AsyncWork(weakref.ref[Work]):
    """An asynchronous operation, as long as its work is referenced.

    It inherits because a weak reference's callback gets only the reference.

    Attributes:
        records: Its records; several for a coalesced batch.
        launched_ns: When the call that launched it returned.
        stream: Identifies the operations that run one after the other with this one; None: none.
        gpu: The number of the GPU on which it runs; None: on none.
    """

    __slots__ = ("address", "gpu", "group", "launched_ns", "records", "stream")
    records: tuple[int, ...]
    address: int
    group: Group | None
    launched_ns: int
    stream: Hashable | None
    gpu: int | None


@dataclass(slots=True, eq=False)
class OpenWorks:
    """The works that this rank has launched.

    Attributes:
        streams: The works that run on a GPU, until they have ended there.
        pending: Works for which no wait has returned yet, by address.
    """

    recorder: Recorder
    streams: Streams = field(init=False)
    pending: dict[int, AsyncWork] = field(default_factory=dict)
    thread: _LaunchingThread = field(default_factory=_LaunchingThread)
    _tests: dict[type, Function] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.streams = Streams(self.recorder, self._on_gpu, self.end_completed)

    def _on_gpu(self, gpu: int) -> list[int]:
        """Return the records of works on a GPU for which no thread waits."""
        found = [each for each in list(self.pending.values()) if each.gpu == gpu]
        return [record for each in found for record in each.records]

    def wrap(self, work: type, test: str = "is_completed") -> None:
        """Wrap the methods of `Work` or a similar class that wait, hand on, or test completion.

        Args:
            test: The method that returns whether the work is complete.
        """
        self._tests[work] = vars(work)[test]
        wrapped = dict.fromkeys(("wait", "synchronize", "block_current_stream"), self._wrap_wait)
        handing_on = dict.fromkeys(
            ("get_future", "get_future_result", "boxed"), self._wrap_handing_on
        )
        for name, wrap in (*wrapped.items(), (test, self._wrap_is_completed), *handing_on.items()):
            if original := vars(work).get(name):
                setattr(work, name, copy_identity(original, wrap(original)))

    def wrap_reducer(self, reducer: type) -> None:
        """Wrap the method of DDP's reducer that takes a work for which C++ code will wait."""
        original = vars(reducer)[TAKE_WORK]

        def take(this: object, work: Work, *args: object) -> object:
            self._hand_on(work)
            return original(this, work, *args)

        setattr(reducer, TAKE_WORK, copy_identity(original, take))

    def wrap_batch(self, module: ModuleType) -> None:
        """Wrap `batch_isend_irecv` of `torch.distributed.distributed_c10d`, in place."""

        def wrap(original: Function) -> Function:
            def batched(*args: object, **kwargs: object) -> object:
                __tracebackhide__ = True
                state = self.thread.state
                state.is_in_batch = True
                try:
                    return original(*args, **kwargs)
                finally:
                    state.is_in_batch = False

            return update_wrapper(batched, original)

        replace_code(module.batch_isend_irecv, wrap)

    def _is_completed(self, work: Work) -> bool:
        """Return whether a work is complete, by the method of its own class."""
        test = next(self._tests[each] for each in type(work).__mro__ if each in self._tests)
        return bool(test(work))

    def _is_of_library(self) -> bool:
        """Return whether an installed library, and not the user's code, launches an operation.

        Then that library may wait for the work in its own way.
        """
        frame: FrameType | None = get_frame(3)
        while frame is not None and frame.f_code.co_filename.endswith(_FUNCTIONS):
            frame = frame.f_back
        return frame is None or is_library(frame.f_code.co_filename)

    def _hand_on(self, work: Work) -> None:
        pending = self.pending.get(id(work))
        for record in pending.records if pending is not None else ():
            self.recorder.page.hand_on(record)

    def _wrap_handing_on(self, original: Function) -> Function:
        def hand_on(work: Work, *args: object, **kwargs: object) -> object:
            self._hand_on(work)
            return original(work, *args, **kwargs)

        return hand_on

    def launched(
        self,
        work: Work,
        record: int,
        group: Group | None,
        opts: object,
        stream: Hashable | None = None,
        gpu: int | None = None,
    ) -> None:
        """Record that a call has returned.

        Args:
            work: The work that it returned; None: the operation is complete.
            opts: Its options, if any. If their `asyncOp` is False, the caller waits at once.
            stream: Its stream; see `await_stream`.
            gpu: The number of the GPU on which the operation runs; None: on none.
        """
        state = self.thread.state
        if state.coalesced is not None:
            self.recorder.page.leave(record)
            state.coalesced.append(record)
            state.gpu = gpu
        elif work is None:
            if gpu is None or not self.streams.join(group, (record,), gpu):
                self.recorder.end(record)
        elif getattr(opts, "asyncOp", True):
            if state.work == id(work):  # an earlier work at this address is gone without a wait
                state.work = 0
                self.recorder.end(state.record)
            self.recorder.page.leave(record)
            self._add(work, (record,), group, gpu).stream = stream
            if self._is_of_library():
                self.recorder.page.hand_on(record)
        else:
            if state.work:
                self.recorder.end(state.record)
            state.work, state.record = id(work), record
            state.group, state.gpu = group, gpu

    def await_stream(self, group: Group, kind: OperationKind, other: int) -> Hashable | None:
        """Wait for the earlier operations of this rank in the stream of an operation.

        Args:
            kind: Collectives share one stream; transfers have one stream for each peer.
            other: Number of the peer in the group.

        Returns:
            The stream; None if the operation has none.
        """
        if group.is_for_cpu or self.thread.state.is_in_batch:
            return None
        stream = kind if kind == "collective" else (group.key, other)
        before = [each for each in list(self.pending.values()) if each.stream == stream]
        for work in (pending() for pending in before):
            if work is not None:
                work.wait()
        return stream

    def _add(
        self, work: Work, records: tuple[int, ...], group: Group | None, gpu: int | None
    ) -> AsyncWork:
        pending = AsyncWork(work, self._remove)
        pending.records, pending.group, pending.launched_ns = records, group, now_ns()
        pending.address = address = id(work)
        pending.stream, pending.gpu = None, gpu
        self.pending[address] = pending
        return pending

    def wait_for_all(self) -> list[AsyncWork]:
        """Record that this thread waits for all works that no thread waits for; return these."""
        self.end_completed()
        is_awaited = self.recorder.page.is_awaited
        found = [e for e in list(self.pending.values()) if not any(map(is_awaited, e.records))]
        for record in (record for each in found for record in each.records):
            self.recorder.wait(record)
        return found

    def leave(self, awaited: Iterable[AsyncWork]) -> None:
        """Record that no thread waits any more for those of the works that have not ended."""
        for each in awaited:
            if self.pending.get(each.address) is each:
                for record in each.records:
                    self.recorder.page.leave(record)

    def _remove(self, pending: AsyncWork) -> None:
        """End the operations of a work that is gone, for which no thread can wait any more.

        If they have ended already, other operations may have their room.
        """
        if self.pending.get(pending.address) is pending:
            del self.pending[pending.address]
            self._end(pending.records)

    def _end(self, records: tuple[int, ...]) -> None:
        at_ns = now_ns()
        for record in records:
            self.recorder.page.end(record, at_ns)

    def _end_noticed(self, records: tuple[int, ...]) -> None:
        """End operations known to be complete, so that later waits for them are not recorded."""
        for record in records:
            self.recorder.page.hand_on(record)
        self._end(records)

    def end_completed(self) -> None:
        """End the operations of works that have completed since the last check."""
        for address, pending in list(self.pending.items()):
            with contextlib.suppress(Exception):  # a failed work raises in wait() again
                work = pending()
                if work is not None and self._is_completed(work):
                    self.pending.pop(address, None)
                    self._end_noticed(pending.records)

    def _fail_wait(self, work: object, records: tuple[int, ...], error: BaseException) -> None:
        with contextlib.suppress(Exception):
            self.pending.pop(id(work), None)
            for record in records:
                self.recorder.fail(record, error)

    def _wrap_wait(self, original: Function) -> Function:
        fail, pending_of, forget = self._fail_wait, self.pending.get, self.pending.pop
        thread, wait_for, end = self.thread, self.recorder.wait, self.recorder.page.end
        join = self.streams.join

        def wait(work: Work, *args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            records: tuple[int, ...] = ()
            group = gpu = None
            state = thread.state
            if state.work == id(work):
                state.work, records = 0, (state.record,)
                group, gpu = state.group, state.gpu
            elif (pending := pending_of(id(work))) is not None:
                records, group, gpu = pending.records, pending.group, pending.gpu
                for record in records:
                    wait_for(record)
            try:
                result = original(work, *args, **kwargs)
            except BaseException as error:
                fail(work, records, error)
                raise
            if records:
                forget(id(work), None)
                if gpu is not None and join(group, records, gpu):
                    return result
                at_ns = now_ns()
                for record in records:
                    end(record, at_ns)
            return result

        return wait

    def _wrap_is_completed(self, original: Function) -> Function:
        def is_completed(work: Work) -> object:
            result = original(work)
            pending = self.pending.get(id(work)) if result else None
            if pending is not None:
                self.pending.pop(id(work), None)
                self._end_noticed(pending.records)
            return result

        return is_completed

    def end_coalescing(
        self, work: Work, group: Group, *, error: BaseException | None = None
    ) -> None:
        """Record that the batch of this thread has been launched, or that this failed."""
        state = self.thread.state
        records, state.coalesced = tuple(state.coalesced or ()), None
        gpu, state.gpu = state.gpu, None
        if error is not None:
            self._fail_wait(work, records, error)
        elif work is None:
            if gpu is None or not self.streams.join(group, records, gpu):
                self._end_noticed(records)
        elif records:
            self._add(work, records, group, gpu)
