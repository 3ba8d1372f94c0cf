"""Connect process groups early, while memory and descriptors are available (torch, Megatron).

`new_group` only records the members of a group. NCCL, and gloo with TORCH_GLOO_LAZY_INIT=1, connect
the members at the group's first collective. By then memory or descriptors may be used up. A member
that cannot connect leaves the others waiting in a phase that the group's timeout does not cover.

Published: https://github.com/modelscope/ms-swift/pull/9486 reports this hang in mixture-of-experts
training: all ranks hang silently in the first optimizer step. The change adds one barrier right
after `initialize_model_parallel`, on Megatron's group across instances of the distributed
optimizer.

Measured (torch 2.13, gloo, megatron-core 0.16.1, 4 and 8 ranks):

* A rank without free descriptors gets an error, and its peers wait silently. With gloo they wait
  five times the group's timeout. `new_group` does not inherit the timeout of `init_process_group`;
  its default is 30 minutes.
* With one instance of the distributed optimizer (Megatron's default), the group of the published
  fix does not exist, with or without experts. Nothing is connected, and training hangs as before.
* The published fix passes `check_initialized` to a getter that it guards with `hasattr`. In
  megatron-core 0.13 and 0.14 that getter does not accept it, and the fix raises TypeError.
* All other groups of Megatron connect lazily, too: nine groups of several ranks in a world of four,
  eleven with two instances.
* A barrier connects only some pairs of ranks. With eight ranks an all_to_all still hangs after one.
* Barriers on overlapping groups must run in the same order on all ranks. Otherwise they deadlock.

This module therefore connects all pairs of all groups, in the same order on every rank, after the
ranks have compared the names of their groups. NCCL was not measured. Its documentation and source
say that communicators are made at the first use, and connections of a pair at the pair's first use
(NCCL_RUNTIME_CONNECT). This module does not connect the two-rank communicators that NCCL makes for
send and recv outside of a batch.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, get_args

from pytest_multihost.fixes import Fix

__all__ = [
    "FIX",
    "Coverage",
    "GroupsDisagreeError",
    "NotConnectedError",
    "RanksMissingError",
    "inter_optimizer_group",
    "megatron_groups",
    "prewarm_megatron",
    "prewarm_process_groups",
    "published_barrier",
]

FIX = Fix(
    name="prewarm",
    title="Connect all process groups before they are needed",
    upstream="https://github.com/modelscope/ms-swift/pull/9486",
    symptom=(
        "the first step that uses a group hangs: all ranks wait in its first collective, past the"
        " timeout of the group, and one of them may have logged an error of its own"
    ),
    affected=("torch", "megatron-core"),
    tried=(
        "torch==2.13.0",
        *(f"megatron-core=={each}" for each in ("0.13.1", "0.14.0", "0.15.0", "0.16.1")),
    ),
    differs=(
        "Published as one barrier on Megatron's group across optimizer instances. By default"
        " Megatron makes no such group, and the fix does nothing; on megatron-core 0.13 and 0.14 it"
        " raises TypeError; and a barrier does not connect all pairs of a group"
    ),
)

# Do all members call each group the same? Compared over the store, before anything connects: two
# members that name a group differently wait for each other under different keys until the group's
# timeout. The store is up from the start and needs no connection between ranks, so asking there
# always ends, and can say which rank has not come.

Store = Any
"""A store of torch's, which the type checker does not see."""


Entry = tuple[str, tuple[int, ...]]
"""A group: its name, and the ranks that are in it."""

_PREFIX = "pytest_multihost/prewarm"
_PRIMARY = 0


class GroupsDisagreeError(RuntimeError):
    """Members of a group do not agree on it; nothing was connected. Raised on every rank.

    Attributes:
        problems: One sentence for each group.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            f"process groups were not connected: {'; '.join(problems)}. Members that call a group"
            " differently never find each other: make groups on all ranks in one order, without"
            " use_local_synchronization where ranks have made different numbers of groups."
        )
        self.problems = tuple(problems)


class RanksMissingError(TimeoutError):
    """Some ranks did not come in time; nothing was connected.

    Attributes:
        ranks: Which.
    """

    def __init__(self, ranks: Sequence[int], timeout: timedelta) -> None:
        super().__init__(
            f"process groups were not connected: {named(ranks)} did not call within"
            f" {timeout.total_seconds():g} s. All ranks of the default group must call it."
        )
        self.ranks = tuple(ranks)


def order(name: str) -> tuple[int, int, str]:
    """Return a sort key for groups that is the same on every rank that calls the group so.

    torch numbers the groups that all ranks make, and hashes the names of others. Ranks that walk
    their groups in the same order never wait for each other in a cycle.
    """
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def disagreements(entries_by_rank: Mapping[int, Iterable[Entry]]) -> tuple[str, ...]:
    """Return one sentence for each group that is not the same to all of its members."""
    names: dict[tuple[int, ...], dict[int, set[str]]] = {}
    for rank, entries in entries_by_rank.items():
        for name, members in entries:
            names.setdefault(members, {}).setdefault(rank, set()).add(name)
    problems = []
    for members in sorted(names):
        of_each = [names[members].get(rank, set()) for rank in members]
        common = set.intersection(*of_each)
        if any(each - common for each in of_each):
            says = (
                f"says {' and '.join(map(repr, sorted(each - common, key=order)))}"
                if each - common
                else "has nothing like it"
                for each in of_each
            )
            parts = [f"rank {rank} {text}" for rank, text in zip(members, says, strict=True)]
            problems.append(f"of the group of {named(members)}, {', '.join(parts)}")
    return tuple(problems)


def named(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    listed = ", ".join(map(str, ranks))
    return f"ranks {listed}" if len(ranks) > 1 else f"rank {listed}"


def agree(store: Store, prefix: str, entries: Sequence[Entry], timeout: timedelta) -> None:
    """Return when all ranks have come and agree.

    Args:
        prefix: Of the keys of this call.
        timeout: How late a rank may be.

    Raises:
        GroupsDisagreeError: They do not.
        RanksMissingError: Not all came.
    """
    import torch.distributed as dist

    keys = [f"{prefix}/groups/{rank}" for rank in range(dist.get_world_size())]
    answer = f"{prefix}/answer"
    store.set(keys[dist.get_rank()], json.dumps(entries))
    if dist.get_rank() == _PRIMARY:
        late = _missing(store, keys, timeout)
        told = {} if late else {i: json.loads(store.get(key)) for i, key in enumerate(keys)}
        groups = {rank: [(name, tuple(ranks)) for name, ranks in own] for rank, own in told.items()}
        found = [keys.index(key) for key in late], disagreements(groups)
        store.set(answer, json.dumps(found))
    # The primary may be late as well, and then waits for the others itself.
    if _missing(store, [answer], 2 * timeout):
        raise RanksMissingError([_PRIMARY], 2 * timeout)
    missing, problems = json.loads(store.get(answer))
    if missing:
        raise RanksMissingError(missing, timeout)
    if problems:
        raise GroupsDisagreeError(problems)


def _missing(store: Store, keys: Sequence[str], timeout: timedelta) -> list[str]:
    """Return the keys that were not set in time.

    The exceptions of stores differ. A broken store raises again.
    """
    try:
        store.wait(list(keys), timeout)
    except RuntimeError:
        return [key for key in keys if not store.check([key])]
    return []


# Connect one process group: use it once, as a member among all others that do.

ProcessGroup = Any
"""A process group of torch's, which the type checker does not see."""

Device = Any
"""A torch.device, or an argument of its constructor."""


Coverage = Literal["all_pairs", "barrier"]


class NotConnectedError(RuntimeError):
    """A group could not be connected; it is of no use any more.

    Attributes:
        failures: Why members failed, by rank; a rank that is not in it may only have waited.
    """

    def __init__(
        self, entry: Entry, reason: str, failures: dict[int, str], timeout: timedelta
    ) -> None:
        self.group, self.members = entry
        self.failures = failures
        late = f"wait timeout after {timeout.total_seconds() * 1000:.0f}ms"
        others = "; ".join(f"{named([rank])} failed: {text}" for rank, text in failures.items())
        super().__init__(
            f"the process group {self.group!r} of {named(self.members)} was not connected:"
            f" {reason or late}{f' ({others})' if others else ''}"
        )


def _use(group: ProcessGroup, *, coverage: Coverage, timeout: timedelta, device: Device) -> None:
    """Use a group once with each of its backends; each use begins when the previous one is over.

    A reduction makes the rings and trees of NCCL. An all_to_all makes the connections of all pairs,
    which a barrier does not: gloo's opens those to the ranks that are 1, 2, 4, ... places away.
    """
    import torch
    import torch.distributed as dist

    for each in devices_of(group, device):
        accelerator = getattr(torch, each.type) if each.type != "cpu" else None
        if coverage == "barrier":
            ids = None
            if accelerator is not None:  # a device without a number means the current one
                ids = [accelerator.current_device() if each.index is None else each.index]
            dist.barrier(group=group, async_op=True, device_ids=ids).wait(timeout)
        else:
            ones = torch.zeros(1, device=each)
            dist.all_reduce(ones, group=group, async_op=True).wait(timeout)
            sent = torch.zeros(group.size(), device=each)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=group, async_op=True).wait(timeout)
        if accelerator is not None:  # until it has done its work, nothing is connected
            accelerator.synchronize(each)


def _exchange_reasons(
    store: Store, prefix: str, members: Sequence[int], reason: str
) -> dict[int, str]:
    """Write why this rank did not connect, and return why other members did not, by rank."""
    import torch.distributed as dist

    found = {}
    with contextlib.suppress(RuntimeError):  # the store may be broken as well
        if reason:
            store.set(f"{prefix}/failure/{dist.get_rank()}", reason)
        for rank in members:
            key = f"{prefix}/failure/{rank}"
            if rank != dist.get_rank() and store.check([key]):
                found[rank] = store.get(key).decode()
    return found


def devices_of(group: ProcessGroup, device: Device) -> list[Device]:
    """Return a device for each backend of a group, the CPU first.

    Args:
        device: The accelerator to use; None for the current one.
    """
    found: dict[int, Device] = {}
    for each in sorted(group._device_types, key=lambda one: one.type != "cpu"):  # noqa: SLF001 - no public way
        is_asked_for = device is not None and device.type == each.type
        found.setdefault(id(group._get_backend(each)), device if is_asked_for else each)  # noqa: SLF001 - as above
    return list(found.values())


# Connect process groups, all of them, in an order in which no two ranks wait for each other.


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
    store the names of their groups. Then each walks through its own, in an order that is the same
    everywhere. Groups of one rank are left out.

    Args:
        groups: Those of this rank, in any order; None among them stands for the default group, and
            the object of `new_group` for a rank that is not in a group is left out. None alone: all
            that this process is in.
        coverage: `"all_pairs"` connects every member with every other. `"barrier"` connects as a
            barrier does, which is enough for reductions and not for an all_to_all among more than
            four ranks.
        timeout: How late a rank may come, and how long each use of a group may take. Not covered is
            NCCL's work in the calling thread while it makes a communicator.
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

    pg = dist.distributed_c10d
    given = list(pg._world.pg_map) if groups is None else groups  # noqa: SLF001 - no public way
    members = [dist.group.WORLD if each is None else each for each in given]
    known = {each.group_name: each for each in members if isinstance(each, dist.ProcessGroup)}
    entries = [
        (name, tuple(dist.get_process_group_ranks(known[name])))
        for name in sorted(known, key=order)
        if known[name].size() > 1
    ]
    store = pg._get_default_store()  # noqa: SLF001 - no public way
    # All ranks count alike, since all must call each time.
    prefix = f"{_PREFIX}/{store.add(f'{_PREFIX}/calls/{dist.get_rank()}', 1)}"
    agree(store, prefix, entries, timeout)
    on = torch.device(device) if device is not None else None
    for name, ranks in entries:
        try:
            _use(known[name], coverage=coverage, timeout=timeout, device=on)
        except RuntimeError as error:
            is_late = "timed out" in str(error).lower()
            reason = "" if is_late else f"{type(error).__name__}: {error}"
            others = _exchange_reasons(store, prefix, ranks, reason)
            raise NotConnectedError((name, ranks), reason, others, timeout) from error
    return tuple(name for name, _ in entries)


# The process groups of Megatron, of any version.

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
    from version to version, and so do the names and arguments of the getters.
    """
    import torch.distributed as dist

    found = {}
    for value in vars(parallel_state).values():
        several = value.values() if isinstance(value, dict) else value
        for each in several if isinstance(value, dict | list | tuple) else [value]:
            if isinstance(each, dist.ProcessGroup):
                found[id(each)] = each
    return list(found.values())


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
    """Do as published: one barrier, on one group. For comparison, not for use.

    Returns:
        Whether there was a group. With one instance of the distributed optimizer, Megatron's
        default, there is none, and nothing was connected.

    Raises:
        TypeError: By megatron-core 0.13 and 0.14, whose getter does not take the argument.
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
