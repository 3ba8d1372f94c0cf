"""Operations that stay open until a GPU has done them, on a GPU that does what a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_streams import Streams
from pytest_multihost.core.slots import SlotPage, read_slots, slots_path
from pytest_multihost.testing import Operation

KEPT = 32


@dataclass
class ManualGpu:
    """A GPU with two streams, and the parts of torch by which a program uses it.

    Attributes:
        stream: The current stream.
        done: How many marks of each stream the GPU has reached.
        marked: How many marks each stream has.
        is_capturing: Whether the program records a graph.
        of_tensors: The number of the GPU on which tensors are; the current one is 0.
        while_waiting: Called while a thread waits for the GPU.
    """

    stream: int = 0
    done: dict[int, int] = field(default_factory=lambda: {0: 0, 7: 0})
    marked: dict[int, int] = field(default_factory=lambda: {0: 0, 7: 0})
    is_capturing: bool = False
    of_tensors: int = 0
    while_waiting: Callable[[], None] = lambda: None

    @property
    def torch(self) -> Any:  # noqa: ANN401 - stands for a module that mypy does not see
        gpu = self

        class Event:
            gpu: object = None

            def record(self, stream: Any) -> None:  # noqa: ANN401 - a stream of the module
                assert self.gpu in (None, stream.gpu), (
                    "it belongs to the GPU that recorded it first"
                )
                self.gpu = stream.gpu
                gpu.marked[gpu.stream] += 1
                self.place = gpu.stream, gpu.marked[gpu.stream]

            def query(self) -> bool:
                assert not gpu.is_capturing
                stream, number = self.place
                return number <= gpu.done[stream]

        class Tensor:
            is_cuda = True

            def get_device(self) -> int:
                return gpu.of_tensors

            def item(self) -> float:
                gpu.while_waiting()
                return 1.0

            tolist = cpu = nonzero = __bool__ = __int__ = __float__ = __index__ = item

        class Stream:
            device_index, cuda_stream = 0, 7

            def synchronize(self) -> None:
                gpu.while_waiting()

        def synchronize(device: int | None = None) -> None:
            gpu.while_waiting()

        private = SimpleNamespace(
            _cuda_getDevice=lambda: 0,
            _cuda_getCurrentRawStream=lambda _: gpu.stream,
            _cuda_isCurrentStreamCapturing=lambda: gpu.is_capturing,
        )
        cuda = SimpleNamespace(Event=Event, Stream=Stream, synchronize=synchronize)
        cuda._get_device_index = lambda device, optional: device
        cuda.current_stream = lambda at: SimpleNamespace(cuda_stream=gpu.stream, gpu=at)
        return SimpleNamespace(Tensor=Tensor, cuda=cuda, _C=private)


class Rank:
    """A rank that has a group of NCCL."""

    def __init__(self, folder: Path) -> None:
        self.gpu, self.unjoined = ManualGpu(), list[int]()
        self.recorder = Recorder(SlotPage.create(slots_path(folder, 0)), 0, 2)
        self.streams = Streams(self.recorder, lambda _: self.unjoined, self.unjoined.clear)
        self.torch = self.gpu.torch
        self.streams.start(self.torch)

    def launch(self, gpu: int = 0) -> int:
        """Launch an all_reduce whose call has returned."""
        record = self.recorder.begin("all_reduce", "collective", (0, 1))
        self.kept = self.streams.join(None, (record,), gpu)
        if not self.kept:
            self.recorder.end(record)
        return record

    @property
    def open(self) -> list[Operation]:
        """The operations that are open, in order."""
        return list(read_slots(self.recorder.page.path, rank=0).open)

    @property
    def awaited(self) -> list[int]:
        """The numbers of the operations that a thread waits for."""
        return [each.sequence for each in self.open if each.waited_s is not None]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    """Return a rank whose GPU does nothing yet."""
    return Rank(tmp_path)


def test_an_operation_stays_open_until_the_gpu_has_done_it(rank: Rank) -> None:
    """Its call has long returned, and no thread waits for it."""
    rank.launch()
    assert ([each.sequence for each in rank.open], rank.awaited) == ([1], [])
    rank.gpu.done[0] = 1
    rank.streams.end_completed()
    assert rank.open == []


def test_a_mark_is_used_again_on_its_own_gpu(rank: Rank) -> None:
    """Another GPU refuses it, and the operation would seem to have ended."""
    rank.launch(0)
    rank.gpu.done[0] = 1
    rank.launch(1)
    assert rank.kept
    rank.launch(0)
    assert rank.kept


def test_a_thread_that_needs_a_value_waits_for_what_its_stream_waits_for(rank: Rank) -> None:
    """Operations of another stream may take as long as they like."""
    rank.launch()
    rank.gpu.stream = 7
    rank.launch()
    rank.gpu.stream, seen = 0, []
    rank.gpu.while_waiting = lambda: seen.append(rank.awaited)
    rank.torch.Tensor().item()
    rank.torch.cuda.Stream().synchronize()
    rank.torch.cuda.synchronize()
    assert seen == [[1], [1, 2], [1, 2]]  # a wait that has ended by itself changes nothing


def test_a_wait_for_another_gpu_is_none_for_the_operations_of_this_one(rank: Rank) -> None:
    """The default streams of all GPUs have the same address."""
    rank.launch()
    seen: list[list[int]] = []
    rank.gpu.while_waiting = lambda: seen.append(rank.awaited)
    rank.gpu.of_tensors = 1
    rank.torch.Tensor().item()
    rank.torch.cuda.synchronize(1)
    assert seen == [[], []]


def test_a_wait_for_the_whole_gpu_is_one_for_operations_that_no_stream_waits_for(
    rank: Rank,
) -> None:
    """An asynchronous one whose work nobody has waited for."""
    record = rank.recorder.begin("all_reduce", "collective", (0, 1))
    rank.recorder.page.leave(record)
    rank.unjoined.append(record)
    seen: list[list[int]] = []
    rank.gpu.while_waiting = lambda: seen.append(rank.awaited)
    rank.torch.Tensor().item()
    rank.torch.cuda.synchronize()
    assert seen == [[], [1]]
    assert rank.unjoined == []


def test_what_the_gpu_has_done_is_not_waited_for(rank: Rank) -> None:
    """The first of three operations has ended before the thread needs a value."""
    for _ in range(3):
        rank.launch()
    rank.gpu.done[0] = 1
    seen: list[list[int]] = []
    rank.gpu.while_waiting = lambda: seen.append(rank.awaited)
    rank.torch.Tensor().item()
    assert seen == [[2, 3]]


def test_the_first_and_the_last_operations_are_kept(rank: Rank) -> None:
    """The first may be the one that a member has not entered, the last is where the rank is."""
    for _ in range(100):
        rank.launch()
    numbers = [each.sequence for each in rank.open]
    assert len(numbers) == KEPT
    assert (numbers[:16], numbers[-15:]) == (list(range(1, 17)), list(range(86, 101)))


def test_a_graph_that_is_recorded_is_left_alone(rank: Rank) -> None:
    """To ask for an event would break it."""
    rank.launch()
    rank.gpu.is_capturing = True
    rank.launch()
    assert not rank.kept
    assert rank.gpu.marked[0] == 1


def test_a_record_that_another_operation_has_got_is_not_ended(rank: Rank) -> None:
    """The GPU is asked later than the room is given to somebody else."""
    record = rank.launch()
    rank.recorder.page.end(record, 1)
    for _ in range(1024):  # all rooms, once around
        again = rank.recorder.begin("all_reduce", "collective", (0, 1))
        if again == record:
            break
        rank.recorder.end(again)
    assert again == record
    rank.gpu.done[0] = 1
    rank.streams.end_completed()
    assert len(rank.open) == 1


def test_an_error_of_the_wait_is_one_of_the_operations(rank: Rank) -> None:
    """NCCL's errors come where a value is needed."""
    rank.launch()

    def abort() -> None:
        raise RuntimeError("NCCL communicator was aborted")

    rank.gpu.while_waiting = abort
    with pytest.raises(RuntimeError, match="aborted"):
        rank.torch.Tensor().item()
    [found] = read_slots(rank.recorder.page.path, rank=0).recent
    assert (found.failed, found.error) == (True, "RuntimeError: NCCL communicator was aborted")


def test_a_tensor_of_the_cpu_waits_for_nothing(rank: Rank) -> None:
    """Its value is there."""
    rank.launch()
    rank.torch.Tensor.is_cuda = False
    rank.gpu.while_waiting = lambda: pytest.fail("marked as waiting") if rank.awaited else None
    assert rank.torch.Tensor().item() == 1.0
