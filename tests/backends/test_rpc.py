"""What the recorder for torch.distributed.rpc notes, and what it leaves as it is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

from pytest_multihost import World
from pytest_multihost.core.rank.recorder import current_recorder
from pytest_multihost.core.slots import read_slots
from pytest_multihost.testing import CALLEE_SCOPE, Operation

pytestmark = [
    pytest.mark.multihost(ranks=2, backend="none", timeout=60),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torch uses what it has deprecated
]

_go_on = threading.Event()


def connect(world: World, store: Path, **options: object) -> str:
    """Make each rank a worker; return the other one's name."""
    rpc.init_rpc(
        f"worker{world.rank}",
        rank=world.rank,
        world_size=world.size,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{store}", **options
        ),
    )
    return f"worker{1 - world.rank}"


def threads() -> set[str]:
    """Return the names of this process's threads, as the kernel knows them."""
    return {each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")}


def open_operations(world: World) -> list[Operation]:
    """Return what this rank is in."""
    return list(read_slots(current_recorder().page.path, rank=world.rank).open)


def add(one: int, two: int) -> int:
    """Return a sum."""
    return one + two


def fail() -> None:
    """Raise an error."""
    message = "as it should"
    raise ValueError(message)


def wait() -> bool:
    """Wait until this rank is told to go on."""
    return _go_on.wait(30)


def test_results_and_errors_of_calls_pass_unchanged(world: World, shared_tmp_path: Path) -> None:
    """However they are called for."""
    to = connect(world, shared_tmp_path / "rpc")
    assert rpc.rpc_sync(to, add, args=(1, 2)) == 3
    assert torch.futures.wait_all([rpc.rpc_async(to, add, args=(n, n)) for n in (1, 2)]) == [2, 4]
    assert rpc.remote(to, add, kwargs={"one": 3, "two": 4}).to_here() == 7
    with pytest.raises(ValueError, match="as it should"):
        rpc.rpc_sync(to, fail)
    assert [each for each in open_operations(world) if each.waited_s is not None] == []
    rpc.shutdown()


@pytest.mark.parametrize("transports", [None, ["shm", "uv"]])
def test_ranks_share_no_memory_unless_the_test_says_so(
    world: World, shared_tmp_path: Path, transports: list[str] | None
) -> None:
    """The thread of that transport never sleeps."""
    connect(world, shared_tmp_path / "rpc", _transports=transports)
    assert ("TP_SHM_reactor" in threads()) == bool(transports)
    rpc.shutdown()


def test_a_call_and_the_function_called_are_recorded_while_they_last(
    world: World, shared_tmp_path: Path
) -> None:
    """One by its caller, the other by its callee."""
    to = connect(world, shared_tmp_path / "rpc")
    world.barrier("connected")
    future = rpc.rpc_async(to, wait) if world.is_primary else None
    seen: list[Operation] = []
    while not (seen := [each for each in open_operations(world) if each.kind != "collective"]):
        pass  # the call is on its way
    _go_on.set()
    [operation] = seen
    if future is None:
        assert (operation.scope, operation.detail, operation.waited_s) == (
            CALLEE_SCOPE,
            "wait",
            None,
        )
    else:
        assert (operation.name, operation.peer) == ("rpc_async(wait)", 1)
        assert future.wait()
    world.barrier("called")
    rpc.shutdown()
