"""Faults: disturbances of ranks at points of their code.

* The kinds are in `process_faults`, with `held_child` (processes of a rank), `pressure`, `slow_io`,
  `clock_skew`, `elapsed_time`, `file_views` and `call_results`.
* `planner` reads and checks faults for the plan of a world, with `fault_text` and `validation`.
* `in_rank` is the part in a rank. `points` performs faults at the points that the rank passes;
  `portable_names` names files. `point_record` records the points, with `meetings` (operations in
  which all ranks meet); `points_text` lists them for `--multihost-points`.
* `service` is the part in the controller, with `held_ranks` (when a held rank may go on).
* `clean_up` removes the remains of ranks. `io_shim` intercepts file access of the C library.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.fault_planner import FaultPlanner
    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
    from pytest_multihost.core.services import ServiceKind
    from pytest_multihost.faults.kind import FaultKind


@hookimpl(trylast=True)
def pytest_multihost_faults() -> Sequence[FaultKind]:
    """Offer the built-in faults."""
    from pytest_multihost.extensions.faults.call_results import VALUE_FAULTS
    from pytest_multihost.extensions.faults.clock_skew import CLOCK_SKEW
    from pytest_multihost.extensions.faults.elapsed_time import ELAPSED_TIME
    from pytest_multihost.extensions.faults.file_views import FILE_VIEWS
    from pytest_multihost.extensions.faults.pressure import FD_PRESSURE, MEMORY_PRESSURE
    from pytest_multihost.extensions.faults.process_faults import PROCESS_FAULTS
    from pytest_multihost.extensions.faults.slow_io import SLOW_IO

    return (
        *PROCESS_FAULTS,
        SLOW_IO,
        MEMORY_PRESSURE,
        FD_PRESSURE,
        *VALUE_FAULTS,
        *FILE_VIEWS,
        CLOCK_SKEW,
        ELAPSED_TIME,
    )


@hookimpl(trylast=True)
def pytest_multihost_fault_planner(kinds: Sequence[Sequence[FaultKind]]) -> FaultPlanner:
    """Read and check the faults of tests and scripts."""
    from pytest_multihost.extensions.faults.planner import Planner
    from pytest_multihost.faults.kind import kinds_by_name

    return Planner(kinds_by_name(kinds))


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the service of worlds with faults, and the library that slows down files."""
    from pytest_multihost.extensions.faults.service import FAULTS, IO_SHIM

    return FAULTS, IO_SHIM


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option that lists points."""
    group = parser.getgroup("multihost", "tests on several ranks")
    text = "List the points that each rank passes, where at= can place a fault"
    group.addoption("--multihost-points", action="store_true", help=text)


@hookimpl(wrapper=True)
def pytest_multihost_prepare(
    item: pytest.Item, spec: WorldSpec
) -> Generator[None, WorldSpec, WorldSpec]:
    """Record the points of a test if they are to be listed."""
    spec = yield
    return replace(spec, tells_points=True) if item.config.getoption("multihost_points") else spec


@hookimpl
def pytest_multihost_analyse(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """List the points that the ranks of an attempt have passed."""
    if item.config.getoption("multihost_points"):
        from pytest_multihost.core.pytest_plugin.tally import TALLY
        from pytest_multihost.extensions.faults.points_text import points_lines

        item.config.stash[TALLY].lines += points_lines(attempt.judged.result)
