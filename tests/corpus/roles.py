"""Torch worlds of a part of a test's ranks, and groups between them, as programs make them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    PrefixStore,
    _new_process_group_helper,
    _world,
    rendezvous,
)

_TIMEOUT = timedelta(minutes=30)


def join_world(number: int, size: int, *, port: int = 0) -> None:
    """Make the default group of a role.

    Args:
        number: This process's number in it.
        port: Which of the ports beside the test's own one.
    """
    dist.init_process_group("gloo", init_method=_at(port), rank=number, world_size=size)


def join_group(number: int, size: int, name: str, *, port: int = 0) -> Any:  # noqa: ANN401 - a process group
    """Make a group between roles in the way of OpenRLHF, slime and TRL.

    Args:
        number: This process's number in it.
        port: Which of the ports beside the test's own one.
    """
    return _join(_at(port), number, size, name)


def _join(at: str, number: int, size: int, name: str) -> Any:  # noqa: ANN401 - a process group
    store, number, size = next(rendezvous(at, number, size, timeout=_TIMEOUT))
    store.set_timeout(_TIMEOUT)
    store = PrefixStore(name, store)
    group, _ = _new_process_group_helper(
        size, number, [], "gloo", store, group_name=name, timeout=_TIMEOUT
    )
    _world.pg_group_ranks[group] = {each: each for each in range(size)}
    return group


def join_role() -> None:
    """Make the default group of this rank's role from its environment."""
    dist.init_process_group("gloo")


def join_group_at(port: int, number: int, size: int, name: str) -> Any:  # noqa: ANN401 - a process group
    """Make a group between roles, whose members meet at a port."""
    return _join(f"tcp://127.0.0.1:{port}", number, size, name)


def _at(port: int) -> str:
    return f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + port}"
