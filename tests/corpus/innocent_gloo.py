"""Worlds of torch that are slow and fine."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from expectation import innocent
from torch.distributed.distributed_c10d import _get_default_store
from torch.utils.data import DataLoader, Dataset

import pytest_multihost


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    total = torch.ones(4)
    dist.all_reduce(total, group=group)


@innocent(ranks=4, backend="gloo")
def test_primary_sleeps_for_five_seconds(world) -> None:
    """The primary sleeps while the others are in the all_reduce.

    Source: https://github.com/marin-community/marin/issues/8534 (recovered unaided)
    """
    if world.is_primary:
        time.sleep(5)
    meet()


@innocent(ranks=2, backend="gloo")
def test_asynchronous_work_stays_open(world) -> None:
    """Work is begun early and waited for late, with a sleep in between on both sides.

    Source: field report class: overlap of communication with computation
    """
    work = dist.all_reduce(torch.ones(4), async_op=True)
    if world.rank == 1:
        time.sleep(4)
    else:
        time.sleep(2)
    work.wait()
    meet()


@innocent(ranks=2, backend="gloo")
def test_receive_is_posted_long_before_its_send(world) -> None:
    """An irecv is open for 4 s while its rank works on something else.

    Source: field report class: prefetching receives in a pipeline
    """
    if world.is_primary:
        buffer = torch.zeros(4)
        work = dist.irecv(buffer, src=1)
        time.sleep(3)
        work.wait()
        assert buffer.sum() == 4
    else:
        time.sleep(4)
        dist.send(torch.ones(4), dst=0)


@innocent(ranks=4, backend="gloo")
def test_key_is_set_late(world) -> None:
    """The key that three ranks wait for is set after 4 s.

    Source: https://github.com/pytorch/pytorch/issues/53840 (its fixed side)
    """
    store = _get_default_store()
    if world.is_primary:
        time.sleep(4)
        store.set("ready", "yes")
    store.wait(["ready"])


@innocent(ranks=2, backend="gloo")
def test_short_timeouts_are_caught_and_retried(world) -> None:
    """A rank waits for a key in slices of 1 s and catches each timeout.

    Source: field report class: retry around a store wait
    """
    store = _get_default_store()
    if world.is_primary:
        time.sleep(4)
        store.set("ready", "yes")
        return
    while True:
        try:
            store.wait(["ready"], timedelta(seconds=1))
        except RuntimeError:  # of a FileStore; others raise DistStoreError, which is one
            continue
        break


@innocent(ranks=3, backend="none")
def test_late_at_the_rendezvous(world) -> None:
    """One rank comes to init_process_group 4 s after the others.

    Source: https://github.com/pytorch/pytorch/issues/15638 (its harmless side)
    """
    if world.rank == 2:
        time.sleep(4)
    dist.init_process_group("gloo")
    meet()


@innocent(ranks=3, backend="gloo")
def test_object_gather_of_unequal_sizes(world) -> None:
    """Ranks gather objects of very different sizes, after unequal pauses.

    Source: field report class: differing shapes that are fine
    """
    for step in range(3):
        time.sleep(0.7 * world.rank)
        found: list[object] = [None] * world.size
        dist.all_gather_object(found, b"x" * (1 << (6 * (world.rank + 1))))
        assert len(found) == 3, step


@innocent(ranks=4, backend="gloo")
def test_traffic_of_another_group(world) -> None:
    """Two ranks loop over their own group for 4 s, the others wait in a collective of all.

    Source: field report class: other groups' traffic is no mismatch
    """
    pair = dist.new_group([0, 1])
    if world.rank < 2:
        for _ in range(40):
            dist.broadcast(torch.ones(4), src=0, group=pair)
            time.sleep(0.1)
    meet()


@innocent(ranks=2, backend="gloo")
def test_large_reductions_in_a_loop(world) -> None:
    """Collectives large enough to fill a second each, for several seconds.

    Source: field report class: a long step
    """
    total = torch.ones(1 << 22)
    until = time.monotonic() + 4
    while True:
        dist.all_reduce(total)
        total /= 2
        is_over = torch.tensor(float(time.monotonic() > until))
        dist.broadcast(is_over, src=0)
        if is_over:
            break


@innocent(ranks=3, backend="gloo")
def test_uneven_but_finite_loops(world) -> None:
    """Ranks do unequal numbers of slow local steps between the collectives.

    Source: https://github.com/pytorch/pytorch/issues/38174 (with the join it asks for)
    """
    for _ in range(2):
        for _ in range(world.rank * 3):
            time.sleep(0.4)
        meet()


class Slow(Dataset[torch.Tensor]):
    """Samples that take half a second each."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.5)
        return torch.ones(1)


@innocent(ranks=2, backend="gloo")
def test_data_loader_with_workers(world) -> None:
    """One rank waits for its loader's forked workers, the other for this rank.

    Source: https://github.com/pytorch/pytorch/issues/1355 (its healthy side)
    """
    if world.rank == 1:
        assert len(list(DataLoader(Slow(), num_workers=1, batch_size=2))) == 4
    meet()


@innocent(ranks=2, backend="gloo", status="failed")
def test_lone_failure_for_which_nobody_waits(world) -> None:
    """One rank fails, the other has nothing to wait for and returns.

    Source: field report class: an ordinary failure
    """
    meet()
    if world.rank == 1:
        assert world.size == 3
    time.sleep(3)


@innocent(ranks=3, backend="gloo")
def test_slow_primary_within_the_group_timeout(world) -> None:
    """The group allows 10 s, the primary takes 4.

    Source: https://github.com/google/orbax/issues/3181 (warm: just slow)
    """
    group = dist.new_group(timeout=timedelta(seconds=20))
    meet(group)
    if world.is_primary:
        time.sleep(4)
    meet(group)


@innocent(ranks=2, backend="gloo")
def test_collective_from_a_second_thread(world) -> None:
    """A checkpoint thread reduces in its own group while the main thread joins it for 4 s.

    Source: field report class: asynchronous checkpointing
    """
    group = dist.new_group()

    def save() -> None:
        if world.rank == 1:
            time.sleep(4)
        meet(group)

    thread = threading.Thread(target=save)
    thread.start()
    meet()
    thread.join()


@pytest.fixture
def slowly_torn_down(world) -> object:
    """Take long on one rank to clean up."""
    yield
    if world.rank == 1:
        time.sleep(4)


@innocent(ranks=2, backend="gloo")
def test_one_rank_is_slow_in_teardown(world, slowly_torn_down) -> None:
    """One rank takes 4 s to clean up, the other is done.

    Source: field report class: flushing a log at the end
    """
    meet()


@pytest.fixture
def slowly_set_up(world) -> None:
    """Take long on the primary to prepare, then meet in the runtime."""
    if world.is_primary:
        time.sleep(4)
    dist.barrier()


@innocent(ranks=4, backend="gloo")
def test_fixture_is_slow_on_the_primary(world, slowly_set_up) -> None:
    """A fixture takes 4 s on the primary, the others are in its barrier.

    Source: field report class: data prepared by the primary
    """
    meet()


@innocent(ranks=2, backend="gloo")
def test_polls_for_asynchronous_work(world) -> None:
    """Rank 0 polls for work that rank 1 joins after 4 s.

    Source: https://github.com/ray-project/ray/pull/64928 (its healthy side)
    """
    if world.rank == 1:
        time.sleep(4)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    while not work.is_completed():
        time.sleep(0.01)


@innocent(ranks=4, backend="gloo")
def test_new_group_on_its_members_only(world) -> None:
    """Only the members create a group and use it slowly; on gloo the others need not come.

    Source: https://github.com/pytorch/pytorch/issues/25390 (asked for, on gloo not needed)
    """
    if world.rank < 2:
        pair = dist.new_group([0, 1])
        if world.is_primary:
            time.sleep(4)
        meet(pair)


@innocent(ranks=2, backend="none")
def test_store_of_its_own_is_set_by_a_thread(world) -> None:
    """Rank 0 hosts a TCPStore, as under torchrun; the key that both wait for comes from a thread.

    Source: field report class: a heartbeat thread that publishes progress late
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))
    store = _get_default_store()
    if world.is_primary:
        threading.Timer(4, store.clone().set, ("ready", "yes")).start()  # of its own connection
    store.wait(["ready"])
    meet()


@innocent(ranks=3, backend="none")
def test_host_of_a_store_waits_for_a_late_worker(world) -> None:
    """The rank that hosts the store asks it again and again how many have come.

    Source: https://github.com/pytorch/pytorch/issues/15638 (the same, and the last one comes)
    """
    if world.rank == 2:
        time.sleep(5)
    dist.init_process_group("gloo")


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler: g++")
@innocent(ranks=2, backend="gloo")
def test_primary_compiles_a_model(world) -> None:
    """torch.compile starts compilers and workers of its own.

    Source: field report class: the first step compiles, on one rank longer than on the others
    """
    if world.is_primary:
        assert torch.compile(lambda x: (x.sin() + 1).sum())(torch.zeros(1000)) == 1000
    dist.barrier()


def give_up(world, wait: Callable[[], object]) -> None:
    """Let the primary give up after 6 s, as it expects to, and only then send what rank 1 needs."""
    if world.is_primary:
        with pytest.raises(Exception):  # noqa: B017, PT011 - gloo, stores and DDP each raise their own
            wait()
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)


@innocent(ranks=2, backend="gloo")
def test_limit_of_a_group_is_expected(world) -> None:
    """A collective of a group that was made with a limit passes it, and that is what is tested.

    Source: field report class: tests of timeouts
    """
    group = dist.new_group(timeout=timedelta(seconds=6))
    give_up(world, lambda: meet(group))


@innocent(ranks=2, backend="gloo")
def test_wrong_order_is_expected_to_end_by_a_limit(world) -> None:
    """Two ranks are in operations that cannot match, in a group with a limit: that is tested.

    Source: field report class: tests of a checker of collectives
    """
    group = dist.new_group(timeout=timedelta(seconds=4))
    with pytest.raises(RuntimeError, match=r"(?i)time|closed"):
        dist.barrier(group) if world.rank else meet(group)


@innocent(ranks=2, backend="gloo")
def test_limit_of_work_that_is_awaited_later_is_expected(world) -> None:
    """The same of asynchronous work, by way of its future.

    Source: field report class: tests of timeouts
    """
    group = dist.new_group(timeout=timedelta(seconds=6))
    work = dist.all_reduce(torch.ones(4), group=group, async_op=True) if world.is_primary else None
    give_up(world, lambda: work.get_future().wait())


@innocent(ranks=2, backend="gloo")
def test_limit_of_a_store_is_expected(world) -> None:
    """A store's own limit ends the wait for a key that nobody sets.

    Source: field report class: tests of timeouts
    """
    store = _get_default_store()
    store.set_timeout(timedelta(seconds=6))
    give_up(world, lambda: store.get("never"))


@innocent(ranks=3, backend="gloo")
def test_survivors_go_on_in_a_group_of_their_own(world) -> None:
    """A collective's limit strikes, the two that are left make a group, and tell the third.

    Source: field report class: fault-tolerant training that shrinks its world
    """
    group, store = dist.new_group(timeout=timedelta(seconds=5)), _get_default_store()
    if world.rank == 2:
        store.wait(["evicted"])
        return
    with pytest.raises(RuntimeError):
        meet(group)
    meet(dist.new_group([0, 1], use_local_synchronization=True))
    store.set("evicted", "2")


@innocent(ranks=2, backend="gloo")
def test_transport_of_ones_own_gives_up_by_its_own_clock(world, shared_tmp_path) -> None:
    """An operation of the user's own looks for 6 s for a file, and then goes another way.

    Source: field report class: a fast path with a fallback
    """
    if world.is_primary:
        give_up_s = time.monotonic() + 6
        with pytest_multihost.operation("fast path", peers=[1]):
            while time.monotonic() < give_up_s and not (shared_tmp_path / "ready").exists():
                time.sleep(0.05)
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)


@innocent(ranks=3, backend="gloo")
def test_message_of_one_that_has_left_is_received_late(world) -> None:
    """A receive from any rank has taken another's message; that of the second is read much later.

    Source: field report class: a primary that works between two results
    """
    if world.rank == 1:
        dist.send(torch.ones(4), dst=0)
    if world.is_primary:
        dist.recv(torch.zeros(4))
    world.barrier("the first is in")
    if world.rank == 2:
        dist.send(torch.ones(4), dst=0)
    if world.is_primary:
        time.sleep(4)
        dist.recv(torch.zeros(4), src=2)


@innocent(ranks=4, backend="gloo")
def test_different_groups_are_made_by_those_who_need_them(world) -> None:
    """Pairs make their groups without the others, and meet late.

    Source: field report class: groups with local synchronization
    """
    pair = [0, 1] if world.rank < 2 else [2, 3]
    meet(dist.new_group(pair, use_local_synchronization=True))
    if world.is_primary:
        time.sleep(2)
    dist.barrier()


@innocent(ranks=4, backend="gloo")
def test_last_groups_are_made_late(world) -> None:
    """One rank sleeps between two sets of groups, which the others have asked for meanwhile.

    Source: field report class: a slow rank while meshes are made
    """
    dist.new_subgroups(group_size=2)
    if world.rank == 3:
        time.sleep(2)
    dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])


@innocent(ranks=4, backend="gloo")
def test_message_to_a_late_rank_comes_before_that_to_another(world) -> None:
    """A send waits for a slow rank, and its rank's next message is awaited meanwhile.

    Source: field report class: a primary hands out work in turn
    """
    if world.is_primary:
        dist.send(torch.ones(4), dst=2)
        dist.send(torch.ones(4), dst=1)
    if world.rank == 1:
        dist.recv(torch.zeros(4), src=0)
    if world.rank == 2:
        time.sleep(2)
        dist.recv(torch.zeros(4), src=0)


@innocent(ranks=3, backend="gloo")
def test_stores_that_each_rank_has_for_itself(world, tmp_path) -> None:
    """A thread of each rank sets the key late; another store's timeout is handled.

    Source: a hunt for false verdicts.
    """
    cache = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", cache.port, None, False, wait_for_workers=False)
    threading.Timer(world.rank + 1, lambda: cache.set("filled", "yes")).start()
    client.wait(["filled"], timedelta(seconds=50))
    with contextlib.suppress(RuntimeError):
        dist.FileStore(str(tmp_path / "cache"), 1).wait(["filled"], timedelta(seconds=1))
    dist.barrier()
