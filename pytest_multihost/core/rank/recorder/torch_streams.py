"""Record operations that go on after the calls that launched them have returned: those of NCCL.

An operation on a GPU makes a stream of the GPU wait, and its call returns. The thread itself waits
later, where it needs a result: in `item()`, `cpu()` or `synchronize()`. Measured with torch 2.11
and NCCL 2.28: the all_reduce that a rank never joined had long returned on the others, which stood
in `item()`.

So these operations stay open until the GPU has done them. A thread that waits for a stream waits
for the operations that the stream waits for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any

from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.rank.recorder.calls import replace_function
from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_groups import Argument, Function, Group
from pytest_multihost.core.torch_private import current_stream, is_capturing, number_of_gpu

Stream = tuple[int, int]
"""The number of a GPU, and the address of a stream there: 0 for the default one."""

_EVERY = -1
"""Stands for all streams of a GPU, in the place of an address."""

Event = Any
"""A CUDA event, which the type checker does not know: a mark in a stream."""

_MOST = 32
"""How many operations are kept open: the first and the last ones."""

_METHODS = ("item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")
"""Methods of tensors that wait for the current stream."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamOperation:
    """An operation that a stream waits for.

    Attributes:
        records: Its records and when each began; several for a coalesced batch.
        at_ns: When the stream was made to wait.
        event: The mark in the stream behind the operation.
    """

    group: Group | None
    records: Sequence[tuple[int, int]]
    at_ns: int
    stream: Stream
    event: Event


@dataclass(slots=True, eq=False)
class Streams:
    """The operations that streams of this rank's GPU wait for, in the order of their launch.

    Attributes:
        unjoined: Returns the records of operations on a GPU that no stream waits for.
        end_unjoined: Ends those of them that are complete.
        is_used: Whether the rank has a group of NCCL.
    """

    recorder: Recorder
    unjoined: Callable[[int], Sequence[int]]
    end_unjoined: Callable[[], None]
    is_used: bool = False
    _torch: Argument = None
    _launched: deque[StreamOperation] = field(default_factory=deque)
    _events: dict[int, list[Event]] = field(default_factory=dict)  # of each GPU, to be used again
    _waiting: set[int] = field(default_factory=set)

    def __iter__(self) -> Iterator[StreamOperation]:
        return iter(tuple(self._launched))

    def start(self, torch: Argument) -> None:
        """Record waits for streams from now on, because the rank has made a group of NCCL."""
        if self.is_used:
            return
        self.is_used, self._torch = True, torch

        def current(tensor: Argument, *_: object, **__: object) -> Stream | None:
            if not tensor.is_cuda:
                return None
            gpu = tensor.get_device()
            return gpu, current_stream(torch, gpu)

        def own(stream: Argument) -> Stream:
            return int(stream.device_index), int(stream.cuda_stream)

        def every(device: Argument = None) -> Stream:
            return number_of_gpu(torch, device), _EVERY

        for name in _METHODS:
            setattr(torch.Tensor, name, self._wrap(getattr(torch.Tensor, name), current))
        stream = torch.cuda.Stream
        stream.synchronize = self._wrap(stream.synchronize, own)
        replace_function(torch.cuda, "synchronize", partial(self._wrap, stream_of=every))

    def is_waiting(self, thread: int | None) -> bool:
        """Return whether a thread, by its identifier, waits for a stream."""
        return thread in self._waiting

    def join(self, group: Group | None, records: Sequence[int], gpu: int) -> bool:
        """Record that the current stream of a GPU waits for an operation there.

        Returns:
            Whether the operation is kept open.
        """
        with contextlib.suppress(Exception):  # an error in recording must not fail the test
            if not is_capturing(self._torch):
                self._end_first()
                if len(self._launched) >= _MOST:
                    self._end(self._launched[_MOST // 2])
                spare = self._events.get(gpu)
                event = spare.pop() if spare else self._torch.cuda.Event()
                current = self._torch.cuda.current_stream(gpu)
                event.record(current)
                page = self.recorder.page
                began = [(record, page.began_ns(record)) for record in records]
                stream = gpu, int(current.cuda_stream)
                self._launched.append(StreamOperation(group, began, now_ns(), stream, event))
                for record in records:
                    page.leave(record)
                    page.hand_on(record)
                return True
        return False

    def end_completed(self) -> None:
        """End the operations that the GPU has done."""
        for each in self:
            if each.event.query():
                self._end(each)

    def _end_first(self) -> None:
        """End the first operations, as far as the GPU has done them; fast."""
        while self._launched and (first := self._launched[0]).event.query():
            self._end(first)

    def _end(self, each: StreamOperation) -> None:
        if self._forget(each):
            at_ns, page = now_ns(), self.recorder.page
            for record, began_ns in each.records:
                if page.began_ns(record) == began_ns:  # no other operation has got its room
                    page.end(record, at_ns)

    def _forget(self, each: StreamOperation) -> bool:
        """Remove an operation; return whether no other thread has done so."""
        try:
            self._launched.remove(each)
        except ValueError:
            return False
        self._events.setdefault(each.stream[0], []).append(each.event)
        return True

    def _wrap(self, original: Function, stream_of: Callable[..., Stream | None]) -> Function:
        def waiting(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            try:
                stream = stream_of(*args, **kwargs)
                awaited = None if stream is None else self._wait_for(stream)
            except Exception:  # noqa: BLE001 - an error in recording must not fail the test
                awaited = None
            if awaited is None:
                return original(*args, **kwargs)
            thread = threading.get_ident()
            self._waiting.add(thread)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._fail(awaited, error)
                raise
            finally:
                self._waiting.discard(thread)
            with contextlib.suppress(Exception):  # as above
                self.end_completed()
                if stream is not None and stream[1] == _EVERY:
                    self.end_unjoined()
            return result

        return update_wrapper(waiting, original)

    def _wait_for(self, stream: Stream) -> Sequence[StreamOperation]:
        """Record that this thread waits for a stream; return the operations before it."""
        if self._launched:
            self.end_completed()
        gpu, address = stream
        among = [each for each in self if each.stream[0] == gpu]
        found = [each for each in among if address in (each.stream[1], _EVERY)]
        records = [record for each in found for record, _ in each.records]
        for record in (*records, *(self.unjoined(gpu) if address == _EVERY else ())):
            self.recorder.wait(record)
        return found

    def _fail(self, awaited: Sequence[StreamOperation], error: BaseException) -> None:
        for each in awaited:
            if self._forget(each):
                for record, _ in each.records:
                    self.recorder.fail(record, error)
