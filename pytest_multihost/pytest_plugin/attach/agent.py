"""A process of an attached run that starts ranks for the controller.

It holds the same collected tests, so its server forks ranks as the controller's does. It has one
thread, waits only for its connection and its ranks, and ends with them when rank 0 ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_multihost.launch.attach import Connector, Peer, Rendezvous
from pytest_multihost.launch.signals import ENDING
from pytest_multihost.launch.wire import Frame, FrameStream
from pytest_multihost.model.errors import LaunchError, MultihostError
from pytest_multihost.model.messages import Signalled, ToPeer
from pytest_multihost.pytest_plugin.attach.controller import collected_tests
from pytest_multihost.pytest_plugin.attach.peer_server import PeerServer
from pytest_multihost.pytest_plugin.launchers import Launchers
from pytest_multihost.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.pytest_plugin.tally import TALLY
from pytest_multihost.pytest_private import base_temp, redirect_terminal

_FAREWELL_S = 10.0
"""How long rank 0 may take to end after it has sent the run's exit status."""

_AFTER_S = 0.2
"""Delay of this process's exit after rank 0's: launchers report the first process that failed."""

_LOST = 1


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class Agent:
    """What a process does that is not the controller of its attached run; a plugin.

    Attributes:
        rendezvous: Where to find the controller.
        timeout_s: Timeout of the search for it.
        problems: Errors of the collection.
        peers: None: only the controller has peers.
    """

    rendezvous: Rendezvous
    timeout_s: float
    problems: list[str] = field(default_factory=list)
    peers: Mapping[int, Peer] = field(default_factory=dict)
    _stream: FrameStream[ToPeer] | None = None

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

        Args:
            session: The session, after its collection.
            chosen: Its multihost tests.
        """
        config = session.config
        settings = config.stash[TALLY].settings
        home = Path(tempfile.mkdtemp(prefix="attached-", dir=base_temp(config)))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides what Ctrl-C means
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup has SIGHUP ignored
                signal.signal(number, self._on_signal)
        plans = {plan.world.nodeid: plan for plan in plan_items(config, chosen, settings).values()}
        backends = {plan.backend.name: plan.backend for plan in plans.values()}
        launchers = Launchers(config, settings, chosen, backends, home)
        status = _LOST
        try:
            status = self._serve(plans, launchers, home)
        except SystemExit as error:
            status = int(str(error))
        except MultihostError as error:
            sys.stderr.write(f"pytest-multihost-hangs: {error}\n")
        except BaseException:  # noqa: BLE001 - pytest's own end, which must not run, would report it
            traceback.print_exc()
        finally:
            launchers.close()
            shutil.rmtree(home, ignore_errors=True)
            sys.stderr.flush()
            os._exit(status)

    def _on_signal(self, number: int, _: object) -> None:
        """Let rank 0 end the run, which then reports where the ranks were; at once the next time.

        Before there is a connection, this process just ends.
        """
        stream, self._stream = self._stream, None
        if stream is None:
            sys.exit(128 + number)
        stream.send(Frame(Signalled(signal.Signals(number).name)))

    def _serve(self, plans: Mapping[str, Plan], launchers: Launchers, home: Path) -> int:
        """Connect to rank 0, serve its requests, and return the run's exit status.

        Raises:
            MultihostError: Rank 0 was not found, or is gone.
        """
        try:
            for plan in plans.values():
                launchers.get_local(plan.requirements)
        except LaunchError as error:
            self.problems.append(str(error))
        stream = self._stream = Connector(self.rendezvous).connect(
            self.timeout_s, tests=collected_tests(plans), problems=tuple(self.problems)
        )
        status = PeerServer(
            stream, lambda nodeid: launchers.get_local(plans[nodeid].requirements), home
        ).serve()
        launchers.close()
        shutil.rmtree(home, ignore_errors=True)  # launchers may kill it once rank 0 ends
        # A launcher that sees one process fail ends the others, and rank 0 may still be printing.
        deadline_s = time.monotonic() + _FAREWELL_S
        while stream.ended is None and time.monotonic() < deadline_s:
            stream.await_frames(deadline_s)
        time.sleep(_AFTER_S)
        return status
