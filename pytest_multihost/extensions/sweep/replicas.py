"""States the ranks' parts of replicated state at the end of a test that is swept.

These are the parameters and buffers of torch's DDP modules, replicated arrays of jax, and whether a
rank has restored the state of its random numbers. No rank notices if they differ. The undisturbed
run states them as well: values that differ there are meant to, as the buffers of a batch norm.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from pytest_multihost.core.model.event import ValueStated
from pytest_multihost.core.model.spec import RankSpec, ServicePart, WorldSpec
from pytest_multihost.core.rank.digest import digest
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.services import RankPart
from pytest_multihost.core.services import ServiceKind
from pytest_multihost.core.torch_private import Registry, registries_of
from pytest_multihost.extensions.sweep.random_states import RandomStates
from pytest_multihost.extensions.sweep.replicated_arrays import ReplicatedArrays

NAME = "sweep-replicas"

REPLICAS = ServiceKind(
    name=NAME,
    open=lambda _opening: None,  # all of it is in the ranks
    part=ServicePart(rank="pytest_multihost.extensions.sweep.replicas:join"),
)

_MODULE = "torch.nn.parallel.distributed"

Tensors = Mapping[str, Any]
"""Tensors by their names, in any order: DDP broadcasts by position, and then values differ."""


@dataclass(frozen=True, slots=True)
class _Replica:
    """The state of a DDP module. The module itself is not kept: it would keep its process group.

    Attributes:
        parameters: The registries of parameters, by the names of their modules.
        ignored: The names of tensors that ranks need not have alike.
    """

    parameters: Mapping[str, Registry]
    buffers: Mapping[str, Registry]
    ignored: frozenset[str]

    @classmethod
    def of(cls, wrapper: Any) -> _Replica:  # noqa: ANN401 - of torch
        """Return the state of a module that DDP has wrapped."""
        found = list(registries_of(wrapper.module))
        return cls(
            parameters={name: parameters for name, parameters, _ in found},
            buffers={name: buffers for name, _, buffers in found},
            ignored=frozenset(getattr(wrapper, "parameters_to_ignore", ())),
        )

    def tensors(self, registries: Mapping[str, Registry]) -> Tensors:
        """Return the present tensors of these registries."""
        named = (
            (f"{module}.{name}" if module else name, each)
            for module, registry in registries.items()
            for name, each in registry.items()
        )
        return {n: each for n, each in named if each is not None and n not in self.ignored}


def stating_replicas(spec: WorldSpec) -> WorldSpec:
    """Return the spec of a world whose ranks state values that must be equal on all of them."""
    return replace(spec, services={**spec.services, NAME: REPLICAS.part})


def join(_spec: RankSpec) -> RankPart:
    """Note the values that must be equal on all ranks, and state them at the end of the test."""
    made: list[_Replica] = []

    def wrap(module: ModuleType) -> None:
        kind: Any = module.DistributedDataParallel
        initialise: Callable[..., None] = kind.__init__

        @functools.wraps(initialise)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - of torch
            initialise(self, *args, **kwargs)
            with contextlib.suppress(AttributeError):  # another version of torch
                made.append(_Replica.of(self))

        kind.__init__ = wrapped

    after_import(_MODULE, wrap)
    arrays = ReplicatedArrays()
    arrays.watch()
    states = RandomStates()
    states.watch()

    def state() -> Iterable[ValueStated]:
        yield from _values(made)
        yield from arrays.values()
        yield from states.values()

    return RankPart(state=state)


def _values(made: Iterable[_Replica]) -> Iterable[ValueStated]:
    """Yield a value for the parameters and one for the buffers of each module."""
    for number, replica in enumerate(made, 1):
        parts = (("parameters", replica.parameters), ("buffers", replica.buffers))
        for what, registries in parts:
            if tensors := replica.tensors(registries):
                name = f"{what} of DistributedDataParallel #{number}"
                text = f"{len(tensors)} tensors"
                yield ValueStated(name, 0, digest(tensors), text, is_asked=False)
