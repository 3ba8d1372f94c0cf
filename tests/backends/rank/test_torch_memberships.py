"""The members of groups in which torch's ranks are not the world's, read from the slot pages."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _new_process_group_helper, _world

from pytest_multihost import World
from pytest_multihost.core.rank.recorder import current_recorder
from pytest_multihost.core.slots import read_slots, slots_path
from pytest_multihost.core.torch_private import agree_in
from pytest_multihost.testing import RUNTIME_SCOPE, Operation, find_memberships

pytestmark = pytest.mark.multihost(ranks=3, backend="none", timeout=60)

LIMIT = timedelta(seconds=50)
KEY = "pytest-multihost/0"
"""Where the members of a default group agree on its name."""


def join_world(number: int, size: int, path: Path) -> dist.Store:
    """Make a default group over a file; return its store."""
    store = dist.FileStore(str(path), size)
    dist.init_process_group("gloo", store=store, rank=number, world_size=size, timeout=LIMIT)
    return store


def join_group(number: int, size: int, path: Path) -> dist.ProcessGroup:
    """Make a group between torch worlds, as programs do."""
    store = dist.PrefixStore("between", dist.FileStore(str(path), size))
    group, _ = _new_process_group_helper(
        size, number, [], "gloo", store, group_name="between", timeout=LIMIT
    )
    _world.pg_group_ranks[group] = {each: each for each in range(size)}
    return group


def meet(group: dist.ProcessGroup | None = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(3), group=group)


def recorded(world: World, name: str = "all_reduce") -> Mapping[int, Sequence[Operation]]:
    """Return the operations of one name, by rank, once all ranks have come here."""
    world.barrier("recorded")
    scratch = current_recorder().page.path.parent
    pages = [read_slots(slots_path(scratch, rank), rank=rank) for rank in range(world.size)]
    world.barrier("read")
    found = map(find_memberships(pages).operations, pages)
    return {page.rank: [each for each in page.recent if each.name == name] for page in found}


def groups(found: Mapping[int, Sequence[Operation]]) -> dict[int, list[tuple[int, ...]]]:
    """Return the group of each operation, by rank."""
    return {rank: [each.group for each in operations] for rank, operations in found.items()}


BY_URL: dict[str, Callable[[World, Path], str]] = {
    "tcp": lambda world, _: f"tcp://127.0.0.1:{world.broadcast(_free_port())}",
    "file": lambda _, path: f"file://{path / 'store'}",
}


def _free_port() -> int:
    return dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False).port


@pytest.mark.parametrize("kind", BY_URL)
def test_a_default_group_of_two_of_three_has_the_ranks_as_members(
    world: World, shared_tmp_path: Path, kind: str
) -> None:
    """Its number 0 is rank 2. A rank outside of it has recorded nothing."""
    url = BY_URL[kind](world, shared_tmp_path)
    if world.rank:
        dist.init_process_group("gloo", init_method=url, rank=2 - world.rank, world_size=2)
        meet()
        dist.broadcast(torch.ones(3), 0)
        meet()
    assert groups(recorded(world)) == {0: [], 1: [(1, 2)] * 2, 2: [(1, 2)] * 2}
    found = recorded(world, "broadcast")
    assert [(each.root, each.sequence, each.scope) for each in found[1]] == [(2, 2, RUNTIME_SCOPE)]
    assert {each.place for each in (*found[1], *found[2])} == {found[1][0].place}
    assert found[1][0].has_members


def test_the_group_is_counted_as_one_that_is_being_made(
    world: World, shared_tmp_path: Path
) -> None:
    """It has as many members as the call says, and is over when it is made."""
    if world.rank:
        join_world(world.rank - 1, 2, shared_tmp_path / "store")
    found = recorded(world, "init_process_group")
    assert [len(found[rank]) for rank in range(3)] == [0, 1, 1]
    assert [(each.group_size, each.is_open) for each in found[1]] == [(2, False)]


def test_a_group_between_torch_worlds_has_the_ranks_as_members(
    world: World, shared_tmp_path: Path
) -> None:
    """Rank 0 is alone in its torch world, ranks 1 and 2 are in another one."""
    if world.is_primary:
        join_world(0, 1, shared_tmp_path / "one")
    else:
        join_world(world.rank - 1, 2, shared_tmp_path / "two")
    group = join_group({0: 1, 1: 2, 2: 0}[world.rank], 3, shared_tmp_path / "between")
    meet()
    meet(group)
    dist.broadcast(torch.ones(3), group=group, group_src=0)
    assert groups(recorded(world)) == {
        0: [(0,), (0, 1, 2)],
        1: [(1, 2), (0, 1, 2)],
        2: [(1, 2), (0, 1, 2)],
    }
    assert {each.root for found in recorded(world, "broadcast").values() for each in found} == {2}


def test_a_group_without_a_torch_world_has_the_ranks_as_members(
    world: World, shared_tmp_path: Path
) -> None:
    """No process has called init_process_group."""
    if world.rank != 1:
        meet(join_group({0: 1, 2: 0}[world.rank], 2, shared_tmp_path / "between"))
    assert groups(recorded(world)) == {0: [(0, 2)], 1: [], 2: [(0, 2)]}


def test_groups_made_of_the_default_group_have_the_ranks_as_members(
    world: World, shared_tmp_path: Path
) -> None:
    """Of `new_group` and of a device mesh; so has the operation in which they are made."""
    if world.rank:
        join_world(2 - world.rank, 2, shared_tmp_path / "store")
        meet(dist.new_group([0, 1]))
        meet(init_device_mesh("cpu", (2,)).get_group())
    found = recorded(world)
    assert groups(found) == {0: [], 1: [(1, 2)] * 2, 2: [(1, 2)] * 2}
    assert [each.place for each in found[1]] == [each.place for each in found[2]]
    (made, *_) = recorded(world, "new_group")[1]
    assert (made.group, made.sequence, made.has_members) == ((1, 2), 1, True)


def test_the_peer_of_a_transfer_is_a_rank(world: World, shared_tmp_path: Path) -> None:
    """Number 0 sends to number 1."""
    if world.rank:
        join_world(2 - world.rank, 2, shared_tmp_path / "store")
        if world.rank == 2:
            dist.send(torch.ones(3), 1)
        else:
            dist.recv(torch.ones(3), 0)
    assert [each.peer for each in recorded(world, "send")[2]] == [1]
    assert [each.peer for each in recorded(world, "recv")[1]] == [2]


def test_the_store_of_a_group_of_all_ranks_gets_no_key(world: World, shared_tmp_path: Path) -> None:
    """Their numbers are those of the world; in another group each member reads one key."""
    store = join_world(world.rank, 3, shared_tmp_path / "all")
    assert not store.check([KEY])
    dist.destroy_process_group()
    store = join_world((world.rank + 1) % 3, 3, shared_tmp_path / "other")
    assert store.check([KEY])


def test_a_child_process_is_not_taken_for_its_rank(world: World, shared_tmp_path: Path) -> None:
    """The member that it is stays unknown."""
    if world.rank == 1:
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=_be_member, args=(shared_tmp_path / "store",))
        child.start()
    if world.rank == 2:
        join_world(0, 2, shared_tmp_path / "store")
        meet()
    (found,) = recorded(world)[2]
    assert (found.group, found.group_size, found.has_members) == ((2,), 2, False)
    if world.rank == 1:
        child.join(30)
        assert child.exitcode == 0


def join_gloo(number: int, size: int, path: Path) -> dist.ProcessGroupGloo:
    """Make a group of gloo itself, as programs do for a pair."""
    return dist.ProcessGroupGloo(dist.FileStore(str(path), size), number, size, LIMIT)


def test_a_group_that_a_program_makes_of_gloo_has_the_ranks_as_members(
    world: World, shared_tmp_path: Path
) -> None:
    """Its operations are counted, with their root and their peer."""
    if world.rank:
        group = join_gloo(2 - world.rank, 2, shared_tmp_path / "store")
        group.allreduce([torch.ones(3)]).wait()
        group.broadcast(torch.ones(3), 0).wait()
        if world.rank == 2:
            group.send([torch.ones(3)], 1, 0).wait()
        else:
            group.recv([torch.ones(3)], 0, 0).wait()
    assert groups(recorded(world)) == {0: [], 1: [(1, 2)], 2: [(1, 2)]}
    found = recorded(world, "broadcast")
    assert [(each.root, each.sequence, each.has_members) for each in found[1]] == [(2, 2, True)]
    assert [each.peer for each in recorded(world, "send")[2]] == [1]


def test_what_fails_in_a_group_with_processes_that_are_no_ranks_is_the_ranks_own(
    world: World, shared_tmp_path: Path
) -> None:
    """Whether the program makes the group of gloo itself or has torch do so."""
    makers: list[Callable[[int, int, Path], Any]] = [join_gloo, join_world]
    if world.rank == 1:
        for index, join in enumerate(makers):
            child = multiprocessing.get_context("fork").Process(
                target=_stay_in, args=(join, shared_tmp_path / str(index))
            )
            child.start()
            group = join(0, 2, shared_tmp_path / str(index))
            child.kill()
            child.join(30)
            with pytest.raises(RuntimeError):
                (group if join is join_gloo else dist.group.WORLD).allreduce([torch.ones(3)]).wait()
    found = recorded(world)[1]
    assert [(each.failed, each.is_of_one) for each in found] == [(True, True)] * 2


def test_a_group_whose_members_meet_later_may_lack_a_rank(
    monkeypatch: pytest.MonkeyPatch, world: World, shared_tmp_path: Path
) -> None:
    """Then nothing is recorded of a group that a program makes of gloo."""
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    if world.rank:
        join_gloo(2 - world.rank, 2, shared_tmp_path / "store").allreduce([torch.ones(3)]).wait()
    assert groups(recorded(world)) == {0: [], 1: [], 2: []}


def test_a_store_of_another_kind_gets_no_key_for_a_group_of_gloo(
    world: World, shared_tmp_path: Path
) -> None:
    """The group is made as before, and is not recorded."""
    if world.rank:
        store = CopyingStore(dist.FileStore(str(shared_tmp_path / "store"), 2))
        group = dist.ProcessGroupGloo(store, 2 - world.rank, 2, LIMIT)
        group.allreduce([torch.ones(3)]).wait()
        assert not [each for each in store.keys if "pytest" in each]
    assert groups(recorded(world)) == {0: [], 1: [], 2: []}


def _stay_in(join: Callable[[int, int, Path], Any], path: Path) -> None:
    _kept = join(1, 2, path)
    time.sleep(LIMIT.total_seconds())


def _be_member(path: Path) -> None:
    join_world(1, 2, path)
    meet()


class OwnStore(dist.Store):
    """A store of a program's own."""


class CopyingStore(OwnStore):
    """A store that keeps the keys for which another one is asked."""

    def __init__(self, behind: dist.Store) -> None:
        """Ask another store."""
        super().__init__()
        self.behind, self.keys = behind, list[str]()

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self.keys.append(key)
        self.behind.set(key, value)

    def get(self, key: str) -> bytes:
        """Return the value of a key, once it is there."""
        return self.behind.get(key)

    def wait(self, keys: list[str], timeout: timedelta = LIMIT) -> None:
        """Wait for keys."""
        self.behind.wait(keys, timeout)

    def add(self, key: str, number: int) -> int:
        """Add to a key."""
        return self.behind.add(key, number)


def test_a_store_of_a_programs_own_is_left_alone() -> None:
    """It may wait for ever, or count what it is asked."""
    with pytest.raises(TypeError, match="not a store of torch"):
        agree_in(dist.PrefixStore("of a program", OwnStore()), "key", "value")


@pytest.mark.multihost(ranks=1)
def test_the_first_proposal_is_agreed_on(tmp_path: Path) -> None:
    """In each of torch's stores, and behind a prefix."""
    stores = [
        dist.HashStore(),
        dist.FileStore(str(tmp_path / "store"), 1),
        dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False),
    ]
    for store in stores:
        assert agree_in(dist.PrefixStore("a", store), "key", "first") == "first"
        assert agree_in(dist.PrefixStore("a", store), "key", "second") == "first"
        assert agree_in(store, "a/key", "third") == "first"
