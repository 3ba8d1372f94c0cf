"""The recorder's hot path in C: it writes what Python would write, and gets in nobody's way."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, get_args

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_multihost import World
from pytest_multihost.model.operation import Operation
from pytest_multihost.rank.recorder.fast import library
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.rank.recorder.torch import Way, install
from pytest_multihost.watch.slots import RECORDS, SlotPage, read_slots, slots_path

pytestmark = [
    pytest.mark.multihost(ranks=1, backend="none", timeout=60),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # names that torch is about to change
    pytest.mark.skipif(library.loaded() is None, reason=library.why_missing()),
]

OPTIONS = [value for name, value in vars(distributed_c10d).items() if name.endswith("Options")]
OWNERS = [distributed_c10d.ProcessGroup, dist.Work, dist.Store, distributed_c10d, *OPTIONS]


def peeled(value: Any) -> Any:  # noqa: ANN401 - of any kind
    """Return what our wrappers hold."""
    while (
        "pytest_multihost" in value.__code__.co_filename
        if type(value) is FunctionType
        else "pytest_multihost" in type(value).__module__
    ):
        value = value.__wrapped__
    return value


@contextlib.contextmanager
def recorded(way: Way, scratch: Path) -> Iterator[Recorder]:
    """Record in one way alone, and undo it."""
    for owner in OWNERS:
        for name, value in list(vars(owner).items()):
            if peeled(value) is not value:
                setattr(owner, name, peeled(value))
    scratch.mkdir()
    recorder = Recorder(SlotPage.create(slots_path(scratch, 0)), 0, 1)
    install(recorder, way)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield recorder
    finally:
        dist.destroy_process_group()


@pytest.fixture
def in_c(world: World, tmp_path: Path) -> Iterator[Recorder]:
    """The recorder in C, and a group of one."""
    with recorded("in C", tmp_path / "in C") as recorder:
        yield recorder


def records(recorder: Recorder) -> list[Operation]:
    """Return all that is noted, oldest first."""
    return list(read_slots(recorder.page.path, rank=0).recent)


class Derived(dist.ProcessGroup):
    """C++ asks it for its methods; it has one of its own."""

    def broadcast(self, *args: Any, **kwargs: Any) -> str:  # noqa: ANN401 - torch's
        return f"my own, {len(args)}, {sorted(kwargs)}"


def twice_in_a_line(tensor: torch.Tensor) -> None:
    """Two calls are told apart by their instruction, not by their line."""
    dist.all_reduce(tensor), dist.all_reduce(tensor)


def outcome(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - of any kind
    """Return what a call returns or raises, for comparing."""
    try:
        value = call()
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return type(error).__name__, str(error)[:60]
    return type(value).__name__ if isinstance(value, dist.Work) else value


def play() -> list[Any]:
    """Call what there is to call, in every manner, and return what comes of it."""
    return [outcome(call) for call in (*functions(), *methods(), *unusual())]


def functions() -> Iterator[Callable[[], Any]]:
    """Yield calls as most programs make them."""
    one = torch.ones(3)
    for _ in range(3):
        yield lambda: dist.all_reduce(one)
        yield lambda: dist.all_reduce(one, async_op=True).wait()
        yield lambda: twice_in_a_line(one)
    for shape in ((), (0,), (2, 3), (1, 2, 1, 2, 1, 2, 1), (3,)):
        for dtype in (torch.float64, torch.bool, torch.bfloat16, torch.complex64, torch.int8):
            sent = torch.ones(shape).to(dtype)
            yield lambda sent=sent: dist.broadcast(sent, 0)
    yield lambda: dist.all_gather([torch.zeros(3)], one)
    yield lambda: dist.reduce_scatter(one, [torch.ones(3)])
    yield lambda: dist.all_reduce_coalesced([one, torch.ones(2)])
    yield lambda: dist.gather(one, [torch.zeros(3)], 0)
    yield lambda: dist.scatter(one, [torch.ones(3)], 0)
    yield lambda: dist.reduce(one, 0, async_op=True).wait()
    yield dist.barrier


def methods() -> Iterator[Callable[[], Any]]:
    """Yield calls of the bound class, also those that torch refuses."""
    group, one, endless = dist.group.WORLD, torch.ones(3), []
    endless.append(endless)
    yield lambda: group.barrier(opts=dist.BarrierOptions()).wait()
    yield lambda: group.barrier().wait(timeout=timedelta(seconds=9))
    yield lambda: group.allreduce([one]).synchronize()
    yield lambda: group.allreduce(tensors=[one]).wait()
    yield lambda: group.allreduce([one], op=dist.ReduceOp.MAX).wait()
    yield lambda: group.broadcast(one, 0).wait()
    yield lambda: group.broadcast(one, root=0).wait()
    yield lambda: group.allreduce("no tensors")
    yield lambda: group.allreduce([])
    yield lambda: group.allreduce(endless)
    yield group.allreduce  # without arguments
    yield lambda: dist.broadcast(one, 9)
    yield lambda: dist.broadcast(one.to_sparse(), 0)
    yield lambda: group.send([one], 0, 3).wait(timedelta(milliseconds=1))
    yield lambda: group.recv([one], 0, tag=3).wait(timedelta(milliseconds=1))


def unusual() -> Iterator[Callable[[], Any]]:
    """Yield calls with tensors, works, threads and groups as few programs have them."""
    one, changing, derived = torch.ones(3), torch.ones(4), Derived(0, 1)
    yield lambda: dist.all_reduce(changing)
    changing.resize_(2, 2)
    yield lambda: dist.all_reduce(changing)
    changing.data = torch.ones(5, dtype=torch.int64)
    yield lambda: dist.all_reduce(changing)
    yield lambda: dist.all_reduce(torch.nn.Parameter(one))
    yield lambda: dist.all_reduce(one.clone().requires_grad_())
    launched = [dist.all_reduce(one, async_op=True) for _ in range(3)]
    del launched[1]
    yield lambda: [(each.wait(), each.is_completed()) for each in launched]
    yield lambda: dist.all_reduce(one, async_op=True)  # and forgotten
    yield lambda: in_a_thread(lambda: dist.all_reduce(one))
    yield lambda: derived.broadcast(one, opts=None)
    yield lambda: derived.allreduce([one])
    yield derived.barrier


def in_a_thread(call: Callable[[], Any]) -> None:
    """Call it in a thread that ends with it."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def told(recorder: Recorder) -> list[Operation]:
    """Return what is noted, with times as mere facts, and threads as main or other."""
    return [
        replace(
            each,
            since_s=0.0,
            ended_s=None if each.ended_s is None else each.ended_s > each.since_s,
            waited_s=each.waited_s and each.waited_s == each.since_s,
            thread=each.thread == os.getpid(),
            error=each.error[:40],  # further on stand ports and addresses
        )
        for each in records(recorder)
    ]


def test_both_ways_write_the_same(world: World, tmp_path: Path) -> None:
    """And return and raise the same: whatever is called, in whatever manner."""
    written, returned, entered = {}, {}, {}
    for way in get_args(Way):
        with recorded(way, tmp_path / way) as recorder:
            returned[way] = play()
            written[way] = told(recorder)
            entered[way] = dict(read_slots(recorder.page.path, rank=0).entered)
    assert returned["in C"] == returned["in Python"]
    assert written["in C"] == written["in Python"]
    assert entered["in C"] == entered["in Python"]
    assert len(written["in C"]) > 50
    assert all(each.frame and each.frame.file == __file__ for each in written["in C"][1:])


def test_common_calls_need_no_python(in_c: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once line, group and shape are known, what notes in Python is not called."""

    def calls() -> None:
        for _ in range(2):
            dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(3), async_op=True).wait()
            dist.broadcast(torch.ones(3), 0)
            dist.barrier()

    calls()
    before = len(records(in_c))
    for method in ("note", "wait", "end", "_where", "_find"):
        monkeypatch.setattr(Recorder, method, lambda *_, **__: pytest.fail("in Python"))
    calls()
    after = records(in_c)
    assert len(after) == before + 8
    assert not [each for each in after if each.is_open]
    assert [each.frame.line for each in after[before:] if each.frame] == [
        each.frame.line for each in after[before - 8 : before] if each.frame
    ]


def test_who_listens_is_told_and_may_object(in_c: Recorder) -> None:
    """Before anything is noted; and no more when it has left."""
    dist.all_reduce(torch.ones(3))
    heard = []
    in_c.on_begin.append(lambda name, kind: heard.append((name, kind)))
    dist.all_reduce(torch.ones(3))
    in_c.on_begin.clear()
    dist.all_reduce(torch.ones(3))
    assert heard == [("all_reduce", "collective")]
    assert [each.sequence for each in records(in_c) if each.name == "all_reduce"] == [1, 2, 3]


def test_a_batch_ends_with_its_work(in_c: Recorder) -> None:
    """What is launched in it has no work of its own."""
    works = _works_of(distributed_c10d.ProcessGroup.allreduce)
    works.begin_batch()
    dist.all_reduce(torch.ones(3), async_op=True)
    (open_one,) = (each for each in records(in_c) if each.is_open)
    assert open_one.waited_s is None
    works.end_batch(None, None)
    assert not [each for each in records(in_c) if each.is_open]


def _works_of(wrapped: Any) -> Any:  # noqa: ANN401 - of any kind
    """Return the Works that a wrapper leads to."""
    (core,) = (each for each in gc.get_referents(wrapped) if type(each).__name__ == "Core")
    return next(each for each in gc.get_referents(core) if type(each).__name__ == "Works")


def test_a_page_that_is_left_is_not_written(in_c: Recorder) -> None:
    """As a forked child leaves it."""
    dist.all_reduce(torch.ones(3))
    before = in_c.page.path.read_bytes()
    in_c.page.forget()
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    assert in_c.page.path.read_bytes() == before


def test_a_page_can_be_opened_after_the_calls_are_wrapped(in_c: Recorder, tmp_path: Path) -> None:
    """As a rank does that was forked from a server; what it knows, it knows."""
    dist.all_reduce(torch.ones(3))
    in_c.enter(tmp_path / "opened", 0, 1)
    dist.all_reduce(torch.ones(3))
    (only,) = records(in_c)
    assert (only.name, only.sequence, only.detail, only.group) == ("all_reduce", 2, "f32[3]", (0,))


def test_a_full_page_is_noted_nowhere(in_c: Recorder) -> None:
    """Open operations are never overwritten."""
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(RECORDS + 5)]
    assert len([each for each in records(in_c) if each.is_open]) == RECORDS
    for work in works:
        work.wait()
    dist.barrier()
    assert [each.name for each in records(in_c)][-1] == "barrier"
    assert not [each for each in records(in_c) if each.is_open]


def test_nothing_is_kept_alive(in_c: Recorder) -> None:
    """Not arguments, results, options, errors; and counts of references stay."""
    group, tensor, options = dist.group.WORLD, torch.ones(3), dist.AllreduceOptions()
    tensors = [tensor]

    def calls() -> None:
        dist.all_reduce(tensor)
        group.allreduce(tensors, options).wait()
        dist.all_reduce(tensor, async_op=True).wait()
        with contextlib.suppress(TypeError):
            group.allreduce(tensors, 7, 8)
        dist.barrier()

    def counts() -> list[int]:
        gc.collect()
        held = (group, tensor, options, tensors, torch.float32, None, True, dist.all_reduce)
        return [*map(sys.getrefcount, held[:5]), len(gc.get_objects())]

    calls()
    calls()
    before = counts()
    for _ in range(200):
        calls()
    after = counts()
    assert after[:5] == before[:5]
    assert abs(after[5] - before[5]) < 50
    work = dist.all_reduce(tensor, async_op=True)
    gone = weakref.ref(work)
    del work
    assert gone() is None
    assert not [each for each in records(in_c) if each.is_open]


def test_an_exception_has_no_frame_of_ours(in_c: Recorder) -> None:
    """The traceback leads from the user to torch."""
    with pytest.raises(TypeError) as raised:
        dist.group.WORLD.allreduce("no tensors")
    assert {str(entry.path) for entry in raised.traceback} == {__file__}
    last = records(in_c)[-1]
    assert last.failed
    assert last.error.startswith("TypeError: allreduce(): incompatible function arguments")


class Busy(torch.Tensor):
    """Asking it anything runs what stands in `meanwhile`, as a subclass of the user's may."""

    meanwhile: ClassVar[list[Callable[[], Any]]] = []

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's
        meanwhile, cls.meanwhile = cls.meanwhile, []
        for each in meanwhile:
            each()
        return super().__torch_function__(*args, **kwargs)


def test_what_runs_while_a_tensor_is_asked_changes_nothing(in_c: Recorder) -> None:
    """A call is noted where it was made, whatever else has been called in between."""
    world, sent = dist.group.WORLD, [torch.ones(3).as_subclass(Busy)]
    others = [dist.new_group([0]) for _ in range(40)]
    for meanwhile in ([], [], others):
        Busy.meanwhile = [lambda it=it: it.allreduce([torch.ones(3)]).wait() for it in meanwhile]
        world.allreduce(sent).wait()
    noted = [each for each in records(in_c) if each.name == "all_reduce"]
    assert [each.ordinal for each in noted] == [0, 0, *range(1, 41), 0]
    assert (noted[-1].sequence, noted[-1].detail) == (3, "f32[3]")


def test_more_lines_than_are_remembered_cost_no_memory(in_c: Recorder) -> None:
    """What is remembered of a line in Python is not remembered again."""
    lines = "def many(dist):\n" + "    dist.barrier()\n" * 600
    made: dict[str, Any] = {}
    exec(compile(lines, __file__, "exec"), made)  # noqa: S102 - nobody writes 600 lines
    made["many"](dist)
    before = len(in_c._codes)
    made["many"](dist)
    assert len(in_c._codes) == before
    assert [each.frame.line for each in records(in_c)[-3:] if each.frame] == [599, 600, 601]


def test_an_interruption_is_the_users(in_c: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of signals runs wherever Python does, also while it looks for the line."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    work = dist.group.WORLD.allreduce([torch.ones(3)])
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "_find", interrupted)
        with pytest.raises(KeyboardInterrupt):
            work.wait()
        with pytest.raises(KeyboardInterrupt):
            dist.group.WORLD.allreduce([torch.ones(3)])
    Busy.meanwhile = [interrupted]
    with pytest.raises(KeyboardInterrupt):
        dist.group.WORLD.allreduce([torch.ones(3).as_subclass(Busy)])
    work.wait()
    assert not [each for each in records(in_c) if each.is_open]


def test_a_tensor_without_storage_is_met_once(in_c: Recorder) -> None:
    """To say that it cannot be read takes torch a millisecond; from then on tensors are asked."""
    core = next(
        each
        for each in gc.get_referents(distributed_c10d.ProcessGroup.allreduce)
        if type(each).__name__ == "Core"
    )
    dist.all_reduce(torch.ones(3))
    assert torch.Tensor in gc.get_referents(core)
    outcome(lambda: dist.all_reduce(torch.ones(3).to_sparse()))
    assert torch.Tensor not in gc.get_referents(core)
    dist.all_reduce(torch.ones(4))
    assert [each.detail for each in records(in_c)][-2:] == ["f32[3]", "f32[4]"]


@pytest.mark.parametrize("way", get_args(Way))
def test_a_work_is_not_taken_for_one_that_is_gone(world: World, tmp_path: Path, way: Way) -> None:
    """Nobody waited for that one, and the next has its address."""
    with recorded(way, tmp_path / "records") as recorder:
        options = dist.AllreduceOptions()
        options.asyncOp = False
        group, sent = dist.group.WORLD, [torch.ones(3)]
        address = id(group.allreduce(sent, options))
        work = group.allreduce(sent)
        assert id(work) == address
        work.wait()
        assert not [each for each in records(recorder) if each.is_open]


@pytest.mark.parametrize("way", get_args(Way))
def test_each_of_many_works_ends_once(world: World, tmp_path: Path, way: Way) -> None:
    """Waited for, found to be completed, or let go; there is not room for all of them in C."""
    with recorded(way, tmp_path / "records") as recorder:
        works = {n: dist.all_reduce(torch.ones(n % 7), async_op=True) for n in range(500)}
        assert sum(each.is_open for each in records(recorder)) == len(works)
        for left, end in enumerate((id, wait, poll, wait_in_a_thread)):
            for number in range(left, 500, 5):
                end(works.pop(number))
        assert sum(each.is_open for each in records(recorder)) == len(works) == 100
        for work in works.values():
            work.wait()
        assert not any(each.is_open for each in records(recorder))


def wait(work: Any) -> None:  # noqa: ANN401 - torch's
    """Wait for a work."""
    work.wait()


def wait_in_a_thread(work: Any) -> None:  # noqa: ANN401 - torch's
    """Wait for a work that another thread has launched."""
    in_a_thread(work.wait)


def poll(work: Any) -> None:  # noqa: ANN401 - torch's
    """Ask a work until it is completed."""
    while not work.is_completed():
        time.sleep(0.001)


def test_an_exception_outlives_the_works_that_go_with_it(in_c: Recorder) -> None:
    """A frame that is left by one lets go of what it has launched."""

    def fails() -> None:
        held = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
        raise KeyError(len(held))

    with pytest.raises(KeyError, match="3"):
        fails()
    gc.collect()
    assert not any(each.is_open for each in records(in_c))


def test_what_stands_for_a_method_is_copied_as_a_function_is(in_c: Recorder) -> None:
    """As itself; and it says the same of itself as torch's."""
    ours = distributed_c10d.ProcessGroup.allreduce
    assert copy.copy(ours) is copy.deepcopy(ours) is ours
    names = ("__doc__", "__module__", "__name__", "__qualname__")
    assert [getattr(ours, name) for name in names] == [
        getattr(ours.__wrapped__, name) for name in names
    ]


def test_options_stay_as_torch_has_them(in_c: Recorder) -> None:
    """Their fields are properties, and none is kept after its call."""
    fields = [vars(each)[name] for each in OPTIONS for name in ("asyncOp", "rootRank")
              if name in vars(each)]  # fmt: skip
    assert fields
    assert all(isinstance(each, property) for each in fields)
    options = dist.AllreduceOptions()
    options.asyncOp = False
    assert not options.asyncOp
    with pytest.raises(TypeError):
        options.asyncOp = "neither"
    assert not options.asyncOp
    for listener in ([], [lambda name, kind: None]):  # the second is heard in Python alone
        in_c.on_begin[:] = listener
        kept = weakref.ref(options)
        dist.group.WORLD.allreduce([torch.ones(3)], options).wait()
        del options
        assert kept() is None
        options = dist.AllreduceOptions()
        options.asyncOp = False


def test_what_options_have_been_set_to_is_said_of_them_alone(in_c: Recorder) -> None:
    """Another thread's and those of another call say for themselves whether their caller waits."""
    sync, later = dist.AllreduceOptions(), dist.AllreduceOptions()
    later.asyncOp, sync.asyncOp = True, False
    work = dist.group.WORLD.allreduce([torch.ones(3)], later)
    assert records(in_c)[-1].waited_s is None
    thread = threading.Thread(target=lambda: setattr(sync, "asyncOp", True))
    thread.start()
    thread.join()
    work.wait()
    work = dist.group.WORLD.allreduce([torch.ones(3)], sync)
    assert records(in_c)[-1].waited_s is None
    work.wait()


def test_a_group_of_the_same_address_is_another(in_c: Recorder) -> None:
    """What is remembered of a group goes with it."""
    for number in range(1, 6):
        group = dist.new_group([0])
        dist.all_reduce(torch.ones(3), group=group)
        assert (records(in_c)[-1].ordinal, records(in_c)[-1].sequence) == (number, 1)
        dist.destroy_process_group(group)
        del group
        gc.collect()
