"""Connect process groups while there is room, not when they are first used (torch, Megatron).

`new_group` only writes down who is in a group. NCCL, and gloo with TORCH_GLOO_LAZY_INIT=1, connect
its members at their first collective, which may come when memory or descriptors are used up. A
member that cannot connect then leaves the others waiting in a phase that the group's timeout does
not cover.

Published: https://github.com/modelscope/ms-swift/pull/9486 reports it of mixture-of-experts
training: all ranks hang, silently, in the first optimizer step. It puts one barrier, on Megatron's
group across instances of the distributed optimizer, right behind `initialize_model_parallel`.

Measured (torch 2.13, gloo, megatron-core 0.16.1, 4 and 8 ranks):

* Where a rank lacks descriptors, that rank gets an error, and its peers wait in silence: with gloo
  for five times the group's timeout, which `new_group` does not take from `init_process_group` and
  which is 30 minutes unless set.
* With one instance of the distributed optimizer, Megatron's default, the group of the published fix
  does not exist, with experts or without: nothing is connected, and training hangs as before.
* The getter that it guards with `hasattr` takes no `check_initialized` in megatron-core 0.13 and
  0.14, where the fix raises TypeError.
* All other groups of Megatron are just as lazy: nine of several ranks in a world of four, eleven
  with two instances.
* A barrier connects only some pairs. Among eight ranks an all_to_all still hangs behind one.
* Barriers on groups that overlap must come in one order on all ranks, or they are a deadlock
  themselves.

So what is here connects all groups, all pairs of each, in an order that is the same everywhere,
after all ranks have compared what they call their groups. NCCL was not measured. What it shares
with gloo is taken from its documentation and source: communicators are made at the first use and
connections of a pair at theirs (NCCL_RUNTIME_CONNECT). Not connected are what NCCL makes beside
groups, the communicators of two ranks for send and recv outside of a batch.
"""

from __future__ import annotations

from pytest_multihost.fixes.fix import Fix
from pytest_multihost.fixes.prewarm.agreement import GroupsDisagreeError, RanksMissingError
from pytest_multihost.fixes.prewarm.connecting import Coverage, NotConnectedError
from pytest_multihost.fixes.prewarm.groups import prewarm_process_groups
from pytest_multihost.fixes.prewarm.megatron import (
    inter_optimizer_group,
    megatron_groups,
    prewarm_megatron,
    published_barrier,
)

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
