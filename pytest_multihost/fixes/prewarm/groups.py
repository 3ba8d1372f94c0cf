"""Connect process groups, all of them, in an order in which no two ranks wait for each other."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import get_args

from pytest_multihost.fixes.prewarm.agreement import Agreement, order
from pytest_multihost.fixes.prewarm.connecting import Coverage, Device, ProcessGroup, connect


def prewarm_process_groups(
    groups: Iterable[ProcessGroup] | None = None,
    *,
    coverage: Coverage = "all_pairs",
    timeout: timedelta,
    device: Device = None,
) -> tuple[str, ...]:
    """Connect process groups now instead of when they are first used.

    Call it on all ranks of the default group, equally often, when the groups have been made and
    memory, descriptors and ports still abound: before the model. First all ranks compare over the
    store what they call their groups. Then each walks through its own, in an order that is the same
    everywhere. Groups of one rank are left out.

    Args:
        groups: Those of this rank, in any order; None among them stands for the default group, and
            what `new_group` gives to ranks that are not in a group is left out. None alone: all
            that this process is in.
        coverage: `"all_pairs"` connects every member with every other. `"barrier"` does what a
            barrier does, which is enough for reductions and not for an all_to_all among more than
            four ranks.
        timeout: How late a rank may come, and how long each use of a group may take. Not covered is
            what NCCL does in the calling thread while it makes a communicator.
        device: The accelerator to use; None for the current one, which each rank must have set.

    Returns:
        The names of the groups that were connected, in that order.

    Raises:
        GroupsDisagreeError: Members do not agree on a group; on every rank.
        RanksMissingError: Not all ranks called in time; on every rank that did.
        NotConnectedError: A group could not be connected.
        ValueError: The coverage is unknown.
    """
    if coverage not in get_args(Coverage):
        raise ValueError(f"coverage must be one of {get_args(Coverage)}, not {coverage!r}")
    import torch
    import torch.distributed as dist

    known = _by_name(_all_groups() if groups is None else groups)
    entries = [
        (name, tuple(dist.get_process_group_ranks(known[name])))
        for name in sorted(known, key=order)
        if known[name].size() > 1
    ]
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
    agreement = Agreement.begin(store, dist.get_rank(), dist.get_world_size())
    agreement.agree(entries, timeout)
    on = torch.device(device) if device is not None else None
    for entry in entries:
        connect(known[entry[0]], entry, agreement, coverage=coverage, timeout=timeout, device=on)
    return tuple(name for name, _ in entries)


def _all_groups() -> list[ProcessGroup]:
    import torch.distributed as dist

    return list(dist.distributed_c10d._world.pg_map)  # noqa: SLF001 - no public way


def _by_name(groups: Iterable[ProcessGroup]) -> dict[str, ProcessGroup]:
    import torch.distributed as dist

    given = [dist.group.WORLD if each is None else each for each in groups]
    return {each.group_name: each for each in given if isinstance(each, dist.ProcessGroup)}
