"""Set the environment variables of a rank, and remove the variables that name another world.

A rank gets torchrun's variables with its own world's values, so code that initialises itself from
the environment works. Variables of an outer launcher, a proxy or pytest itself are removed: a stray
RANK makes a program join another world, and jax warns that a proxy variable can hang its start-up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache

from pytest_multihost.core.launch.launcher_env import is_foreign
from pytest_multihost.core.model.setting_values import ONE
from pytest_multihost.core.model.spec import MACHINE, RankSpec
from pytest_multihost.core.rank.children.variables import VARIABLE, child_variables

_OF_PYTEST = re.compile(r"PYTEST_XDIST_.*|PYTEST_CURRENT_TEST", re.IGNORECASE)

_PROXY = re.compile(r"(HTTP|HTTPS|FTP|ALL|NO|GRPC)_PROXY", re.IGNORECASE)

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_INTERFACES = ("NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""The interface variables of NCCL and tensorpipe, set only with several hosts."""


def foreign_variables(inherited: Mapping[str, str], *, keeps_proxies: bool = False) -> list[str]:
    """Return the names in `inherited` that a rank must not see.

    Args:
        keeps_proxies: Whether a rank may see variables of proxies.
    """
    return [
        name
        for name in inherited
        if _is_of_world(name) or (not keeps_proxies and _is_of_proxy(name))
    ]


@cache  # the server has asked before it forks a rank
def _is_of_world(name: str) -> bool:
    return is_foreign(name) or name == VARIABLE or _OF_PYTEST.fullmatch(name) is not None


@cache
def _is_of_proxy(name: str) -> bool:
    return _PROXY.fullmatch(name) is not None


def own_variables(*, keeps_proxies: bool = False) -> dict[str, str]:
    """Return this process's environment without the variables of an outer world or launcher.

    With its `RANK`, `MASTER_ADDR`, ... ranks would join the outer world.

    Args:
        keeps_proxies: Whether to keep variables of proxies.
    """
    foreign = set(foreign_variables(os.environ, keeps_proxies=keeps_proxies))
    return {name: value for name, value in os.environ.items() if name not in foreign}


def thread_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return variables that limit native libraries to one thread, except those the user set.

    If the user has set OMP_NUM_THREADS, it applies to all of them.
    """
    if inherited.get("OMP_NUM_THREADS"):
        return {}
    return {name: "1" for name in _ONE_THREAD if not inherited.get(name)}


def rank_variables(spec: RankSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to a rank's environment.

    If the world has roles, those of torchrun are about the rank's role.

    Args:
        inherited: The environment so far; the user's thread limits in it are kept.
    """
    whole, role = spec, spec.role
    own = {} if role is None else dict(role.env)
    for_children = {} if role is None else child_variables(whole, {**inherited, **own})
    spec = spec.in_role
    rank, size, host = str(spec.rank), str(spec.world.size), spec.host
    is_alone = not spec.world.hosts
    only_of_several = {} if is_alone else dict.fromkeys(_INTERFACES, host.interface)
    if host.kind not in (ONE, MACHINE):  # a machine has its own HOSTNAME
        only_of_several["HOSTNAME"] = host.name
    return (
        thread_variables(inherited)
        | only_of_several
        | {
            "RANK": rank,
            "LOCAL_RANK": str(spec.rank - host.ranks.start),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": str(len(host.ranks)),
            "GROUP_RANK": str(host.index),
            "GROUP_WORLD_SIZE": str(len(spec.world.all_hosts)),
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": size,
            "ROLE_NAME": "default" if role is None else role.name,
            "MASTER_ADDR": spec.world.host_of(0).address,
            "MASTER_PORT": str(spec.ports[0]),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": f"multihost-{spec.world.seed}",
            # With torchrun the agent hosts the store and rank 0 is a client; here rank 0 hosts it.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            # Without it, gloo uses the interface of the address to which the host name resolves.
            "GLOO_SOCKET_IFNAME": host.interface,
            "PYTEST_MULTIHOST_RANK": str(whole.rank),
            "PYTEST_MULTIHOST_WORLD_SIZE": str(whole.world.size),
        }
        | own
        | for_children
    )
