"""A process of an attached run that starts ranks for the controller.

It holds the same collected tests, so its server forks ranks as the controller's does. It has one
thread, waits only for its connection and its ranks, and ends with them when rank 0 ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_multihost.core.fault_planner import offered_planner
from pytest_multihost.core.model.errors import LaunchError, MultihostError
from pytest_multihost.core.pytest_plugin.launchers import Launchers
from pytest_multihost.core.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.core.pytest_plugin.tally import TALLY
from pytest_multihost.core.pytest_private import base_temp, redirect_terminal
from pytest_multihost.extensions.engines.attach import Peer
from pytest_multihost.extensions.engines.peer_server import PeerProcess
from pytest_multihost.extensions.engines.pytest_plugin.controller import collected_tests

_LOST = 1


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class Agent:
    """The plugin of a process that takes part in an attached run but does not control it.

    Attributes:
        process: This process, with its way to the controller.
        outlives_controller: Whether it ends after the controller, with the run's exit status.
        peers: Always empty, because only the controller has peers.
    """

    process: PeerProcess
    outlives_controller: bool = True
    problems: list[str] = field(default_factory=list)
    peers: Mapping[int, Peer] = field(default_factory=dict)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Print nothing from now on: the controller prints everything once."""
        redirect_terminal(session.config, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - for good

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record collection errors."""
        if report.failed:
            self.problems.append(report.longreprtext)

    def take_part(self, session: pytest.Session, chosen: Sequence[pytest.Item]) -> NoReturn:
        """Start ranks for rank 0 until it ends the run, then exit with the same status.

        Skips pytest's own end: no plugin of this process may write files that rank 0's writes.
        """
        config = session.config
        settings = config.stash[TALLY].settings
        home = Path(tempfile.mkdtemp(prefix="attached-", dir=base_temp(config)))
        self.process.take_signals()
        plans = {plan.world.nodeid: plan for plan in plan_items(config, chosen, settings).values()}
        backends = {each.name: each for plan in plans.values() for each in plan.backends}
        launchers = Launchers(config, settings, chosen, backends, home)
        status = _LOST
        try:
            status = self._serve(plans, launchers, home)
        except SystemExit as error:
            status = int(error.code or 0)
        except MultihostError as error:
            sys.stderr.write(f"pytest-multihost-hangs: {error}\n")
        except BaseException:  # noqa: BLE001 - pytest's own end, which must not run, would report it
            traceback.print_exc()
        finally:
            launchers.close()
            shutil.rmtree(home, ignore_errors=True)
            sys.stderr.flush()
            os._exit(status)

    def _serve(self, plans: Mapping[str, Plan], launchers: Launchers, home: Path) -> int:
        """Connect to rank 0, serve its requests, and return the run's exit status.

        Raises:
            MultihostError: Rank 0 was not found, or is gone.
        """
        try:
            for plan in plans.values():
                launchers.get(plan.requirements)
        except LaunchError as error:
            self.problems.append(str(error))
        self.process.connect(tests=collected_tests(plans), problems=tuple(self.problems))
        status = self.process.serve(
            lambda nodeid: launchers.get(plans[nodeid].requirements),
            home,
            lambda nodeid, ranks: _lacking(plans[nodeid], ranks, launchers),
        )
        launchers.close()
        shutil.rmtree(home, ignore_errors=True)  # launchers may kill it once rank 0 ends
        if self.outlives_controller:
            self.process.outlive_controller()
        return status


def _lacking(plan: Plan, ranks: int, launchers: Launchers) -> str:
    """Return the part that this machine lacks for its ranks of a test; empty if none."""
    planner = offered_planner(launchers.config.hook)
    whys = (planner.lacking(each) for each in plan.world.faults)
    return next(filter(None, whys), None) or plan.backend.lacking(ranks) or ""
