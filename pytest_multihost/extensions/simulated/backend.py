"""The backend ``simulated``: the ranks of a world meet in one exchange, not over a network."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pytest_multihost.core.backends import Backend
from pytest_multihost.core.backends.torch_groups import GLOO, group_timeout_s
from pytest_multihost.core.jax_private import search_plugins_once
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.extensions.simulated.service import NAME, PART


def _preload() -> None:
    """Import torch and the classes of simulated groups, and have their operations recorded."""
    from pytest_multihost.core.rank.recorder import record_torch_classes
    from pytest_multihost.extensions.simulated import install, jax_processes  # noqa: F401 - for ranks
    from pytest_multihost.extensions.simulated.group import SimulatedGroup
    from pytest_multihost.extensions.simulated.store import SimulatedStore
    from pytest_multihost.extensions.simulated.works import SimulatedWork, SimulatedWorks

    search_plugins_once()
    record_torch_classes(
        groups=[SimulatedGroup], works=[SimulatedWork, SimulatedWorks], stores=[SimulatedStore]
    )


def _start(spec: RankSpec) -> None:
    _preload()
    import torch
    import torch.distributed as dist

    from pytest_multihost.extensions.simulated.install import install
    from pytest_multihost.extensions.simulated.jax_processes import simulate_jax
    from pytest_multihost.extensions.simulated.link import own_link
    from pytest_multihost.extensions.simulated.semantics import ABORTS, semantics_of
    from pytest_multihost.extensions.simulated.server_part import exchange_address
    from pytest_multihost.extensions.simulated.store import SimulatedStore

    torch.set_num_threads(1)
    link = own_link(exchange_address(spec.scratch), spec.rank)
    link.times_itself = spec.world.keeps_timeouts
    link.semantics = semantics_of(spec.world)
    link.connect()
    simulate_jax(spec.rank, spec.world.size)
    folder = Path(spec.scratch) if spec.is_primary else None
    install(
        size=spec.world.size,
        folder=folder,
        nccl_has_timeouts=ABORTS in link.semantics.rules and link.times_itself,
    )
    if spec.world.subject == "test":  # a script makes its group itself
        timeout = timedelta(seconds=group_timeout_s(spec.world))
        dist.distributed_c10d.default_pg_timeout = timeout
        dist.init_process_group(
            "gloo",
            store=SimulatedStore("default", timeout),
            rank=spec.rank,
            world_size=spec.world.size,
            timeout=timeout,
        )
        link.lend_place()  # it goes to the harness's gate


def _devices() -> tuple[object, ...]:
    import torch

    return (torch.device("cpu"),)


SIMULATED = Backend(
    name=NAME,
    package="torch",
    extra="torch",
    start=_start,
    preload=_preload,
    devices=_devices,
    services={NAME: PART},
    tells_classes=True,
    confirmed_by=GLOO.name,
    forks_scripts=True,
    may_run_jax=False,
    noise=GLOO.noise,
    symptoms=(
        *GLOO.symptoms,
        r"Timed out waiting \d+ms for \w+ operation to complete",
        r"Connection closed by peer: (the timeout of )?rank \d+",
        r"the process that exchanges the ranks' messages has ended",
    ),
)
