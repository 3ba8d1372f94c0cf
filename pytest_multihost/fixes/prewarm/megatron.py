"""The process groups of Megatron, whichever version."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from pytest_multihost.fixes.prewarm.connecting import Coverage, Device, ProcessGroup
from pytest_multihost.fixes.prewarm.groups import prewarm_process_groups

Module = Any
"""megatron.core.parallel_state, of any version."""

_GETTER = "get_inter_distributed_optimizer_instance_group"


def prewarm_megatron(
    parallel_state: Module = None,
    *,
    coverage: Coverage = "all_pairs",
    timeout: timedelta,
    device: Device = None,
) -> tuple[str, ...]:
    """Connect all groups that `initialize_model_parallel` has made; call it right behind that.

    Args:
        parallel_state: Megatron's module of that name; None for the one of megatron-core.
        coverage: As in `prewarm_process_groups`.
        timeout: As there.
        device: As there.

    Returns:
        The names of the groups that were connected, in that order.

    Raises:
        RuntimeError: Megatron has no groups yet.
        GroupsDisagreeError: As in `prewarm_process_groups`.
        RanksMissingError: As there.
        NotConnectedError: As there.
    """
    found = megatron_groups(_module(parallel_state))
    if not found:
        raise RuntimeError(
            "Megatron has no process groups to connect. Call initialize_model_parallel() first."
        )
    return prewarm_process_groups(found, coverage=coverage, timeout=timeout, device=device)


def megatron_groups(parallel_state: Module) -> list[ProcessGroup]:
    """Return the groups that Megatron keeps in this process, each once.

    They are in the module's variables, alone or in lists and dictionaries. Which there are differs
    from version to version, and so does what the getters are called and take.
    """
    found = [each for value in vars(parallel_state).values() for each in _groups_in(value)]
    return list({id(group): group for group in found}.values())


def _groups_in(value: object) -> Iterator[object]:
    import torch.distributed as dist

    if isinstance(value, dist.ProcessGroup):
        yield value
    elif isinstance(value, list | tuple):
        yield from (each for each in value if isinstance(each, dist.ProcessGroup))
    elif isinstance(value, dict):
        yield from (each for each in value.values() if isinstance(each, dist.ProcessGroup))


def inter_optimizer_group(parallel_state: Module) -> ProcessGroup:
    """Return Megatron's group across instances of the distributed optimizer; None without one.

    Up to megatron-core 0.12 there is no getter; that of 0.13 and 0.14 takes no argument and asserts
    that there is a group; from 0.15 on it takes `check_initialized`.
    """
    getter = getattr(parallel_state, _GETTER, None)
    if getter is None:
        return None
    if "check_initialized" in inspect.signature(getter).parameters:
        return getter(check_initialized=False)
    try:
        return getter()
    except AssertionError:
        return None


def published_barrier(parallel_state: Module = None) -> bool:
    """Do what was published: one barrier, on one group. For comparison, not for use.

    Returns:
        Whether there was a group. With one instance of the distributed optimizer, which is what
        Megatron makes unless told otherwise, there is none, and nothing was connected.

    Raises:
        TypeError: By megatron-core 0.13 and 0.14, whose getter does not take what it is given.
    """
    getter = getattr(_module(parallel_state), _GETTER, None)
    group = getter(check_initialized=False) if getter is not None else None
    if group is None:
        return False
    import torch
    import torch.distributed as dist

    ids = [torch.cuda.current_device()] if dist.get_backend(group) == "nccl" else None
    dist.barrier(group=group, device_ids=ids)
    return True


def _module(parallel_state: Module) -> Module:
    if parallel_state is not None:
        return parallel_state
    import megatron.core.parallel_state

    return megatron.core.parallel_state
