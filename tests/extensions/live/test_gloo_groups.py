"""Who may be a member of a group, by the connections of gloo."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import builders

from pytest_multihost.extensions.live.gloo_groups import with_gloo_members
from pytest_multihost.extensions.live.waits import SeenWait, as_of_some
from pytest_multihost.testing import Descriptor, Endpoint, KernelSnapshot, Process, Thread

Groups = tuple[frozenset[int], ...]
"""The groups that one rank has made, in the order in which it has."""

END = (Endpoint("127.0.0.1", 5000), Endpoint("127.0.0.1", 6000))


def groups(*members: Collection[int]) -> Groups:
    """Return groups of these members."""
    return tuple(map(frozenset, members))


def gloo_rank(rank: int, made: Groups, *held: Descriptor) -> Process:
    """Return a rank with one thread of gloo for each group, which watches its connections."""
    loops, found = [Thread(tid=100 * rank)], [*held]
    for number, members in enumerate(made, 1):
        peers = [each for each in sorted(members) if each != rank]
        fds = tuple(100 * number + each for each in peers)
        found += [
            Descriptor(fd=fd, target="socket:[1]", kind="tcp", endpoints=END, holder=100 * peer)
            for fd, peer in zip(fds, peers, strict=True)
        ]
        target = "anon_inode:[eventpoll]"
        found.append(Descriptor(fd=10 * number, target=target, kind="epoll", watched=fds))
        tid = 100 * rank + number
        loops.append(Thread(tid=tid, name="gloo_tcp_loop", args=(10 * number,), started_s=number))
    by_number = {each.fd: each for each in found}
    return Process(pid=100 * rank, rank=rank, threads=tuple(loops), descriptors=by_number)


def job(made: Mapping[int, Groups]) -> KernelSnapshot:
    """Return a job whose ranks have made these groups."""
    return builders.kernel_snapshot(*(gloo_rank(rank, each) for rank, each in made.items()))


def some(name: str = "broadcast") -> SeenWait:
    """Return a wait in a collective of an unknown group of five ranks."""
    return SeenWait(
        as_of_some(
            builders.operation(
                name, has_members=False, sequence=0, source="python-frames", group=tuple(range(5))
            )
        )
    )


def default(name: str = "all_reduce") -> SeenWait:
    """Return a wait in a collective of the default group."""
    found = builders.operation(name, sequence=0, source="python-frames", group=tuple(range(5)))
    return SeenWait(found)


def members(waits: Mapping[int, SeenWait], snapshot: KernelSnapshot) -> dict[int, list[int]]:
    """Return the ranks that may take part in the operation of each rank."""
    told = with_gloo_members(waits, snapshot)
    return {r: [*each.operation.group] for r, each in told.items() if each.operation is not None}


WEIGHTS = groups({0, 2, 3})
JOINED = {
    0: groups({0, 1}) + WEIGHTS,
    1: groups({0, 1}),
    2: groups({2, 3}) + WEIGHTS,
    3: groups({2, 3}) + WEIGHTS,
    4: groups({4}),
}
"""Two trainers, two engines and a driver; the first trainer sends weights to the engines."""


def test_a_rank_without_a_connection_to_the_waiting_ranks_is_no_member() -> None:
    """An innocent: the second trainer and the driver have nothing to do."""
    assert members({2: some(), 3: some()}, job(JOINED)) == {2: [0, 2, 3], 3: [0, 2, 3]}


def test_the_group_that_all_waiting_ranks_are_in_is_the_likely_one() -> None:
    """The trainer's own group has the other trainer in it, but no engine."""
    assert members({0: some(), 2: some()}, job(JOINED)) == {0: [0, 2, 3], 2: [0, 2, 3]}


def test_a_rank_may_wait_in_any_group_that_it_is_in() -> None:
    """One rank alone does not tell its groups apart."""
    assert members({0: some()}, job(JOINED)) == {0: [0, 1, 2, 3]}


def test_each_program_has_a_default_group_of_its_own() -> None:
    """The engines reduce among themselves; no trainer is missing."""
    waits = {2: default(), 3: default("barrier")}
    assert members(waits, job(JOINED)) == {2: [2, 3], 3: [2, 3]}


def test_a_group_that_its_members_have_not_made_first_is_no_default_group() -> None:
    """An innocent: rank 1 had another group before, so this group may be any."""
    made = {0: groups({0, 1}), 1: groups({1, 2}, {0, 1}), 2: groups({1, 2})}
    assert members({0: default()}, job(made)) == {0: [0, 1, 2, 3, 4]}


def test_connections_to_unknown_processes_tell_nothing() -> None:
    """A member on a machine that nobody looks at may be the one that is missing."""
    made = {2: WEIGHTS, 3: WEIGHTS}
    assert members({2: some(), 3: some()}, job(made)) == {2: [*range(5)], 3: [*range(5)]}


def test_a_rank_without_a_thread_of_gloo_keeps_its_possible_members() -> None:
    """Its group is of another backend."""
    made = {0: groups(), 1: groups(), 2: groups()}
    assert members({0: some(), 1: default()}, job(made)) == {0: [*range(5)], 1: [*range(5)]}


def test_gloo_tells_nothing_about_the_groups_of_a_rank_with_a_gpu() -> None:
    """An innocent: NCCL may connect ranks that gloo does not."""
    gpu = Descriptor(fd=3, target="/dev/nvidia0", kind="device")
    ranks = [gloo_rank(rank, groups({0, 1}), gpu) for rank in (0, 1)]
    assert members({0: some()}, builders.kernel_snapshot(*ranks)) == {0: [*range(5)]}


def test_a_group_that_is_being_made_has_no_connections_yet() -> None:
    """All ranks of the job may be asked to join it."""
    asked = some("new_group")
    assert members({0: asked}, job(JOINED)) == {0: [*range(5)]}
