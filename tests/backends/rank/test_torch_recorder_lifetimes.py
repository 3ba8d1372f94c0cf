"""What the recorder for torch holds and lets go: works, groups, options, tensors, pages."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_multihost import World
from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch import install
from pytest_multihost.core.slots import RECORDS, SlotPage, read_slots, slots_path
from pytest_multihost.testing import Operation

pytestmark = [
    pytest.mark.multihost(ranks=1, backend="none", timeout=60),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # names that torch is about to change
]

OPTIONS = [value for name, value in vars(distributed_c10d).items() if name.endswith("Options")]
OWNERS = [distributed_c10d.ProcessGroup, dist.Work, dist.Store, distributed_c10d]


def peeled(value: Any) -> Any:  # noqa: ANN401 - of any kind
    """Return what our wrappers hold."""
    while (
        "pytest_multihost" in value.__code__.co_filename
        if type(value) is FunctionType
        else "pytest_multihost" in type(value).__module__
    ):
        value = value.__wrapped__
    return value


@pytest.fixture
def recorder(world: World, tmp_path: Path) -> Iterator[Recorder]:
    """A recorder that alone records this rank, and a group of one."""
    for owner in OWNERS:
        for name, value in list(vars(owner).items()):
            if peeled(value) is not value:
                setattr(owner, name, peeled(value))
    recorder = Recorder(SlotPage.create(slots_path(tmp_path, 0)), 0, 1)
    install(recorder)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield recorder
    dist.destroy_process_group()


def records(recorder: Recorder) -> list[Operation]:
    """Return all that is noted, oldest first."""
    return list(read_slots(recorder.page.path, rank=0).recent)


def in_a_thread(call: Callable[[], Any]) -> None:
    """Call it in a thread that ends with it."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_page_that_is_left_is_not_written(recorder: Recorder) -> None:
    """As a forked child leaves it."""
    dist.all_reduce(torch.ones(3))
    before = recorder.page.path.read_bytes()
    recorder.page.forget()
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    assert recorder.page.path.read_bytes() == before


def test_a_page_can_be_opened_after_calls_are_wrapped(recorder: Recorder, tmp_path: Path) -> None:
    """As a rank does that was forked from a server; what it knows, it knows."""
    dist.all_reduce(torch.ones(3))
    recorder.open(tmp_path / "opened", 0, 1)
    dist.all_reduce(torch.ones(3))
    (only,) = records(recorder)
    assert (only.name, only.sequence, only.detail, only.group) == ("all_reduce", 2, "f32[3]", (0,))


def test_a_full_page_is_noted_nowhere(recorder: Recorder) -> None:
    """Open operations are never overwritten."""
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(RECORDS + 5)]
    assert len([each for each in records(recorder) if each.is_open]) == RECORDS
    for work in works:
        work.wait()
    dist.barrier()
    assert [each.name for each in records(recorder)][-1] == "barrier"
    assert not [each for each in records(recorder) if each.is_open]


def test_nothing_is_kept_alive(recorder: Recorder) -> None:
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
    assert not [each for each in records(recorder) if each.is_open]


class Busy(torch.Tensor):
    """Asking it anything runs what stands in `meanwhile`, as a subclass of the user's may."""

    meanwhile: ClassVar[list[Callable[[], Any]]] = []

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's
        meanwhile, cls.meanwhile = cls.meanwhile, []
        for each in meanwhile:
            each()
        return super().__torch_function__(*args, **kwargs)


def test_what_runs_while_a_tensor_is_asked_changes_nothing(recorder: Recorder) -> None:
    """A call is noted where it was made, whatever else has been called in between."""
    world, sent = dist.group.WORLD, [torch.ones(3).as_subclass(Busy)]
    others = [dist.new_group([0]) for _ in range(40)]
    for meanwhile in ([], [], others):
        Busy.meanwhile = [lambda it=it: it.allreduce([torch.ones(3)]).wait() for it in meanwhile]
        world.allreduce(sent).wait()
    noted = [each for each in records(recorder) if each.name == "all_reduce"]
    assert [each.ordinal for each in noted] == [0, 0, *range(1, 41), 0]
    assert (noted[-1].sequence, noted[-1].detail) == (3, "f32[3]")


def test_more_lines_than_are_remembered_cost_no_memory(recorder: Recorder) -> None:
    """What is remembered of a line in Python is not remembered again."""
    lines = "def many(dist):\n" + "    dist.barrier()\n" * 600
    made: dict[str, Any] = {}
    exec(compile(lines, __file__, "exec"), made)  # noqa: S102 - nobody writes 600 lines
    made["many"](dist)
    before = len(recorder._codes)
    made["many"](dist)
    assert len(recorder._codes) == before
    assert [each.frame.line for each in records(recorder)[-3:] if each.frame] == [599, 600, 601]


def test_an_interruption_is_the_users(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of signals runs wherever Python does, also while it looks for the line."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    work = dist.group.WORLD.allreduce([torch.ones(3)])
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "_add_source", interrupted)
        with pytest.raises(KeyboardInterrupt):
            work.wait()
        with pytest.raises(KeyboardInterrupt):
            dist.group.WORLD.allreduce([torch.ones(3)])
    Busy.meanwhile = [interrupted]
    with pytest.raises(KeyboardInterrupt):
        dist.group.WORLD.allreduce([torch.ones(3).as_subclass(Busy)])
    work.wait()
    assert not [each for each in records(recorder) if each.is_open]


def test_a_work_is_not_taken_for_one_that_is_gone(recorder: Recorder) -> None:
    """Nobody waited for that one, and the next has its address."""
    options = dist.AllreduceOptions()
    options.asyncOp = False
    group, sent = dist.group.WORLD, [torch.ones(3)]
    address = id(group.allreduce(sent, options))
    work = group.allreduce(sent)
    assert id(work) == address
    work.wait()
    assert not [each for each in records(recorder) if each.is_open]


def test_each_of_many_works_ends_once(recorder: Recorder) -> None:
    """Waited for, found to be completed, or let go."""
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


def test_an_exception_outlives_the_works_that_go_with_it(recorder: Recorder) -> None:
    """A frame that is left by one lets go of what it has launched."""

    def fails() -> None:
        held = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
        raise KeyError(len(held))

    with pytest.raises(KeyError, match="3"):
        fails()
    gc.collect()
    assert not any(each.is_open for each in records(recorder))


def test_options_stay_as_torch_has_them(recorder: Recorder) -> None:
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
    for listener in ([], [lambda name, kind, source: None]):  # the second is heard in Python alone
        recorder.on_begin[:] = listener
        kept = weakref.ref(options)
        dist.group.WORLD.allreduce([torch.ones(3)], options).wait()
        del options
        assert kept() is None
        options = dist.AllreduceOptions()
        options.asyncOp = False


def test_a_group_of_the_same_address_is_another(recorder: Recorder) -> None:
    """What is remembered of a group goes with it."""
    for number in range(1, 6):
        group = dist.new_group([0])
        dist.all_reduce(torch.ones(3), group=group)
        assert (records(recorder)[-1].ordinal, records(recorder)[-1].sequence) == (number, 1)
        dist.destroy_process_group(group)
        del group
        gc.collect()
