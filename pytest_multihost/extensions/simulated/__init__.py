"""Worlds of up to thousands of ranks on one machine, with true values (`backend="simulated"`).

Every rank is a forked process. Its process groups send each operation to one exchange, which
matches the operations, computes the results, and lets a few ranks run at a time. If no rank can go
on, the exchange knows it at once.

* `launches` are the values that ranks and exchange send each other.
* `exchange` matches operations, `results` computes their results, `key_values` keeps stores:
  all without I/O. `waits` knows which ranks run, and whether the world hangs.
* `process` is the process of the exchange; `server_part` starts it; `standing` is the file by
  which it tells the controller of a hang, and `service` reads that.
* `link` connects a rank; `group`, `works`, `store` and `tensors` are its face to torch, and
  `arguments` checks a program's arguments;
  `install` puts them in the place of torch's own; `jax_processes` is its face to jax;
  `in_rank` is the rest of a rank's part.
* `learned` has the lessons of a small world for a large one; `mesh` names ranks by coordinates;
  `smallest` looks for the smallest size that hangs.
* `backend` is the backend. `semantics` has the rules of NCCL, each with when a hang under it is
  proven; `option` is the setting that chooses them, `semantics_service` how a world asks for them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.option import Option
    from pytest_multihost.core.pytest_plugin.analysis import Analysis
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
    from pytest_multihost.core.services import ServiceKind


SMALL = 8
"""Up to how many ranks a world is not run again at smaller sizes: one can read it to its end."""


START_S = 0.5
"""How many seconds of a start-up timeout each rank of a simulated world has at least."""


@hookimpl
def pytest_multihost_backends() -> Sequence[Backend]:
    """Offer the backend."""
    from pytest_multihost.extensions.simulated.backend import SIMULATED

    return [SIMULATED]


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the service that its worlds have."""
    from pytest_multihost.extensions.simulated.semantics_service import SEMANTICS_SERVICES
    from pytest_multihost.extensions.simulated.service import SIMULATED_SERVICE

    return [SIMULATED_SERVICE, *SEMANTICS_SERVICES]


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer the setting `semantics` to tests."""
    from pytest_multihost.extensions.simulated.option import SEMANTICS_OPTION

    return [SEMANTICS_OPTION]


@hookimpl
def pytest_multihost_run_options() -> Sequence[Option[Any]]:
    """Offer the setting `semantics` to ``multihost run``."""
    from pytest_multihost.extensions.simulated.option import SEMANTICS_OPTION

    return [SEMANTICS_OPTION]


@hookimpl(wrapper=True)
def pytest_multihost_prepare(
    item: pytest.Item, spec: WorldSpec
) -> Generator[None, WorldSpec, WorldSpec]:
    """Skip a size of a test that has hung at a smaller one."""
    from pytest_multihost.extensions.simulated.service import NAME

    if NAME in spec.services:
        from pytest_multihost.extensions.simulated.smallest import skip_if_hung

        skip_if_hung(item, spec.size)
    found = yield
    if NAME not in found.services:
        return found
    startup_s = max(found.startup_timeout_s, START_S * found.size)
    return replace(found, startup_timeout_s=startup_s)


@hookimpl
def pytest_multihost_analyse(attempt: CompletedAttempt) -> Analysis | None:
    """Name the ranks of a world that hung by their coordinates."""
    from pytest_multihost.extensions.simulated.service import NAME

    judged = attempt.judged
    if NAME not in judged.result.spec.services or judged.diagnosis is None:
        return None
    from pytest_multihost.core.pytest_plugin.analysis import Analysis
    from pytest_multihost.extensions.simulated.mesh import named_sets, read_mesh

    mesh, diagnosis = read_mesh(attempt.scratch), judged.diagnosis
    if mesh is None:
        return None
    sides = diagnosis.divergence.sides if diagnosis.divergence is not None else ()
    sets = (diagnosis.culprits, diagnosis.waiting, *(each.ranks for each in sides))
    lines = {"mesh": [mesh.text, *named_sets(mesh, sets)]}
    return Analysis(name="simulated", record={"mesh": mesh.text}, lines=lines)


@hookimpl
def pytest_multihost_explore(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Look for the smallest size at which a test hangs."""
    from pytest_multihost.extensions.simulated.service import NAME

    spec = attempt.judged.result.spec
    if NAME not in spec.services or attempt.judged.finding.outcome != "hung":
        return None
    from pytest_multihost.core.pytest_plugin.analysis import Analysis
    from pytest_multihost.extensions.simulated.smallest import look_for_smallest, note_hang

    note_hang(item, spec.size)
    if attempt.plan.expected is not None or spec.size <= SMALL:
        return None
    return Analysis(name="sizes", lines={"sizes": [look_for_smallest(item, attempt).text]})
