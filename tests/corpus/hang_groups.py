"""Several process groups: their order, their members, and chains from one to the next."""

from __future__ import annotations

import socket
import time

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S, cut_off, listening_ports, starve_descriptors


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang("deadlock", ranks=2, backend="gloo")
def test_two_groups_in_opposite_order(world) -> None:
    """Two ranks use the same two groups in opposite order.

    Source: https://github.com/meta-pytorch/torchrec/pull/4149
    """
    groups = [dist.new_group(), dist.new_group()]
    for index in (0, 1) if world.is_primary else (1, 0):
        meet(groups[index])


@hang("deadlock", ranks=4, backend="gloo")
def test_ring_of_pairs_next_neighbour_first(world) -> None:
    """Each rank warms the group with its next neighbour first, all around the ring.

    Source: field report class: prewarming of overlapping groups in a rank-dependent order
    """
    pairs = [[0, 1], [1, 2], [2, 3], [0, 3]]
    groups = [dist.new_group(pair) for pair in pairs]
    for index in (world.rank, (world.rank - 1) % 4):
        dist.barrier(groups[index])


@hang(
    "straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], where="time.sleep(FOREVER_S"
)
def test_chain_of_two_groups(world) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which sleeps.

    Source: field report class: the stalled group is not the one that complains first
    """
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    if world.rank == 2:
        time.sleep(FOREVER_S)
    if world.rank >= 1:
        meet(second)
    if world.rank <= 1:
        meet(first)


@hang("finished", ranks=5, backend="gloo", culprits=[4], waiting=[0, 1, 2, 3])
def test_chain_of_four_groups_whose_end_has_left(world) -> None:
    """Four groups form a chain, the last member has already returned.

    Source: field report class: pipeline of stages, the last one has one micro-batch less
    """
    groups = [dist.new_group([low, low + 1]) for low in range(4)]
    if world.rank == 4:
        return
    meet(groups[world.rank])
    meet(groups[world.rank - 1])


@hang("straggler", ranks=4, backend="gloo", culprits=[3], waiting=[0, 1, 2])
def test_mesh_of_two_dimensions(world) -> None:
    """On a 2 x 2 mesh one rank sleeps: its row and its column wait, and the rest for these.

    Source: https://github.com/pytorch/pytorch/issues/130102
    """
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    if world.rank == 3:
        time.sleep(FOREVER_S)
    meet(columns[1] if world.rank == 1 else rows[world.rank // 2])
    meet(columns[0])


@hang("straggler", ranks=4, backend="gloo", culprits=[2], waiting=[0, 1])
def test_new_group_without_a_member(world) -> None:
    """Two of three members create their group, the third sleeps; the rest has returned.

    Source: https://github.com/pytorch/pytorch/issues/81291
    """
    if world.rank == 2:
        time.sleep(FOREVER_S)
    if world.rank < 2:
        dist.new_group([0, 1, 2])


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_new_group_after_a_member_left(world) -> None:
    """Two of three members create their group, the third has returned.

    Source: https://github.com/pytorch/pytorch/issues/81291
    """
    if world.rank < 2:
        dist.new_group([0, 1, 2])


@hang(
    "deadlock",
    ranks=3,
    backend="gloo",
    culprits=[],
    waiting=None,
    also=[{"kind": "transport", "culprits": []}, {"kind": "mismatch", "culprits": []}],
    why="one group under two names: whether it is one operation depends on what names it",
)
def test_local_synchronization_with_unequal_counts(world) -> None:
    """Members that own different numbers of groups derive different names for the same group.

    Source: https://github.com/NVIDIA/Megatron-LM/pull/5214
    """
    if world.rank <= 1:
        dist.new_group([0, 1], use_local_synchronization=True)
    if world.rank >= 1:
        dist.new_group([1, 2], use_local_synchronization=True)


@hang(
    "transport",
    ranks=4,
    backend="gloo",
    culprits=[],
    waiting=None,
    also=[{"kind": "transport", "culprits": [2]}],
    why="the cut-off rank may be named where evidence names it",
)
def test_link_is_dead(world) -> None:
    """All ranks enter the all_reduce and nothing reaches rank 2.

    Source: field report class: a link that drops everything
    """
    meet()
    if world.rank == 2:
        assert cut_off()
    world.barrier("cut off")
    meet()


@hang(
    "raised",
    ranks=4,
    backend="gloo",
    culprits=[3],
    waiting=None,
    by=("raise", "proof"),
    outcome=("failed", "hung"),
    also=[{"kind": "transport", "culprits": [3]}],
    why="it raises, and what it raises is a failed bootstrap",
    env={"TORCH_GLOO_LAZY_INIT": "1"},
)
def test_lazy_group_without_descriptors(world) -> None:
    """A lazily connected group is first used when one rank has no file descriptor left.

    The rank that connects gets the error and nobody tells the others.

    Source: https://github.com/NVIDIA/Megatron-LM/pull/5214 (groups made lazily, used late)
    """
    meet()
    group = last_connects()
    if world.rank == 3:
        starve_descriptors()
    meet(group)


def last_connects() -> object:
    """Return a new group in which the last rank opens all its connections itself.

    A starved rank that only accepts would abort instead. Of two ranks the one with the larger
    address connects, and if they have the same, the one with the larger port, read in network
    order. Hosts get their addresses in order. Ports are drawn, so groups are made until the last
    rank has drawn the largest.
    """
    address = int.from_bytes(socket.inet_aton(socket.gethostbyname(socket.gethostname())), "big")
    while True:
        before = listening_ports()
        group = dist.new_group()
        keys = torch.zeros(4, dtype=torch.int64)
        ports = listening_ports() - before
        keys[dist.get_rank()] = (address << 16) + max(socket.htons(port) for port in ports)
        dist.all_reduce(keys)
        if int(keys.argmax()) == 3:
            return group
        assert len({int(key) >> 16 for key in keys}) == 1, "addresses are not in order"


@hang("mismatch", ranks=4, backend="gloo", culprits=[3], waiting=[2], where="new_subgroups")
def test_subgroups_of_another_size(world) -> None:
    """One rank makes one group of four, the others pairs; the first pair is complete and leaves.

    Source: field report class: the size of a node is read from an environment that differs
    """
    dist.new_subgroups(group_size=4 if world.rank == 3 else 2)


@hang("mismatch", ranks=4, backend="gloo", culprits=[2], waiting=[0, 1, 3], where="new_group")
def test_third_group_has_other_members(world) -> None:
    """Two groups are asked for alike; in the third, one rank names all ranks.

    Source: field report class: a list of ranks that one rank computes from a wrong size
    """
    dist.new_group([0, 1])
    dist.new_group([2, 3])
    dist.new_group([0, 1, 2, 3] if world.rank == 2 else [1, 2])
    dist.barrier()


@hang("mismatch", ranks=4, backend="gloo", culprits=[1], waiting=[0], where="enumeration")
def test_pairs_are_enumerated_in_another_way(world) -> None:
    """One rank pairs the ranks crosswise, and the others side by side.

    Source: field report class: the order of a mesh's axes differs on one rank
    """
    pairs = [[0, 2], [1, 3]] if world.rank == 1 else [[0, 1], [2, 3]]
    dist.new_subgroups_by_enumeration(pairs)


@hang("finished", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_group_that_one_rank_does_not_make(world) -> None:
    """A rank leaves without the last group, which it is a member of.

    Source: field report class: a group of the ranks with work, made only by some
    """
    dist.new_group([0, 1])
    if world.rank != 2:
        dist.new_group([0, 1, 2])
