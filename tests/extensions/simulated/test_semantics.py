"""Programs that hang only by NCCL's rules, each once by each semantics."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from sources import trees

from pytest_multihost.extensions.simulated import semantics
from pytest_multihost.extensions.simulated.exchange import Exchange
from pytest_multihost.extensions.simulated.launches import Blob, SimulatedLaunch
from pytest_multihost.extensions.simulated.semantics import NCCL, NO_TAGS, SEMANTICS

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py

PROGRAMS = """
import pytest
import torch
import torch.distributed as dist

def world_of(ranks, semantics):
    return pytest.mark.multihost(ranks=ranks, backend="simulated", semantics=semantics)

def opposite_orders_of_two_peers(world):
    peer = 1 - world.rank
    send = dist.isend(torch.ones(1), peer)
    receive = dist.irecv(torch.zeros(1), peer)
    send.wait()
    receive.wait()

def a_first_batch_of_some_members(world):
    if world.rank < 2:
        peer = 1 - world.rank
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, torch.ones(1), peer),
            dist.P2POp(dist.irecv, torch.zeros(1), peer)])
        for each in works:
            each.wait()

def works_of_one_group_in_two_orders(world):
    # The transfer is launched behind a collective that the other rank launches after it.
    x = torch.ones(1)
    if world.rank == 0:
        work = dist.all_reduce(x, async_op=True)
        for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)]):
            each.wait()
        work.wait()
    else:
        for each in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 0)]):
            each.wait()
        dist.all_reduce(x)

def a_ring_of_transfers_without_a_batch(world):
    # Each transfer makes a communicator of its two ranks, and each rank waits for the next one.
    ahead, behind = (world.rank + 1) % 3, (world.rank - 1) % 3
    send = dist.isend(torch.ones(1), ahead)
    dist.recv(torch.zeros(1), behind)
    send.wait()

def run(program, world):
    dist.init_process_group("nccl")
    if program is works_of_one_group_in_two_orders:
        dist.barrier()  # the communicator exists
    program(world)

hangs = pytest.mark.multihost_expect(within=10, match=".")

@hangs
@world_of(2, "nccl")
def test_opposite_orders_hang(world):
    run(opposite_orders_of_two_peers, world)

@world_of(2, "gloo")
def test_opposite_orders_pass(world):
    run(opposite_orders_of_two_peers, world)

@hangs
@world_of(3, "nccl")
def test_a_first_batch_hangs(world):
    run(a_first_batch_of_some_members, world)

@world_of(3, "gloo")
def test_a_first_batch_passes(world):
    run(a_first_batch_of_some_members, world)

@hangs
@world_of(2, "nccl")
def test_two_orders_hang(world):
    run(works_of_one_group_in_two_orders, world)

@world_of(2, "gloo")
def test_two_orders_pass(world):
    run(works_of_one_group_in_two_orders, world)

@hangs
@world_of(3, "nccl")
def test_a_ring_hangs(world):
    run(a_ring_of_transfers_without_a_batch, world)

@world_of(3, "gloo")
def test_a_ring_passes(world):
    run(a_ring_of_transfers_without_a_batch, world)

def a_key_is_set_behind_a_collective(world):
    # NCCL lets rank 0 go on from its wait, to the key that rank 1 waits for.
    store = dist.distributed_c10d._get_default_store()
    if world.rank == 0:
        dist.all_reduce(torch.ones(1))
        store.set("go", "")
    else:
        store.wait(["go"])
        dist.all_reduce(torch.ones(1))

@pytest.mark.multihost(ranks=2, backend="simulated", semantics="nccl", timeout=4)
def test_a_wait_that_nccl_leaves_early_proves_nothing(world):
    dist.init_process_group("nccl")
    dist.barrier()  # the communicator exists
    a_key_is_set_behind_a_collective(world)

@hangs
@world_of(3, "nccl")
def test_ranks_that_wait_on_the_host_for_each_other_hang(world):
    # Rank 1 waits for its device and might go on, but ranks 0 and 2 do not wait for it alone.
    dist.init_process_group("nccl")
    pair = dist.new_group([0, 1])
    if world.rank == 2:
        dist.barrier()
        return
    dist.all_reduce(torch.ones(1), group=pair)
    if world.rank == 0:
        dist.send(torch.ones(1), 2)
    dist.all_reduce(torch.ones(1), group=pair)

@world_of(2, "gloo")
def test_the_same_of_gloo_is_proven(world):
    dist.init_process_group("nccl")
    a_key_is_set_behind_a_collective(world)

def a_first_batch_with_a_device(world):
    # The communicator was made with the group, which took all its members.
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    a_first_batch_of_some_members(world)

@world_of(3, "nccl")
def test_a_first_batch_passes_with_a_device(world):
    a_first_batch_with_a_device(world)

@hangs
@world_of(2, "nccl")
def test_transfers_share_the_communicator_of_a_device(world):
    # Without a device, the transfer to rank 1 would have a communicator of its own.
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    collective_and_transfer_in_two_orders(world)

@world_of(2, "nccl")
def test_transfers_alone_have_their_own_communicator(world):
    dist.init_process_group("nccl")
    collective_and_transfer_in_two_orders(world)

def collective_and_transfer_in_two_orders(world):
    dist.barrier()
    if world.rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        dist.recv(torch.zeros(1), 0)
        dist.all_reduce(torch.ones(1))

@world_of(2, "nccl")
def test_two_groups_in_opposite_orders_pass(world):
    dist.init_process_group("nccl")
    groups = [dist.new_group() for _ in range(2)]
    for each in groups:
        dist.barrier(group=each)  # the communicators exist
    order = groups if world.rank else groups[::-1]
    works = [dist.all_reduce(torch.ones(1), group=each, async_op=True) for each in order]
    for each in works:
        each.wait()

@world_of(2, "nccl")
def test_a_receive_must_name_its_sender(world):
    dist.init_process_group("nccl")
    if world.rank == 0:
        with pytest.raises(RuntimeError, match="does not support recvAnysource"):
            dist.recv(torch.zeros(1))
    dist.barrier()

@world_of(3, "nccl")
def test_innocents_pass_with_nccl(world):
    dist.init_process_group("nccl")
    x = torch.ones(2)
    dist.all_reduce(x)
    ahead, behind = (world.rank + 1) % 3, (world.rank - 1) % 3
    for each in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, x, ahead), dist.P2POp(dist.irecv, torch.zeros(2), behind)]):
        each.wait()
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    for each in works:
        each.wait()
    if world.rank == 0:
        dist.send(x, 1)
    elif world.rank == 1:
        dist.recv(x, 0)
    objects = [None] * 3
    dist.all_gather_object(objects, world.rank)
    pair = dist.new_group([0, 1], backend="gloo")
    if world.rank < 2:
        dist.barrier(group=pair)
    dist.broadcast(x, 2)
    dist.barrier()
"""


@pytest.mark.program(PROGRAMS)
def test_each_rule_has_a_program_that_hangs_only_with_it(worlds: Worlds) -> None:
    """And programs that keep the rules pass."""
    worlds.run.assert_outcomes(passed=15, failed=2)
    early = worlds.verdicts["test_a_wait_that_nccl_leaves_early_proves_nothing"]
    assert early["diagnosis"]["detected_by"] == "deadline"
    proven = worlds.verdicts["test_the_same_of_gloo_is_proven"]
    assert proven["diagnosis"]["detected_by"] == "proof"


@pytest.mark.program(
    """
    import pytest
    import torch.distributed as dist
    from pytest_multihost.extensions.simulated.link import links

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        assert links[0].semantics.name == "nccl"
        dist.barrier()
    """,
    "--multihost-semantics=nccl",
    "--multihost-backend=simulated",
)
def test_the_semantics_of_a_run_are_an_option(worlds: Worlds) -> None:
    """A marker can say otherwise."""
    worlds.run.assert_outcomes(passed=1)


def launch(rank: int, number: int, operation: str, **given: object) -> SimulatedLaunch:
    """Return a launch of one of two ranks, on the stream of their group."""
    values = {"group": "g", "member": rank, "size": 2, "stream": "g", **given}
    return SimulatedLaunch(rank=rank, number=number, operation=operation, **values)  # type: ignore[arg-type]


@pytest.mark.unit
def test_an_operation_meets_others_only_when_earlier_ones_of_its_stream_have_ended() -> None:
    """The send is there, but behind a collective that the receiver launches later."""
    exchange = Exchange()
    assert exchange.launch(launch(0, 1, "barrier", sequence=1)) == []
    assert exchange.launch(launch(0, 2, "send", root=1, blobs=(Blob("uint8", b"x"),))) == []
    assert exchange.launch(launch(1, 1, "recv", root=0)) == []
    assert exchange.launch(launch(1, 2, "barrier", sequence=1)) == []


@pytest.mark.unit
def test_an_end_lets_the_next_operations_of_its_streams_start() -> None:
    """Both ranks launch a barrier and a transfer, in the same order."""
    exchange = Exchange()
    exchange.launch(launch(0, 1, "barrier", sequence=1))
    exchange.launch(launch(0, 2, "send", root=1, blobs=(Blob("uint8", b"x"),)))
    exchange.launch(launch(1, 2, "recv", root=0, stream=""))
    ended = exchange.launch(launch(1, 1, "barrier", sequence=1))
    assert [(each.rank, each.number) for each in ended] == [(0, 1), (1, 1), (0, 2), (1, 2)]


@pytest.mark.unit
def test_each_rule_names_its_source_and_says_when_a_hang_is_proven() -> None:
    """A rule that the proof did not know would be a false accusation."""
    for each in SEMANTICS:
        assert all(rule.says.endswith(".") and rule.source for rule in each.rules)
    doubtful = replace(NO_TAGS, is_certain=lambda *_: False)
    assert NCCL.is_certain(Exchange(), [], 2)
    assert not replace(NCCL, rules=(*NCCL.rules, doubtful)).is_certain(Exchange(), [], 2)


@pytest.mark.unit
def test_groups_follow_each_rule_that_is_written() -> None:
    """A rule that no semantics has, or that nothing asks for, would change nothing."""
    written = {name for name, each in vars(semantics).items() if isinstance(each, semantics.Rule)}
    followed = [rule for each in SEMANTICS for rule in each.rules]
    assert {name for name in written if getattr(semantics, name) not in followed} == set()
    room = {name: tree for name, tree in trees().items() if name.startswith("extensions/simulated")}
    del room["extensions/simulated/semantics.py"]
    read = (each for tree in room.values() for each in ast.walk(tree) if isinstance(each, ast.Name))
    asked = {each.id for each in read}
    assert written - asked == set()
