"""Worlds whose groups are connected when they are first used, or before: run by test_prewarm.py.

gloo connects a group's members in `new_group`; with TORCH_GLOO_LAZY_INIT=1 it does so at their
first collective, as NCCL always does. Who connects is decided by addresses: of two members the one
with the larger, so the member with the largest connects to all others. That one is starved of
descriptors, right before the collective.
"""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from pytest_multihost import at, faults
from pytest_multihost.fixes import prewarm

LIMIT = timedelta(seconds=30)
SHORT = timedelta(seconds=2)
WITHOUT_DESCRIPTORS = "without descriptors"


def lazy(ranks: int = 4, backend: str = "gloo", timeout: float = 60) -> pytest.MarkDecorator:
    """Mark a test whose groups are connected when they are first used."""
    return pytest.mark.multihost(
        ranks=ranks,
        backend=backend,
        timeout=timeout,
        env={"TORCH_GLOO_LAZY_INIT": "1"},
        faults=[
            faults.fd_pressure(
                rank="all", headroom=0, at=at.sync_point(WITHOUT_DESCRIPTORS), must_fire=False
            )
        ],
    )


hangs_in_bootstrap = pytest.mark.multihost_expect("transport", match=r"all_\w+ #\d \((2nd )?group")


def parallel_state() -> ModuleType:
    """Return Megatron's module. Importing it takes seconds: the server has, before it forks."""
    import megatron.core.parallel_state

    return megatron.core.parallel_state


def make_groups(instances: int) -> dist.ProcessGroup:
    """Let Megatron make its groups, and return the one that the first optimizer step uses."""
    mpu = parallel_state()
    meet_everybody()
    mpu.initialize_model_parallel(
        expert_model_parallel_size=2,
        num_distributed_optimizer_instances=instances,
        create_gloo_process_groups=False,
    )
    if instances == 1:
        return mpu.get_expert_data_parallel_group()
    return prewarm.inter_optimizer_group(mpu)


def meet_everybody() -> None:
    """Connect the world's group: it is not what is tested."""
    everybody = dist.get_world_size()
    dist.all_to_all_single(torch.empty(everybody), torch.ones(everybody))


def connects(group) -> bool:
    """Whether this rank connects the group's members, by the addresses that gloo has published."""
    _, store = dist.distributed_c10d._world.pg_map[group]
    ports = [port_in(store.get(f"cpu//0/{place}")) for place in range(group.size())]
    return ports[group.rank()] == max(ports)


def port_in(published: bytes) -> int:
    """Return the port as gloo compares it: a host's name and a socket address, each with length."""
    at_port = 8 + int.from_bytes(published[:8], "little") + 8 + 2
    return int.from_bytes(published[at_port : at_port + 2], "little")


def starve_who_connects(world, group) -> None:
    """Take all descriptors from the rank of the group of rank 0 that connects the others."""
    if 0 in dist.get_process_group_ranks(group) and connects(group):
        print("it connects")
        world.sync_point(WITHOUT_DESCRIPTORS)


def all_reduce(group) -> None:
    """Reduce over a group; the sum must be right."""
    total = torch.tensor([2.0 ** group.rank()])
    dist.all_reduce(total, group=group)
    assert total.item() == 2 ** group.size() - 1


def all_to_all(group) -> None:
    """Send every member its own number."""
    sent = torch.arange(group.size()) + 100 * group.rank()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    assert received.tolist() == [group.rank() + 100 * place for place in range(group.size())]


def step(world, group, use=all_reduce) -> None:
    """Make a step as training loops do it: one that fails is logged and skipped by its rank."""
    starve_who_connects(world, group)
    try:
        use(group)
    except RuntimeError as error:
        print(f"step skipped: {error}")
    dist.barrier()


@pytest.mark.parametrize("instances", [1, 2])
@hangs_in_bootstrap
@lazy()
def test_unfixed(world, instances: int) -> None:
    """The first optimizer step finds no descriptors to connect with, and hangs."""
    step(world, make_groups(instances))


@hangs_in_bootstrap
@lazy()
def test_published_by_default(world) -> None:
    """With one optimizer instance there is no group to put the barrier on: it hangs as before."""
    group = make_groups(1)
    assert not prewarm.published_barrier()
    step(world, group)


@lazy()
def test_published_with_two_instances(world) -> None:
    """There the group of the first step is the one that the barrier connects."""
    group = make_groups(2)
    assert prewarm.published_barrier()
    step(world, group)


@pytest.mark.parametrize("instances", [1, 2])
@lazy()
def test_prewarmed(world, instances: int) -> None:
    """Whichever group comes first is connected."""
    group = make_groups(instances)
    assert len(prewarm.prewarm_megatron(timeout=LIMIT)) == {1: 9, 2: 11}[instances]
    step(world, group)


@pytest.mark.multihost_expect("raised", match="Too many open files; .* all_reduce #1")
@lazy()
def test_unfixed_and_the_error_is_not_caught(world) -> None:
    """The rank that cannot connect says so."""
    group = dist.new_group()
    starve_who_connects(world, group)
    all_reduce(group)


@hangs_in_bootstrap
@lazy(ranks=8, timeout=4)  # gloo spins where a peer has given up: no proof
def test_all_to_all_behind_a_barrier(world) -> None:
    """Some pairs are connected, and some are needed that are not."""
    meet_everybody()
    group = dist.new_group()
    prewarm.prewarm_process_groups(coverage="barrier", timeout=LIMIT)
    step(world, group, all_to_all)


@lazy(ranks=8)
def test_all_reduce_behind_a_barrier(world) -> None:
    """A reduction needs the pairs that a barrier connects."""
    meet_everybody()
    group = dist.new_group()
    prewarm.prewarm_process_groups(coverage="barrier", timeout=LIMIT)
    step(world, group)


@lazy(ranks=8)
def test_all_to_all_behind_all_pairs(world) -> None:
    """All that may be needed is there."""
    meet_everybody()
    group = dist.new_group()
    prewarm.prewarm_process_groups(timeout=LIMIT)
    step(world, group, all_to_all)


def make_groups_with_two_names() -> list:
    """Return this rank's groups; ranks 1 and 2 call the one that they share differently."""
    pairs = [(0, 1), (1, 2)]
    rank = dist.get_rank()
    return [dist.new_group(pair, use_local_synchronization=True) for pair in pairs if rank in pair]


@hangs_in_bootstrap
@lazy(ranks=3, timeout=3)  # gloo polls the store's file: no proof
def test_unfixed_with_two_names(world) -> None:
    """The two members look for each other in different places."""
    for group in make_groups_with_two_names():
        all_reduce(group)


@lazy(ranks=3)
def test_prewarmed_with_two_names(world) -> None:
    """Every rank is told, also the one that is not in the group."""
    groups = make_groups_with_two_names()
    with pytest.raises(prewarm.GroupsDisagreeError, match="of the group of ranks 1, 2, rank 1"):
        prewarm.prewarm_process_groups(groups, timeout=LIMIT)


def make_ring(world) -> list:
    """Return this rank's two groups, with its next neighbour and with the last, in that order."""
    pairs = {rank: dist.new_group([rank, (rank + 1) % 4]) for rank in range(4)}
    return [pairs[world.rank], pairs[(world.rank - 1) % 4]]


@pytest.mark.multihost_expect("deadlock", waiting=[0, 1, 2, 3])
@lazy()
def test_barriers_in_the_order_of_each_rank(world) -> None:
    """Each waits for its next neighbour first."""
    for group in make_ring(world):
        dist.barrier(group=group)


@lazy()
def test_prewarmed_in_the_order_of_each_rank(world) -> None:
    """The order in which a rank names its groups does not matter."""
    groups = make_ring(world)
    prewarm.prewarm_process_groups(groups, timeout=LIMIT)
    for group in sorted(groups, key=lambda each: int(each.group_name)):
        all_reduce(group)


@pytest.mark.parametrize("missing", [0, 2])
@lazy(ranks=3)
def test_prewarmed_without_a_rank(world, missing: int) -> None:
    """Whoever came is told who did not, the primary or another."""
    world.barrier()
    if world.rank != missing:
        with pytest.raises(prewarm.RanksMissingError) as raised:
            prewarm.prewarm_process_groups(timeout=SHORT if missing else SHORT / 4)
        assert raised.value.ranks == (missing,)
    world.barrier()


@lazy(ranks=3, backend="none")
def test_prewarmed_too_late(world) -> None:
    """An error on every rank, instead of a hang."""
    dist.init_process_group("gloo")  # over TCP, by a connection that is open
    starve_who_connects(world, dist.group.WORLD)
    with pytest.raises(prewarm.NotConnectedError) as raised:
        prewarm.prewarm_process_groups(timeout=SHORT)
    print(raised.value)
    world.barrier()


@pytest.mark.multihost(ranks=2, backend="nccl", timeout=120)
def test_prewarmed_with_nccl(world) -> None:
    """The same call, on the current device of each rank."""
    group = dist.new_group([0, 1])
    for coverage in ("all_pairs", "barrier"):
        prewarm.prewarm_process_groups(coverage=coverage, timeout=LIMIT)
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total, group=group)
    assert total.item() == 2
