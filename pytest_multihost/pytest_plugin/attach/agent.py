"""A process of an attached run that starts ranks for the controller.

It holds the same collected tests, so its server forks ranks as the controller's does. It has one
thread, waits only for its connection and its ranks, and ends with them when rank 0 ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_multihost.launch.attach import Connector
from pytest_multihost.launch.attach.handshake import interface_of_address, kernel_identity
from pytest_multihost.launch.attach.rendezvous import Stream, find_rendezvous
from pytest_multihost.launch.server import ServerLauncher
from pytest_multihost.launch.wire import Frame
from pytest_multihost.model.errors import LaunchError, MultihostError
from pytest_multihost.model.messages import PeerHello
from pytest_multihost.pytest_plugin.attach.collected_tests import CollectedTest, collected_tests
from pytest_multihost.pytest_plugin.attach.peer_server import PeerServer
from pytest_multihost.pytest_plugin.attach.state import ATTACHED, Attached
from pytest_multihost.pytest_plugin.launchers import Launchers
from pytest_multihost.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.pytest_plugin.tally import TALLY
from pytest_multihost.pytest_private import base_temp, redirect_terminal

_FAREWELL_S = 10.0
"""How long rank 0 may take to end after it has sent the run's exit status."""

_AFTER_S = 0.2
"""Delay of this process's exit after rank 0's: launchers report the first process that failed."""

_LOST = 1
_problems: list[str] = []
"""Errors of the collection; a global, because a process is attached at most once."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Print nothing from now on: the controller prints everything once."""
    redirect_terminal(session.config, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - for good


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record collection errors."""
    if report.failed:
        _problems.append(report.longreprtext)


def take_part(session: pytest.Session, chosen: Sequence[pytest.Item]) -> NoReturn:
    """Start ranks for rank 0 until it ends the run, then exit with the same status.

    Skips pytest's own end: no plugin of this process may write files that rank 0's writes.

    Args:
        session: The session, after its collection.
        chosen: Its multihost tests.
    """
    config = session.config
    attached = config.stash[ATTACHED]
    home = Path(tempfile.mkdtemp(prefix="attached-", dir=base_temp(config)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides what Ctrl-C means
    signal.signal(signal.SIGTERM, _leave)
    tests = _read_tests(config, chosen, home)
    status = _LOST
    try:
        status = _serve(attached, tests, home)
    except SystemExit as error:
        status = int(str(error))
    except MultihostError as error:
        sys.stderr.write(f"pytest-multihost-hangs: {error}\n")
    except BaseException:  # noqa: BLE001 - pytest's own end, which must not run, would report it
        traceback.print_exc()
    finally:
        tests.launchers.close()
        shutil.rmtree(home, ignore_errors=True)
        sys.stderr.flush()
        os._exit(status)


def _serve(attached: Attached, tests: _Tests, home: Path) -> int:
    """Connect to rank 0, serve its requests, and return the run's exit status.

    Raises:
        MultihostError: Rank 0 was not found, or is gone.
    """
    problems = [*_problems, *tests.open()]
    stream, welcome = _connector(attached).connect(attached.timeout_s)
    hello = _hello(collected_tests(tests.plans), problems, stream)
    stream.send(Frame(hello, number=welcome.number))
    status = PeerServer(stream, tests.launcher, home).serve()
    tests.launchers.close()
    shutil.rmtree(home, ignore_errors=True)  # launchers may kill it once rank 0 ends
    _await_end(stream)
    return status


def _leave(number: int, _: object) -> NoReturn:
    """Shut down cleanly when a launcher ends this process."""
    sys.exit(128 + number)


def _connector(attached: Attached) -> Connector:
    find = partial(find_rendezvous, attached.membership, attached.secret, attached.rendezvous_file)
    return Connector(attached.membership, find, str(attached.rendezvous_file))


def _hello(tests: tuple[CollectedTest, ...], problems: Sequence[str], stream: Stream) -> PeerHello:
    address = str(stream.socket.getsockname()[0])
    return PeerHello(
        host=socket.gethostname(),
        pid=os.getpid(),
        kernel=kernel_identity(),
        address=address,
        interface=interface_of_address(address),
        tests=tests,
        problems=tuple(problems),
    )


def _await_end(stream: Stream) -> None:
    """Wait until rank 0's process has ended.

    A launcher that sees one process fail ends the others, and rank 0 may still be printing.
    """
    deadline_s = time.monotonic() + _FAREWELL_S
    while stream.ended is None and time.monotonic() < deadline_s:
        stream.await_frames(deadline_s)
    time.sleep(_AFTER_S)


@dataclass(frozen=True, slots=True)
class _Tests:
    """The multihost tests of this process, and what launches them.

    Attributes:
        plans: The tests' plans, by node id.
        launchers: The launchers of their ranks.
    """

    plans: Mapping[str, Plan]
    launchers: Launchers

    def open(self) -> list[str]:
        """Start the servers; return the errors of those that did not start."""
        try:
            for plan in self.plans.values():
                self.launchers.get_local(plan.requirements)
        except LaunchError as error:
            return [str(error)]
        return []

    def launcher(self, nodeid: str) -> ServerLauncher:
        """Return the launcher of a test's ranks."""
        return self.launchers.get_local(self.plans[nodeid].requirements)


def _read_tests(config: pytest.Config, items: Sequence[pytest.Item], home: Path) -> _Tests:
    settings = config.stash[TALLY].settings
    plans = {plan.world.nodeid: plan for plan in plan_items(config, items, settings).values()}
    backends = {plan.backend.name: plan.backend for plan in plans.values()}
    return _Tests(plans, Launchers(config, settings, items, backends, home))
