"""Start a rank once the roles are ready after which its own role starts."""

from __future__ import annotations

from dataclasses import replace

from pytest_multihost.core.model.event import ReadyWhen
from pytest_multihost.core.model.messages import RankReady
from pytest_multihost.core.model.operation import READY_SCOPE
from pytest_multihost.core.model.role import tcp_port
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.recorder import current_recorder
from pytest_multihost.core.rank.role_program import filled_in
from pytest_multihost.core.rank.stages import ControllerLink


def start_in_order(spec: RankSpec, link: ControllerLink) -> None:
    """Say when this rank is ready, and wait for the ranks after which it starts.

    Only the controller knows when these are ready, because to connect to their ports would disturb
    them. So this rank waits for a message, in an operation with the rank that is not ready.
    """
    role = spec.role
    if role is None:
        return
    if role.ready:
        link.send(ReadyWhen(tcp_port(filled_in(role.ready, spec))))
    recorder = current_recorder()
    for each in (each for each in spec.world.roles if each.name in role.after):
        for rank in each.ranks:
            record = recorder.begin(
                f"start after {each.name}",
                "transfer",
                tuple(sorted((spec.rank, rank))),
                scope=READY_SCOPE,
                peer=rank,
                detail=filled_in(each.ready, replace(spec, rank=rank)),
            )
            with recorder.during(record):
                link.channel.receive(lambda message, rank=rank: message == RankReady(rank))  # type: ignore[misc]
