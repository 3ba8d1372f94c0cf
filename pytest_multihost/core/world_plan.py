"""The plan of a world: its user's description, completed with the offers of plugins.

Tests and scripts describe their worlds in different ways, and this module completes both alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pluggy

from pytest_multihost.core.backends import Backend, symptoms_of
from pytest_multihost.core.fault_planner import FaultPlanner, offered_planner
from pytest_multihost.core.host_kind import Hosts
from pytest_multihost.core.model.spec import RecorderPart, WorldSpec, common_facts
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.registry import offered_recorders
from pytest_multihost.core.services import (
    Preload,
    ServiceKind,
    order_part,
    preloads_of,
    services_of_world,
    with_needed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """The offers of plugins for worlds.

    Attributes:
        planner: Reads and checks faults.
        services: The kinds of services; of two with one name the first counts.
    """

    planner: FaultPlanner
    services: tuple[ServiceKind, ...]
    recorders: tuple[RecorderPart, ...]

    @classmethod
    def of(cls, hook: pluggy.HookRelay) -> Offers:
        """Return the offers of all plugins."""
        groups = hook.pytest_multihost_services()
        return cls(
            planner=offered_planner(hook),
            services=tuple(kind for group in groups for kind in group),
            recorders=offered_recorders(hook),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """How a test or a script runs as a world.

    Attributes:
        spec: The spec that all attempts share.
        role_backends: The backend of each role, in order; empty if the world has no roles.
        preloads: The libraries that its ranks preload.
        fault_problems: Why it cannot have its faults.
    """

    spec: WorldSpec
    backend: Backend
    hosts: Hosts
    role_backends: tuple[Backend, ...] = ()
    preloads: tuple[Preload, ...] = ()
    fault_problems: Sequence[str] = ()

    def without_hosts(self) -> WorldPlan:
        """Return the plan for this machine alone, because its hosts cannot be made."""
        return replace(self, spec=self.hosts.removed_from(self.spec), hosts=Hosts())

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends that ranks start, each once."""
        return tuple({each.name: each for each in self.role_backends or (self.backend,)}.values())

    @property
    def primary_leaves_last(self) -> bool:
        """Whether rank 0 hosts a service of its runtime, whose end would end the other ranks."""
        return not self.role_backends and self.backend.primary_leaves_last

    @property
    def symptoms(self) -> Symptoms:
        """Patterns of failures that follow from another rank's failure."""
        return symptoms_of(self.backends)

    @property
    def lacking(self) -> str | None:
        """Why this machine cannot run the ranks, or None."""
        spec = self.spec
        if not self.role_backends:
            here = spec.size if spec.shares_files else len(spec.host_of(0).ranks)
            return self.backend.lacking(here)
        reasons = (
            each.lacking(sum(len(r.ranks) for r in spec.roles if r.backend == each.name))
            for each in self.backends
        )
        return next((reason for reason in reasons if reason), None)


def plan_world(
    draft: WorldSpec,
    offers: Offers,
    *,
    backend: Backend,
    role_backends: Sequence[Backend] = (),
    hosts: Hosts,
    services: Iterable[ServiceKind] = (),
) -> WorldPlan:
    """Return the plan of a world.

    Args:
        draft: The world as its user describes it. Its faults may name ranks by words and roles.
        backend: Its backend; with roles, the backend of roles that name none.
        role_backends: The backend of each role, in order.
        services: The services for which the user asks, see `asked_for`.
    """
    roles = tuple(
        replace(role, primary_leaves_last=own.primary_leaves_last)
        for role, own in zip(draft.roles, role_backends, strict=True)
    )
    of_hosts = hosts.of(draft.size)
    planned = offers.planner.plan(
        draft.faults, size=draft.size, seed=draft.seed, hosts=of_hosts, roles=roles
    )
    spec = replace(
        draft,
        backend=backend.name,
        backend_facts=common_facts([each.facts for each in role_backends or (backend,)]),
        faults=planned.faults,
        fault_facts=planned.facts,
        hosts=of_hosts,
        services={**services_of_world(hosts, backend, services), **order_part(roles)},
        recorders=offers.recorders,
        roles=roles,
    )
    spec = with_needed(spec, offers.services)
    return WorldPlan(
        spec=spec,
        backend=backend,
        hosts=hosts,
        role_backends=tuple(role_backends),
        preloads=preloads_of(spec, offers.services),
        fault_problems=planned.problems,
    )
