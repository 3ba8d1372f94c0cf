"""Record where the agents of torch's elastic launcher wait for each other's nodes."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from pytest_multihost.model.operation import Scope
from pytest_multihost.rank.recorder.after_import import after_import
from pytest_multihost.rank.recorder.calls import Calls, Described, replace_function
from pytest_multihost.rank.recorder.torch_groups import Argument


def install(calls: Calls) -> None:
    """Record rendezvous, now or once the module is imported. Barriers are waits for the store."""

    def describe(**given: Argument) -> Described:
        """Describe how a node joins: with fewer than the most nodes it goes on after a while."""
        settings = given["self"].settings
        needs_all = settings.min_nodes == settings.max_nodes
        timeout = settings.timeout.join
        if not needs_all:
            timeout = min(timeout, settings.timeout.last_call)
        is_of_world = settings.max_nodes == calls.recorder.size
        scope = Scope("rendezvous", settings.run_id) if is_of_world else None
        begin = calls.begin("rendezvous", scope, detail=settings.run_id, timeout=timeout)
        return begin, lambda _: None

    def wrap(module: ModuleType) -> None:
        record = partial(calls.recorded_by_name, describe)
        replace_function(module.DynamicRendezvousHandler, "next_rendezvous", record)

    after_import("torch.distributed.elastic.rendezvous.dynamic_rendezvous", wrap)
