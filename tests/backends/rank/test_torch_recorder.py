"""What the recorder for torch.distributed notes, seen from another rank while it happens."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce, distributed_c10d, new_group
from torch.distributed.device_mesh import init_device_mesh

from pytest_multihost import World
from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch import install
from pytest_multihost.core.rank.recorder.torch_flight_recorder import THREAD_NAME
from pytest_multihost.core.slots import RECORDS, FlightMailbox, SlotPage, read_slots, slots_path
from pytest_multihost.testing import (
    FLIGHT_SCOPE,
    RUNTIME_SCOPE,
    Operation,
    Operations,
    Scope,
    is_ours,
)

pytestmark = [
    pytest.mark.multihost(ranks=2, backend="none", timeout=60),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # names that torch is about to change
]

LIMIT = timedelta(seconds=50)
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Recorded:
    """The recorders of this world, each rank's to be read by all."""

    world: World
    recorder: Recorder
    scratch: Path

    def start(self) -> None:
        """Make the default group."""
        store = dist.FileStore(str(self.scratch / "store"), self.world.size)
        size, rank = self.world.size, self.world.rank
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)

    def of(self, rank: int) -> Operations:
        return read_slots(slots_path(self.scratch, rank), rank=rank)

    def mine(self, name: str) -> list[Operation]:
        """Return this rank's operations of one name, oldest first."""
        return [each for each in self.of(self.world.rank).recent if each.name == name]

    def await_waiting(self, rank: int, name: str, detail: str | None = None) -> Operation:
        """Return the operation that `rank` waits in, as soon as it does; and says what is sent."""
        return until(
            lambda: next(
                (
                    each
                    for each in self.of(rank).open
                    if each.name == name and each.waited_s is not None
                    if detail in {None, each.detail}
                ),
                None,
            )
        )

    def await_unseen(self, rank: int) -> Operations:
        """Return what the flight recorder of `rank` has and its slot page has not."""

        def unseen() -> Operations | None:
            asked_s = time.monotonic()
            mailbox = FlightMailbox(self.scratch, rank)
            mailbox.ask()
            time.sleep(0.05)
            found = mailbox.read(since_s=asked_s)
            return found if found and found.open else None

        return until(unseen)


T = TypeVar("T")


def until(look: Callable[[], T | None]) -> T:
    """Look until there is something."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.005)
    pytest.fail("it did not come")


@pytest.fixture
def recorded(world: World, shared_tmp_path: Path) -> Iterator[Recorded]:
    """Recorders are installed, and nothing is initialised."""
    page = SlotPage.create(slots_path(shared_tmp_path, world.rank))
    recorder = Recorder(page, world.rank, world.size)
    install(recorder)
    world.barrier("installed")
    yield Recorded(world, recorder, shared_tmp_path)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def started(recorded: Recorded) -> Recorded:
    """The default group is made."""
    recorded.start()
    return recorded


def one() -> torch.Tensor:
    """Return what is most often sent."""
    return torch.ones(3)


def two() -> list[torch.Tensor]:
    """Return room for what both ranks send."""
    return [torch.zeros(3), torch.zeros(3)]


COLLECTIVES: dict[str, tuple[Callable[[], Any], int | None, str]] = {
    "all_reduce": (lambda: dist.all_reduce(one()), None, "f32[3]"),
    "broadcast": (lambda: dist.broadcast(one(), 1), 1, "f32[3]"),
    "reduce": (lambda: dist.reduce(one(), 1), 1, "f32[3]"),
    "barrier": (dist.barrier, None, ""),
    "all_gather": (lambda: dist.all_gather(two(), one()), None, "f32[3]"),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(torch.zeros(6), one()),
        None,
        "f32[3]",
    ),
    "gather": (lambda: dist.gather(one(), two() if dist.get_rank() == 1 else None, 1), 1, "f32[3]"),
    "scatter": (
        lambda: dist.scatter(one(), two() if dist.get_rank() == 1 else None, 1),
        1,
        "f32[3]",
    ),
    "reduce_scatter": (lambda: dist.reduce_scatter(one(), two()), None, "f32[3] +1"),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(one(), torch.zeros(6)),
        None,
        "f32[6]",
    ),
    "all_to_all": (lambda: dist.all_to_all(two(), two()), None, "f32[3] +1"),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(torch.zeros(2), torch.zeros(2, dtype=torch.float32)),
        None,
        "f32[2]",
    ),
    "all_reduce_coalesced": (
        lambda: dist.all_reduce_coalesced([one(), one()]),
        None,
        "f32[3] +1",
    ),
    "monitored_barrier": (lambda: dist.monitored_barrier(timeout=LIMIT), None, ""),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_is_open_until_all_are_there(name: str, started: Recorded) -> None:
    """With its group, its place in it, the user's line, and what tells it apart."""
    call, root, detail = COLLECTIVES[name]
    if started.world.is_primary:
        call()
    else:
        # The root of a scatter or broadcast, or who only gives, need not wait for the others.
        seen = started.await_waiting(0, name)
        assert (seen.kind, seen.group, seen.ordinal, seen.scope) == (
            "collective",
            (0, 1),
            0,
            RUNTIME_SCOPE,
        )
        assert (seen.sequence, seen.root, seen.peer) == (1, root, None)
        assert seen.frame is not None
        assert seen.frame.file == __file__
        call()
    (mine,) = started.mine(name)
    assert not mine.is_open
    assert not mine.failed
    if name != "scatter" or not started.world.is_primary:
        assert mine.detail == detail
    assert started.of(started.world.rank).open == ()


def test_what_objects_travel_in_is_noted_call_by_call(started: Recorded) -> None:
    """The other ranks must match each of these calls, whatever the user has called."""
    found: list[Any] = [None, None]
    dist.all_gather_object(found, started.world.rank)
    mine = [each.name for each in started.of(started.world.rank).recent]
    assert found == [0, 1]
    assert mine[-2:] == ["all_gather", "all_gather"]
    things = [started.world.rank]
    dist.broadcast_object_list(things, 1)
    mine = [each.name for each in started.of(started.world.rank).recent]
    assert things == [1]
    assert mine[-2:] == ["broadcast", "broadcast"]


def test_a_function_imported_by_name_before_is_noted(started: Recorded) -> None:
    """The test module imported it long before the rank was made."""
    all_reduce(one())
    assert [each.frame.function for each in started.mine("all_reduce") if each.frame] == [
        "test_a_function_imported_by_name_before_is_noted"
    ]
    new_group([0, 1], timeout=LIMIT)
    assert len(started.mine("new_group")) == 1


def test_a_send_and_its_receive_are_told_by_peer_and_tag(started: Recorded) -> None:
    """Each stream of transfers counts for itself."""
    if started.world.is_primary:
        dist.send(one(), 1, tag=7)
        dist.send(one(), 1)
        dist.recv(one(), 1)
    else:
        seen = started.await_waiting(0, "send", "tag=7 f32[3]")
        assert (seen.kind, seen.peer, seen.sequence) == ("transfer", 1, 1)
        dist.recv(one(), 0, tag=7)
        dist.recv(one(), 0)
        seen = started.await_waiting(0, "recv", "tag=0 f32[3]")
        assert (seen.kind, seen.peer, seen.sequence) == ("transfer", 1, 1)
        dist.send(one(), 0)
    assert started.of(started.world.rank).open == ()
    mine = [each for each in started.of(started.world.rank).recent if each.kind == "transfer"]
    assert [each.sequence for each in mine] == [1, 1, 1]


def test_a_receive_from_anybody_has_no_peer(started: Recorded) -> None:
    """Nobody can be named yet."""
    if started.world.is_primary:
        assert dist.recv(one()) == 1
    else:
        seen = started.await_waiting(0, "recv")
        assert (seen.kind, seen.peer, seen.group) == ("transfer", None, (0, 1))
        dist.send(one(), 0)


def test_a_batch_of_transfers_is_noted_one_by_one(started: Recorded) -> None:
    """Each is open from its launch until it has been waited for."""
    other = 1 - started.world.rank
    received = torch.zeros(3)
    sent = torch.full((3,), float(started.world.rank))
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
    )
    names = {each.name for each in started.of(started.world.rank).recent}
    assert {"send", "recv"} <= names
    for work in works:
        work.wait()
    assert received.tolist() == [other] * 3
    assert started.of(started.world.rank).open == ()


def test_async_work_is_open_and_unwaited_until_somebody_waits(started: Recorded) -> None:
    """The line is that of the launch first, then that of the wait."""
    if started.world.is_primary:
        work = dist.all_reduce(one(), async_op=True)
        (launched,) = started.of(0).open
        assert launched.waited_s is None
        started.world.barrier("launched")
        work.wait()
        (mine,) = started.mine("all_reduce")
        assert not mine.is_open
        assert launched.frame is not None
        assert mine.frame is not None
        assert mine.frame.line == launched.frame.line + 4
    else:
        started.world.barrier("launched")
        started.await_waiting(0, "all_reduce")
        dist.all_reduce(one())


@pytest.mark.filterwarnings("ignore::pytest_multihost.MultihostHazardWarning")
def test_work_that_nobody_holds_does_not_stay_open(started: Recorded) -> None:
    """Innocent: it was launched, and forgotten on purpose."""
    work = dist.all_reduce(one(), async_op=True)
    del work
    assert started.of(started.world.rank).open == ()


def test_work_found_complete_is_not_open(started: Recorded) -> None:
    """By whoever asks it, and by us when we are asked."""
    first = dist.all_reduce(one(), async_op=True)
    until(lambda: True if first.is_completed() else None)
    assert started.of(started.world.rank).open == ()
    second = dist.all_reduce(one(), async_op=True)

    def is_swept() -> bool | None:
        FlightMailbox(started.scratch, started.world.rank).ask()
        return True if not started.of(started.world.rank).open else None

    until(is_swept)
    assert second.is_completed()


def test_a_wait_that_fails_is_left_by_an_exception(started: Recorded) -> None:
    """The operation is over for this rank, and it says how."""
    if started.world.is_primary:
        work = dist.irecv(one(), 1)
        with pytest.raises(RuntimeError):
            work.wait(timedelta(milliseconds=50))
        (mine,) = started.mine("recv")
        assert mine.failed
        assert not mine.is_open
    started.world.barrier("over")


def test_a_call_that_is_refused_is_left_by_an_exception(started: Recorded) -> None:
    """What torch raises is raised, and nothing stays open."""
    with pytest.raises(TypeError):
        dist.group.WORLD.allreduce("no tensors")
    with pytest.raises((RuntimeError, ValueError)):
        dist.broadcast(one().to_sparse(), 0)
    assert started.of(started.world.rank).open == ()


def test_groups_with_the_same_members_are_told_apart(started: Recorded) -> None:
    """By the order in which they were made; the world's is the first."""
    first, second = new_group([0, 1], timeout=LIMIT), new_group([1, 0], timeout=LIMIT)
    dist.all_reduce(one(), group=second)
    dist.all_reduce(one(), group=second)
    dist.all_reduce(one(), group=first)
    dist.all_reduce(one())
    mine = [(each.ordinal, each.sequence) for each in started.mine("all_reduce")]
    assert mine == [(2, 1), (2, 2), (1, 1), (0, 1)]  # making groups does not count
    entered = started.of(started.world.rank).entered
    assert [entered[(0, 1), ordinal, RUNTIME_SCOPE] for ordinal in range(3)] == [1, 1, 2]


@pytest.mark.multihost(ranks=3, backend="none", timeout=60)
def test_a_sub_groups_collective_does_not_count_for_the_world(started: Recorded) -> None:
    """Rank 1 is no member, and has entered as much of the world's as the others."""
    group = new_group([2, 0], timeout=LIMIT)
    if started.world.rank != 1:
        dist.broadcast(one(), 2, group=group)
        (mine,) = started.mine("broadcast")
        assert (mine.group, mine.sequence, mine.root) == ((0, 2), 1, 2)
    dist.barrier()
    (barrier,) = started.mine("barrier")
    assert (barrier.group, barrier.sequence) == ((0, 1, 2), 1)


def test_making_a_group_is_a_collective_of_its_members(started: Recorded) -> None:
    """The store's traffic within is not told."""
    if started.world.is_primary:
        new_group([0, 1], timeout=LIMIT)
    else:
        seen = started.await_waiting(0, "new_group")
        assert (seen.group, seen.sequence, seen.detail) == ((0, 1), 1, "[0, 1]")
        assert [each.name for each in started.of(0).open] == ["new_group"]
        new_group([0, 1], timeout=LIMIT)


def test_making_a_group_locally_is_one_too(started: Recorded) -> None:
    """Others need not come, and are not missed."""
    if started.world.is_primary:
        new_group([0], timeout=LIMIT, use_local_synchronization=True)
        (mine,) = started.mine("new_group")
        assert mine.group == (0,)
    dist.barrier()
    assert started.mine("barrier")[0].sequence == 1


def test_starting_is_one_operation_of_all_ranks(recorded: Recorded) -> None:
    """Who has not called init_process_group is missing in it."""
    if recorded.world.is_primary:
        recorded.start()
    else:
        seen = recorded.await_waiting(0, "init_process_group")
        assert (seen.kind, seen.group, seen.sequence) == ("collective", (0, 1), 1)
        assert [each.name for each in recorded.of(0).open] == ["init_process_group"]
        recorded.start()
    assert [each.name for each in recorded.of(recorded.world.rank).recent] == ["init_process_group"]


def test_groups_of_a_smaller_torch_world_are_no_groups_of_ranks(recorded: Recorded) -> None:
    """Each rank is number 0 of a torch world of its own, and says so."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=LIMIT)
    dist.all_reduce(one())
    (mine,) = recorded.mine("all_reduce")
    assert (mine.kind, mine.group, mine.scope.kind) == ("collective", (0,), "")
    assert mine.scope != RUNTIME_SCOPE
    entered = recorded.of(recorded.world.rank).entered
    assert ((0,), 1, Scope("member", mine.scope.name)) in entered
    assert ((0, 1), 0, RUNTIME_SCOPE) not in entered


def test_a_wait_for_a_key_names_the_key(recorded: Recorded) -> None:
    """Who will set it, nobody knows."""
    store = dist.PrefixStore("ours", dist.FileStore(str(recorded.scratch / "keys"), 2))
    if recorded.world.is_primary:
        assert store.get("answer") == b"42"
        store.wait(["more", "and more"], timedelta(seconds=45))
        assert recorded.of(0).open == ()
    else:
        seen = recorded.await_waiting(0, "store.get")
        assert (seen.kind, seen.group, seen.detail) == ("wait", (0, 1), "answer")
        assert seen.timeout_s == store.timeout.total_seconds()
        store.set("answer", "42")
        seen = recorded.await_waiting(0, "store.wait")
        assert (seen.detail, seen.timeout_s) == ("more, and more", 45)
        store.set("more", "")
        store.set("and more", "")
    recorded.world.barrier("read")


@pytest.mark.parametrize("prefixes", [(), ("inner",), ("inner", "outer")])
def test_a_wait_for_a_store_of_one_process_is_nobody_elses(
    recorded: Recorded, prefixes: Sequence[str]
) -> None:
    """Only another thread of its own can set the key; below prefixes it is the same store."""
    store: dist.Store = dist.HashStore()
    for prefix in prefixes:
        store = dist.PrefixStore(prefix, store)
    store.set("answer", "42")
    assert store.get("answer") == b"42"
    store.wait(["answer"], LIMIT)
    with pytest.raises(dist.DistError):
        store.wait(["question"], timedelta(milliseconds=10))
    assert recorded.of(recorded.world.rank) == Operations(recorded.world.rank)


def test_a_mesh_comes_out_as_the_groups_that_it_makes(started: Recorded) -> None:
    """Nothing else of it needs other ranks."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
    dist.all_reduce(one(), group=mesh["a"].get_group())
    names = [each.name for each in started.of(started.world.rank).recent]
    assert {"new_group", "split_group"} & set(names)
    assert names[-1] == "all_reduce"
    assert started.mine("all_reduce")[0].group == (0, 1)


def test_what_listeners_raise_passes_and_nothing_is_noted(started: Recorded) -> None:
    """A fault strikes before the rank has entered."""

    class FaultError(Exception):
        pass

    def strike(name: str, kind: str, _source: object) -> None:
        if name == "broadcast":
            raise FaultError(kind)

    started.recorder.on_begin.append(strike)
    with pytest.raises(FaultError, match="collective"):
        dist.broadcast(one(), 0)
    dist.all_reduce(one())
    assert started.mine("broadcast") == []
    assert [each.sequence for each in started.mine("all_reduce")] == [1]


def test_an_error_in_recording_is_no_error_of_the_test(
    started: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's program goes on as if nothing were recorded."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("recording is broken")

    for owner, method in ((Recorder, "user_source"), (SlotPage, "begin"), (SlotPage, "wait")):
        monkeypatch.setattr(owner, method, broken)
    total = one()
    dist.all_reduce(total)
    dist.all_reduce(total, async_op=True).wait()
    assert total.tolist() == [4.0] * 3
    new_group([0, 1], timeout=LIMIT)


def _outcomes() -> list[Any]:
    """Return what all kinds of calls return, change and raise."""
    found: list[Any] = []
    for name, (call, _, _) in COLLECTIVES.items():
        found.append((name, call()))
    total = torch.arange(3.0) + dist.get_rank()
    work = dist.all_reduce(total, async_op=True)
    found += [type(work).__name__, isinstance(work, dist.Work), work.wait(), total.tolist()]
    found += [work.is_completed(), dist.group.WORLD.size(), isinstance(work, object)]
    gathered = two()
    dist.all_gather(gathered, total * dist.get_rank())
    found.append([each.tolist() for each in gathered])
    found.append(torch.distributed.get_process_group_ranks(new_group([1, 0], timeout=LIMIT)))
    for wrong in (lambda: dist.all_reduce([]), lambda: dist.broadcast(one(), 9)):
        with pytest.raises(Exception) as error:  # noqa: PT011 - any, but the same
            wrong()
        found.append((type(error.value).__name__, str(error.value)[:60]))
    return found


def _peel(function: Any) -> Any:  # noqa: ANN401 - of any kind
    """Return what our wrappers hold."""
    while _is_ours(function):
        function = function.__wrapped__
    return function


def _is_ours(function: Any) -> bool:  # noqa: ANN401 - of any kind
    if type(function) is FunctionType:
        return "pytest_multihost" in function.__code__.co_filename
    return "pytest_multihost" in type(function).__module__


def _undo_recording() -> int:
    """Take away what the rank's own recorder has wrapped; return how much."""
    count = 0
    for owner in (distributed_c10d.ProcessGroup, dist.Work, dist.Store, distributed_c10d):
        for name, value in list(vars(owner).items()):
            if _peel(value) is not value:
                setattr(owner, name, _peel(value))
                count += 1
    return count


def test_calls_behave_as_without_us(world: World, shared_tmp_path: Path) -> None:
    """Results, effects, exceptions and signatures are the same before and after."""
    _undo_recording()
    functions = [getattr(dist, name) for name in ("init_process_group", "new_group", *COLLECTIVES)]

    def signatures() -> list[str]:
        return [str(inspect.signature(each)) for each in functions]

    def outcomes(name: str) -> list[Any]:
        store = dist.FileStore(str(shared_tmp_path / name), world.size)
        dist.init_process_group(
            "gloo", store=store, rank=world.rank, world_size=world.size, timeout=LIMIT
        )
        try:
            found = _outcomes()
            world.barrier(f"{name} is over")  # who leaves closes connections that others make
            return found
        finally:
            dist.destroy_process_group()

    before = signatures(), outcomes("without")
    assert _undo_recording() == 0
    page = SlotPage.create(slots_path(shared_tmp_path, world.rank))
    install(Recorder(page, world.rank, world.size))
    assert (signatures(), outcomes("with")) == before
    assert read_slots(page.path, rank=world.rank).recent
    assert _undo_recording() > 30
    assert functions == [
        getattr(dist, name) for name in ("init_process_group", "new_group", *COLLECTIVES)
    ]


def test_many_calls_do_not_lose_the_open_one(started: Recorded) -> None:
    """64 times the ring's length go by while a receive stays open."""
    group = [new_group([rank], timeout=LIMIT) for rank in range(2)][started.world.rank]
    if started.world.is_primary:
        work = dist.irecv(one(), 1)
        for _ in range(64 * RECORDS):
            dist.barrier(group=group)
        assert [each.name for each in started.of(0).open] == ["recv"]
        assert len(started.of(0).recent) == RECORDS
        assert started.of(0).entered[(0,), 0, RUNTIME_SCOPE] == 64 * RECORDS
        started.world.barrier("full")
        work.wait()
        assert started.of(0).open == ()
    else:
        started.world.barrier("full")
        dist.send(one(), 0)


def test_two_threads_are_told_apart(started: Recorded) -> None:
    """Each has its own group, as it must have, and waits for itself."""
    groups = [new_group([0, 1], timeout=LIMIT) for _ in range(2)]
    calls = [
        threading.Thread(target=dist.all_reduce, args=(one(),), kwargs={"group": each})
        for each in groups
    ]
    if not started.world.is_primary:

        def both() -> list[Operation] | None:
            found = [each for each in started.of(0).open if each.name == "all_reduce"]
            return found if len(found) == 2 else None

        seen = until(both)
        assert len({each.thread for each in seen}) == 2
        assert {each.ordinal for each in seen} == {1, 2}
    for call in calls:
        call.start()
    for call in calls:
        call.join()


def test_a_forked_child_writes_nothing(started: Recorded) -> None:
    """What it does is not what the rank does."""
    before = started.of(started.world.rank)
    child = os.fork()
    if child == 0:
        dist.HashStore().set("key", "")
        store = dist.HashStore()
        store.set("key", "")
        store.get("key")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert started.of(started.world.rank) == before


def test_the_flight_recorder_tells_of_what_no_python_sees(started: Recorded) -> None:
    """A functional collective, and the backward pass of DDP: counted where all can compare."""
    if started.world.is_primary:
        functional.all_reduce(one(), "sum", dist.group.WORLD).tolist()
    else:
        seen = started.await_unseen(0)
        (operation,) = seen.open
        assert (operation.name, operation.group, operation.source) == (
            "all_reduce",
            (0, 1),
            "flight-recorder",
        )
        assert (operation.scope, operation.sequence) == (FLIGHT_SCOPE, 1)
        assert operation.frame is not None
        assert operation.frame.file == __file__
        mailbox = FlightMailbox(started.scratch, 1)
        mailbox.ask()
        mine = until(mailbox.read).entered
        assert mine == {((0, 1), 0, FLIGHT_SCOPE): 0}
        functional.all_reduce(one(), "sum", dist.group.WORLD).tolist()


def test_the_flight_recorder_tells_of_a_backward_pass(started: Recorded) -> None:
    """DDP's reducer waits in C++; the user's line is that of backward()."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    loss = model(one()).sum()
    started.world.barrier()  # until both have left the broadcasts of the constructor
    if not started.world.is_primary:
        seen = started.await_unseen(0)
        assert {each.name for each in seen.open} == {"all_reduce"}
        assert all(each.waited_s is not None for each in seen.open)
        assert all(each.sequence == max(seen.entered.values()) for each in seen.open)
    loss.backward()


def test_the_flight_recorder_does_not_repeat_what_is_recorded(started: Recorded) -> None:
    """Innocent: it stands in both."""
    if started.world.is_primary:
        dist.reduce_scatter(one(), two())
    else:
        started.await_waiting(0, "reduce_scatter")
        asked_s = time.monotonic()
        mailbox = FlightMailbox(started.scratch, 0)
        mailbox.ask()
        answer = until(lambda: mailbox.read(since_s=asked_s))
        assert answer.entered
        assert answer.open == ()
        dist.reduce_scatter(one(), two())


def test_histories_do_not_load_the_compiler(started: Recorded) -> None:
    """To make stacks torch would import it, for seconds: nobody would wait for the answer."""
    was_loaded = "torch._inductor" in sys.modules
    dist.all_reduce(one())
    mailbox = FlightMailbox(started.scratch, started.world.rank)
    mailbox.ask(for_histories=True)
    (history,) = until(lambda: mailbox.read_histories(since_s=0.0))
    [site] = history.sites
    assert site.frames[-1].file == __file__
    assert not any(is_ours(each.file) for each in site.frames)
    assert ("torch._inductor" in sys.modules) is was_loaded


def test_a_recorder_that_cannot_be_read_answers_that_there_is_nothing(
    started: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has asked does not wait for what will not come."""
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace", lambda: b"no pickle")
    mailbox = FlightMailbox(started.scratch, started.world.rank)
    mailbox.ask(for_histories=True)
    assert until(lambda: mailbox.read_histories(since_s=0.0)) == ()


def test_asking_waits_for_nobody(started: Recorded) -> None:
    """Not for a rank without torch, and not for one that does not read."""
    FlightMailbox(started.scratch / "nowhere", 0).ask()
    for _ in range(100_000):
        FlightMailbox(started.scratch, started.world.rank).ask()
    assert THREAD_NAME in [each.name for each in threading.enumerate()]


def test_a_world_that_imports_torch_late_is_recorded(tmp_path: Path) -> None:
    """Installing imports nothing; what the test then imports is wrapped."""
    program = f"""
import sys
from pathlib import Path
from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch import install
from pytest_multihost.core.slots import SlotPage, read_slots
page = SlotPage.create(Path({str(tmp_path)!r}, "rank-0.slots"))
install(Recorder(page, 0, 1))
assert "torch" not in sys.modules
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
print([each.name for each in read_slots(page.path, rank=0).recent])
dist.destroy_process_group()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.stdout.strip() == "['init_process_group', 'all_reduce']", done.stderr


test_a_world_that_imports_torch_late_is_recorded = pytest.mark.multihost(
    ranks=1, backend="none", timeout=60
)(test_a_world_that_imports_torch_late_is_recorded)


def test_compiled_code_still_compiles(started: Recorded) -> None:
    """What dynamo reads through is not what we wrap."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @torch.compile(backend="eager", fullgraph=True)
        def summed(tensor: torch.Tensor) -> torch.Tensor:
            return functional.all_reduce(tensor * 2, "sum", distributed_c10d.group.WORLD)

        assert summed(one()).tolist() == [4.0] * 3
