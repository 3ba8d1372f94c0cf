from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from pytest_multihost import World

pytestmark = pytest.mark.multihost(ranks=4, backend="gloo", timeout=60)

Batch = tuple[torch.Tensor, ...]


@pytest.fixture
def mesh(world: World) -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh("cpu", (world.size,))


@pytest.fixture
def batch() -> Batch:
    """The whole batch, the same on all ranks: a function worth learning."""
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(7))
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


def _make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def _share(batch: Batch, world: World) -> Batch:
    """Return this rank's part of the batch."""
    return tuple(part.chunk(world.size)[world.rank] for part in batch)


def _learn(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Train on `batch` once and return the loss; the gradients stay."""
    inputs, targets = batch
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def test_data_parallel_training_is_training_on_the_whole_batch(world: World, batch: Batch) -> None:
    """DDP's gradients are those of one process with all data, and its ranks end up equal."""
    ours = _make_model(seed=world.rank)  # DDP has to make them equal
    parallel = nn.parallel.DistributedDataParallel(ours)
    alone = _make_model(seed=0)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (ours, alone)]

    losses = []
    for _ in range(20):
        shares = world.gather(_learn(parallel, optimizers[0], _share(batch, world)))
        losses.append(_learn(alone, optimizers[1], batch))
        assert sum(shares) / world.size == pytest.approx(losses[-1])
        for mine, reference in zip(ours.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, reference.grad)

    assert losses[-1] < losses[0] / 2
    parameters = world.gather([parameter.tolist() for parameter in ours.parameters()])
    assert parameters == [parameters[0]] * world.size


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ([Shard(0)], [Shard(0)]),
        ([Shard(0)], [Shard(1)]),
        ([Shard(1)], [Replicate()]),
        ([Replicate()], [Shard(0)]),
    ],
    ids=["rows to rows", "rows to columns", "columns to all", "all to rows"],
)
def test_a_sharded_tensor_is_loaded_in_any_layout(
    saved: list[Placement], loaded: list[Placement], mesh: DeviceMesh, shared_tmp_path: Path
) -> None:
    """dcp.load brings back what dcp.save wrote, also where other ranks hold the parts."""
    values = torch.arange(60.0).reshape(10, 6)  # four ranks divide neither evenly
    dcp.save({"values": distribute_tensor(values, mesh, saved)}, checkpoint_id=shared_tmp_path)

    state = {"values": distribute_tensor(torch.zeros_like(values), mesh, loaded)}
    dcp.load(state, checkpoint_id=shared_tmp_path)

    assert state["values"].placements == tuple(loaded)
    torch.testing.assert_close(state["values"].full_tensor(), values, rtol=0, atol=0)


def test_each_ranks_own_state_is_checkpointed_beside_the_others(
    world: World, shared_tmp_path: Path
) -> None:
    """Plain tensors under names of the ranks' own all arrive, for whoever asks for them."""
    mine = {f"rank {world.rank}": torch.full((3,), float(world.rank)), "step": 17}
    dcp.save(mine, checkpoint_id=shared_tmp_path)

    neighbour = (world.rank + 1) % world.size
    state: dict[str, Any] = {f"rank {neighbour}": torch.zeros(3), "step": 0}
    dcp.load(state, checkpoint_id=shared_tmp_path)

    assert state["step"] == 17
    assert state[f"rank {neighbour}"].tolist() == [float(neighbour)] * 3


def test_fully_sharded_training_goes_on_from_a_checkpoint(
    world: World, mesh: DeviceMesh, batch: Batch, shared_tmp_path: Path
) -> None:
    """FSDP2's model and optimizer are restored so exactly that the next step is the same."""

    def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = fully_shard(_make_model(seed), mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    first, second = make(seed=0), make(seed=1)
    for _ in range(3):
        _learn(*first, _share(batch, world))
    dcp.save(_state(*first), checkpoint_id=shared_tmp_path)

    restored = _state(*second)
    dcp.load(restored, checkpoint_id=shared_tmp_path)
    set_state_dict(
        *second, model_state_dict=restored["model"], optim_state_dict=restored["optimizer"]
    )
    losses = [_learn(*trained, _share(batch, world)) for trained in (first, second)]

    assert losses[0] == losses[1]
    for one, other in zip(first[0].parameters(), second[0].parameters(), strict=True):
        assert isinstance(one, DTensor)
        assert torch.equal(one.full_tensor(), other.full_tensor())


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}
