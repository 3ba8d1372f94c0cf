"""Hangs from public threads whose cause is the shape of a world, each with its mended twin.

Each function gets the world and whether it is mended. A line that ranks of one side are in has the
comment `one`, a line of the other side the comment `other`. A world that hangs must name both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

World = Any
Bug = Callable[[World, Path, bool], None]

SIZES = {8: (4, 1, 2), 64: (4, 8, 2), 256: (4, 32, 2), 1024: (4, 128, 2)}
"""Sizes of worlds, with their pipeline, data and tensor parallel sizes."""


def _mesh(world: World) -> Any:  # noqa: ANN401 - torch's
    return dist.init_device_mesh("cpu", SIZES[world.size], mesh_dim_names=("pp", "dp", "tp"))


def _sum(value: float, group: Any = None) -> float:  # noqa: ANN401 - torch's
    found = torch.tensor([float(value)])
    dist.all_reduce(found, group=group)
    return float(found)


def stages_without_such_layers(world: World, _folder: Path, is_mended: bool) -> None:
    """NVIDIA/Megatron-LM#4745: a stage without the layers that have a loss returns early."""
    mesh = _mesh(world)
    stage, group = mesh.get_local_rank("pp"), mesh["pp"].get_group()
    losses = {0: [], 1: [0.5], 2: [], 3: [0.25]}[stage]
    if losses or is_mended:
        _reduce_losses(losses, group)
    dist.barrier()  # other


def _reduce_losses(losses: list[float], group: Any) -> None:  # noqa: ANN401 - torch's
    found = torch.tensor([float(sum(losses))])
    dist.all_reduce(found, group=group)  # one


def both_stages_send_first(world: World, _folder: Path, is_mended: bool) -> None:
    """pytorch/pytorch#172668: neighbours of a looped pipeline wait for their sends first."""
    peer, mine, theirs = world.rank ^ 1, torch.ones(4), torch.zeros(4)
    if is_mended and world.rank % 2:
        dist.recv(theirs, peer)
        dist.send(mine, peer)
    else:
        dist.send(mine, peer)  # one other
        dist.recv(theirs, peer)


def reduces_before_it_sends(world: World, _folder: Path, is_mended: bool) -> None:
    """jundot/omlx#3521: a stage reduces before it sends what the next one waits for."""
    last, hidden = world.size - 1, torch.ones(2)
    if world.rank == last:
        dist.recv(hidden, last - 1)  # one
        _sum(1)
        return
    if world.rank == last - 1 and is_mended:
        dist.send(hidden, last)
    dist.all_reduce(torch.ones(1))  # other
    if world.rank == last - 1 and not is_mended:
        dist.send(hidden, last)


def batches_are_dealt_unevenly(world: World, _folder: Path, is_mended: bool) -> None:
    """k2-fsa/snowfall#152: a share is rounded up, so the last rank gets fewer batches."""
    total = world.size * 3 - 1
    share = -(-total // world.size)
    first = share * world.rank
    batches = range(first, min(first + share, total))
    if is_mended:
        least = torch.tensor([len(batches)])
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        batches = batches[: int(least)]
    for _ in batches:
        dist.all_reduce(torch.ones(3))  # one
    dist.barrier()  # other


def the_last_part_has_fewer_batches(world: World, _folder: Path, is_mended: bool) -> None:
    """dmlc/dgl#2539: 1025 seeds for each rank are two batches, and for the last one just one."""
    seeds = torch.arange(1025 * world.size - 3)
    mine = seeds.split(1025)[world.rank]
    batches = mine.split(1024)[: 1 if is_mended else None]
    for each in batches:
        gradient = torch.tensor([float(each.numel())])
        dist.all_reduce(gradient)  # one
    objects = [None] * world.size
    dist.all_gather_object(objects, len(batches))  # other


def ranks_disagree_about_a_file(world: World, folder: Path, is_mended: bool) -> None:
    """KempnerInstitute/KempnerForge#49: some ranks do not see the file of a checkpoint yet."""
    seen = world.rank < world.size - 2
    if is_mended:
        told = [seen if world.rank == 0 else None]
        dist.broadcast_object_list(told, src=0)
        seen = bool(told[0])
    if seen:
        state = [{"step": 3}] if world.rank == 0 else [None]
        dist.broadcast_object_list(state, src=0)  # one
    assert folder
    dist.barrier()  # other


def a_barrier_meets_a_thread(world: World, _folder: Path, is_mended: bool) -> None:
    """KempnerInstitute/KempnerForge#105: the thread of an asynchronous save uses the same group."""
    group = dist.new_group() if is_mended else dist.group.WORLD
    gate, order = threading.Event(), world.rank % 2

    def save() -> None:
        gate.wait()
        dist.all_reduce(torch.ones(1), group=group)  # one

    thread = threading.Thread(target=save)
    thread.start()
    if order:
        gate.set()
        if not is_mended:
            thread.join()
        dist.barrier()
    else:
        dist.barrier()  # other
        gate.set()
        thread.join()


def an_error_skips_the_barrier(world: World, folder: Path, is_mended: bool) -> None:
    """PrimeIntellect-ai/prime-rl#1593: a copy that fails skips the barrier, and is ignored."""
    try:
        if world.rank == 0:
            (folder / "missing" / "state").read_bytes()
        if not is_mended:
            dist.barrier()  # one
    except FileNotFoundError:
        pass
    if is_mended:
        dist.barrier()
    dist.all_reduce(torch.ones(1))  # other


def an_expert_without_tokens(world: World, _folder: Path, is_mended: bool) -> None:
    """NVIDIA/Megatron-LM#4851: a rank that gets no token leaves out the way back."""
    size = world.size
    counts = [0 if to == size - 1 else 2 for to in range(size)]
    got = [counts[world.rank]] * size
    sent, taken = torch.ones(sum(counts)), torch.zeros(sum(got))
    dist.all_to_all_single(taken, sent, got, counts)
    if taken.numel() or is_mended:
        dist.all_to_all_single(sent, taken, counts, got)  # one
    dist.barrier()  # other


def sentences_have_different_lengths(world: World, _folder: Path, is_mended: bool) -> None:
    """microsoft/Tutel#182: validation takes as many forward passes as the sentence is long."""
    length = 3 + world.rank % 2
    longest = torch.tensor([length])
    if is_mended:
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    for _ in range(int(longest)):
        dist.all_to_all_single(torch.zeros(world.size), torch.ones(world.size))  # one
    dist.all_reduce(torch.ones(1))  # other


def parity_of_an_odd_ring(world: World, _folder: Path, is_mended: bool) -> None:
    """ByteDance-Seed/VeOmni#1085: even ranks send on one group, odd ranks on another."""
    members = list(range(world.size if is_mended else world.size - 1))
    first, second = dist.new_group(members), dist.new_group(members)
    if world.rank not in members:
        return
    ahead, behind = (world.rank + 1) % len(members), (world.rank - 1) % len(members)
    out, into = (first, second) if world.rank % 2 == 0 else (second, first)
    if is_mended and world.rank % 2:
        dist.recv(torch.zeros(2), behind, group=into)
        dist.send(torch.ones(2), ahead, group=out)
        return
    send = dist.isend(torch.ones(2), ahead, group=out)
    dist.recv(torch.zeros(2), behind, group=into)  # one
    send.wait()  # other


def some_stop_early(world: World, _folder: Path, is_mended: bool) -> None:
    """speechbrain/speechbrain#1939: each rank stops training by its own validation loss."""
    loss = 1.0 if world.rank < world.size // 2 else 0.5
    if is_mended:
        loss = _sum(loss) / world.size
    for epoch in range(3):
        if epoch == 2 and loss > 0.9:
            break
        dist.all_reduce(torch.ones(2))  # one
    dist.broadcast(torch.ones(1), world.size - 1)  # other


def one_side_gathers(world: World, _folder: Path, is_mended: bool) -> None:
    """horovod/horovod#2420: rank 0 reduces while the others gather."""
    found = [torch.zeros(1) for _ in range(world.size)]
    if world.rank == 0 and not is_mended:
        dist.all_reduce(found[0])  # one
    else:
        dist.all_gather(found, torch.ones(1))  # other
    dist.barrier()


def frozen_parameters_return_early(world: World, _folder: Path, is_mended: bool) -> None:
    """konstmish/prodigy#35: a rank whose shard has only frozen parameters returns early."""
    trainable = [1.0] if world.rank % 4 else []
    if trainable or is_mended:
        dist.all_reduce(torch.tensor([float(sum(trainable))]))  # one
    dist.barrier()  # other


def parameters_without_a_gradient(world: World, _folder: Path, is_mended: bool) -> None:
    """OpenTSLM/OpenTSLM#49: only gradients that exist are averaged, and one rank lacks one."""
    gradients = [torch.ones(2), None if world.rank == 1 else torch.ones(3)]
    for size, each in zip((2, 3), gradients, strict=True):
        if each is not None or is_mended:
            found = torch.zeros(size) if each is None else each
            dist.all_reduce(found)  # one
    dist.broadcast(torch.ones(1), 0)  # other


def samples_too_short_for_a_block(world: World, _folder: Path, is_mended: bool) -> None:
    """NVIDIA-NeMo/Automodel#2468: a rank whose samples are too short skips its backward pass."""
    is_valid = world.rank != world.size - 1
    if is_mended:
        every = torch.tensor([int(is_valid)])
        dist.all_reduce(every, op=dist.ReduceOp.MIN)
        is_valid = bool(every)
    if is_valid:
        dist.all_reduce(torch.ones(5))  # one
    objects = [None] * world.size
    dist.all_gather_object(objects, world.rank)  # other


def an_empty_shard_has_no_metric(world: World, _folder: Path, is_mended: bool) -> None:
    """sgl-project/SpecForge#637: a rank whose shard is empty has no metric to reduce."""
    metric = None if world.rank >= world.size - 2 else torch.ones(2)
    _sum(0.0 if metric is None else 1.0)
    if is_mended and metric is None:
        metric = torch.zeros(2)
    if metric is not None:
        dist.all_reduce(metric)  # one
    dist.barrier()  # other


def shards_are_dealt_unevenly(world: World, _folder: Path, is_mended: bool) -> None:
    """roboflow/rf-detr#1396: one more shard than ranks gives one rank a batch more."""
    shards = list(range(world.size + 1))[world.rank :: world.size]
    for _ in shards[: 1 if is_mended else None]:
        dist.all_reduce(torch.ones(4))  # one
    dist.barrier()  # other


def types_in_another_order(world: World, _folder: Path, is_mended: bool) -> None:
    """NVIDIA/apex#19: tensors are reduced by type, in the order of a dictionary."""
    kinds = {"float32": torch.float32, "float64": torch.float64}
    names = sorted(kinds) if is_mended or world.rank % 2 else sorted(kinds, reverse=True)
    for name in names:
        if name == "float32":
            dist.all_reduce(torch.ones(2, dtype=kinds[name]))  # one
        else:
            dist.broadcast(torch.ones(2, dtype=kinds[name]), 0)  # other


def two_axes_in_two_orders(world: World, _folder: Path, is_mended: bool) -> None:
    """meta-pytorch/torchrec#4149: late ranks reduce before the exchange that the others begin."""
    mesh, size = _mesh(world), world.size
    replicate = mesh["pp"].get_group()
    is_late = mesh.get_local_rank("pp") == 3 and mesh.get_local_rank("tp") == 1
    if is_late and not is_mended:
        dist.all_reduce(torch.ones(1), group=replicate)  # one
        dist.all_to_all_single(torch.zeros(size), torch.ones(size))
    else:
        dist.all_to_all_single(torch.zeros(size), torch.ones(size))  # other
        dist.all_reduce(torch.ones(1), group=replicate)


def groups_are_made_by_their_members_only(world: World, _folder: Path, is_mended: bool) -> None:
    """pytorch/pytorch#25390: ranks make different groups with one call, in different numbers."""
    halves = [list(range(world.size // 2)), list(range(world.size // 2, world.size))]
    mine = world.rank // (world.size // 2)
    if is_mended:
        group = [dist.new_group(each) for each in halves][mine]
    else:
        if mine:
            dist.new_group([world.rank])
        group = dist.new_group(halves[mine])
    _sum(1, group)
    everyone = dist.new_group()  # one other
    _sum(1, everyone)


def two_groups_in_opposite_orders(world: World, _folder: Path, is_mended: bool) -> None:
    """run-ai/runai-model-streamer#165: ranks of two groups broadcast in them in two orders."""
    members = [0, 1]
    first, second = dist.new_group(members), dist.new_group(members)
    if world.rank in members:
        is_swapped = world.rank == 1 and not is_mended
        early, late = (second, first) if is_swapped else (first, second)
        dist.all_reduce(torch.ones(2), group=early)  # one other
        dist.all_reduce(torch.ones(2), group=late)


def fewer_steps_without_the_last_batch(world: World, _folder: Path, is_mended: bool) -> None:
    """argonne-lcf/dlio_benchmark#339: a share that is one sample short has one full batch less."""
    samples = range(world.size * 49 - 2)
    mine = len(samples[world.rank :: world.size])
    steps = (len(samples) // world.size if is_mended else mine) // 49
    for _ in range(steps + 1):
        dist.all_reduce(torch.ones(1))  # one
    shapes = [None] * world.size
    dist.all_gather_object(shapes, steps)  # other


def an_overflow_on_one_stage(world: World, _folder: Path, is_mended: bool) -> None:
    """hpcaitech/ColossalAI#1175: a stage whose gradients overflow skips the norm of all stages."""
    mesh = _mesh(world)
    group, is_last = mesh["pp"].get_group(), mesh.get_local_rank("pp") == 3
    norm = torch.tensor([float("inf") if is_last else 1.0])
    if is_mended:
        dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=group)
    if torch.isfinite(norm):
        dist.all_reduce(norm, group=group)  # one
    dist.barrier()  # other


def a_rank_that_owns_no_expert(world: World, _folder: Path, is_mended: bool) -> None:
    """deepspeedai/DeepSpeed#8478: the norm of experts is reduced where a rank has experts."""
    mesh = _mesh(world)
    owns = mesh.get_local_rank("pp") % 2 == 0
    experts = mesh["pp"].get_group()
    norm = torch.tensor([4.0 if owns else 0.0])
    dist.all_reduce(norm, group=mesh["tp"].get_group())
    if owns or is_mended:
        dist.all_reduce(norm, group=experts)  # one
    dist.broadcast(torch.ones(1), 0)  # other


def frozen_ranks_return_before_two_norms(world: World, _folder: Path, is_mended: bool) -> None:
    """areal-project/AReaL#1139: a rank without gradients leaves out two norms, of two groups."""
    mesh = _mesh(world)
    data, model = mesh["dp"].get_group(), mesh["tp"].get_group()
    gradients = [] if mesh.get_local_rank("tp") == 1 else [torch.ones(3)]
    if gradients or is_mended:
        norm = torch.tensor([float(sum(each.sum() for each in gradients))])
        dist.all_reduce(norm, group=data)
        dist.all_reduce(norm, group=model)  # one
    dist.barrier()  # other


def a_model_gets_another_batch(world: World, _folder: Path, is_mended: bool) -> None:
    """microsoft/PyMarlin#80: DDP's reducer waits for a batch that the last rank does not have."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    batches = 2 if world.rank == world.size - 1 else 3
    for _ in range(2 if is_mended else batches):
        model(torch.ones(1, 2)).sum().backward()  # one
    dist.barrier()  # other


def only_the_first_rank_validates(world: World, _folder: Path, is_mended: bool) -> None:
    """pytorch/pytorch#54059: a forward pass of DDP on one rank broadcasts the buffers."""
    torch.manual_seed(0)
    module = torch.nn.BatchNorm1d(2)
    model = DistributedDataParallel(module)
    model(torch.rand(4, 2)).sum().backward()
    if world.rank == 0:
        (module if is_mended else model)(torch.rand(4, 2))  # one
    dist.barrier()  # other


def weights_are_sent_between_gathers(world: World, _folder: Path, is_mended: bool) -> None:
    """huggingface/trl#7103: rank 0 sends to the engine, the others gather the next weight."""
    engine = world.size - 1
    trainers = dist.new_group(list(range(engine)))
    weight, parts = torch.ones(2), [torch.zeros(2) for _ in range(engine)]
    if world.rank == engine:
        if is_mended:
            dist.recv(weight, 0)
            dist.recv(weight, 0)
        dist.barrier()  # other
        return
    for _ in range(2):
        dist.all_gather(parts, weight, group=trainers)
        if world.rank == 0 and not is_mended:
            dist.send(weight, engine)  # one
    if world.rank == 0 and is_mended:
        dist.send(weight, engine)
        dist.send(weight, engine)
    dist.barrier()


def embeddings_of_the_first_stage_only(world: World, _folder: Path, is_mended: bool) -> None:
    """dylanyunlon/Neuron_SP#51: first and last stage share embeddings, and only one reduces."""
    mesh = _mesh(world)
    stage, ends = mesh.get_local_rank("pp"), mesh["pp"].get_group()
    is_reducing = stage in (0, 3) if is_mended else stage == 0
    every = dist.get_process_group_ranks(ends)
    pairs = [dist.new_group([each[0], each[-1]]) for each in _columns(world, len(every))]
    own = pairs[_columns(world, len(every)).index(every)]
    if is_reducing:
        dist.all_reduce(torch.ones(4), group=own)  # one
    dist.barrier()  # other


def _columns(world: World, stages: int) -> list[list[int]]:
    """Return the ranks of each pipeline: those with the same other coordinates."""
    step = world.size // stages
    return [list(range(first, world.size, step)) for first in range(step)]


def a_looped_pipeline_without_batches(world: World, _folder: Path, is_mended: bool) -> None:
    """NVIDIA/Megatron-LM#5240: pairs of stages make their communicators in a circle.

    With several chunks of the model on each of four stages, a stage posts the receive of its next
    chunk before it sends, and the first stage receives from the last. The mended program uses a
    batch, which needs no communicator for each pair.
    """
    stages = dist.get_process_group_ranks(group := _mesh(world)["pp"].get_group())
    mine, count = stages.index(world.rank), len(stages)
    ahead, behind = stages[(mine + 1) % count], stages[(mine - 1) % count]
    if is_mended:
        receive = dist.P2POp(dist.irecv, torch.zeros(2), behind, group)
        send = dist.P2POp(dist.isend, torch.ones(2), ahead, group)
        works = dist.batch_isend_irecv([receive, send])
    else:
        receive = dist.irecv(torch.zeros(2), behind, group=group)  # one other
        works = [receive, dist.isend(torch.ones(2), ahead, group=group)]
    for each in works:
        each.wait()


BUGS: dict[str, Bug] = {
    each.__name__: each
    for each in (
        stages_without_such_layers,
        both_stages_send_first,
        reduces_before_it_sends,
        batches_are_dealt_unevenly,
        the_last_part_has_fewer_batches,
        ranks_disagree_about_a_file,
        a_barrier_meets_a_thread,
        an_error_skips_the_barrier,
        an_expert_without_tokens,
        sentences_have_different_lengths,
        parity_of_an_odd_ring,
        some_stop_early,
        one_side_gathers,
        frozen_parameters_return_early,
        parameters_without_a_gradient,
        samples_too_short_for_a_block,
        an_empty_shard_has_no_metric,
        shards_are_dealt_unevenly,
        types_in_another_order,
        two_axes_in_two_orders,
        groups_are_made_by_their_members_only,
        two_groups_in_opposite_orders,
        fewer_steps_without_the_last_batch,
        an_overflow_on_one_stage,
        a_rank_that_owns_no_expert,
        frozen_ranks_return_before_two_norms,
        a_model_gets_another_batch,
        only_the_first_rank_validates,
        weights_are_sent_between_gathers,
        embeddings_of_the_first_stage_only,
    )
}

NCCL_BUGS: dict[str, Bug] = {each.__name__: each for each in (a_looped_pipeline_without_batches,)}
"""Programs that hang only by the rules of NCCL."""

PROGRAMS = {**BUGS, **NCCL_BUGS}

IsOne = Callable[[int, int], bool]
"""Returns whether a rank of a world of a size is on the side of the line `one`."""


def _stage(rank: int, size: int) -> int:
    return rank // (size // 4)


ONE: dict[str, IsOne] = {
    "stages_without_such_layers": lambda rank, size: _stage(rank, size) in (1, 3),
    "reduces_before_it_sends": lambda rank, size: rank == size - 1,
    "batches_are_dealt_unevenly": lambda rank, size: rank != size - 1,
    "the_last_part_has_fewer_batches": lambda rank, size: rank != size - 1,
    "ranks_disagree_about_a_file": lambda rank, size: rank < size - 2,
    "a_barrier_meets_a_thread": lambda rank, _size: rank % 2 == 1,
    "an_error_skips_the_barrier": lambda rank, _size: rank != 0,
    "an_expert_without_tokens": lambda rank, size: rank != size - 1,
    "sentences_have_different_lengths": lambda rank, _size: rank % 2 == 1,
    "some_stop_early": lambda rank, size: rank >= size // 2,
    "one_side_gathers": lambda rank, _size: rank == 0,
    "frozen_parameters_return_early": lambda rank, _size: rank % 4 != 0,
    "parameters_without_a_gradient": lambda rank, _size: rank != 1,
    "samples_too_short_for_a_block": lambda rank, size: rank != size - 1,
    "an_empty_shard_has_no_metric": lambda rank, size: rank < size - 2,
    "shards_are_dealt_unevenly": lambda rank, _size: rank == 0,
    "types_in_another_order": lambda rank, _size: rank % 2 == 1,
    "two_axes_in_two_orders": lambda rank, size: _stage(rank, size) == 3 and rank % 2 == 1,
    "fewer_steps_without_the_last_batch": lambda rank, size: rank < size - 2,
    "an_overflow_on_one_stage": lambda rank, size: _stage(rank, size) != 3,
    "a_rank_that_owns_no_expert": lambda rank, size: _stage(rank, size) % 2 == 0,
    "frozen_ranks_return_before_two_norms": lambda rank, _size: rank % 2 == 0,
    "a_model_gets_another_batch": lambda rank, size: rank != size - 1,
    "only_the_first_rank_validates": lambda rank, _size: rank == 0,
    "embeddings_of_the_first_stage_only": lambda rank, size: _stage(rank, size) == 0,
}
"""The sides of programs that have two; the others wait in one line, or in more than two."""
