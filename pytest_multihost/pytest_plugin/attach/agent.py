"""A process of an attached run that is not the controller: it starts ranks and passes on words.

It holds the same collected tests, so its server forks ranks as the controller's does. It has one
thread, waits for nothing but its connection and its ranks, and ends with them when rank 0 goes.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_multihost.launch.attach.connector import Connector
from pytest_multihost.launch.attach.rendezvous import find_rendezvous
from pytest_multihost.launch.attach.stream import (
    AuthenticatedStream,
    interface_of_address,
    kernel_identity,
)
from pytest_multihost.launch.attach.world import event_header
from pytest_multihost.launch.fallback import FallbackLauncher
from pytest_multihost.launch.interface import Share
from pytest_multihost.launch.server.world import ServerWorld
from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.model.errors import LaunchError, MultihostError
from pytest_multihost.model.json_values import from_json
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.pytest_plugin.attach.collected_tests import listed
from pytest_multihost.pytest_plugin.attach.local_share import Answer, Shared
from pytest_multihost.pytest_plugin.attach.state import ATTACHED, Attached
from pytest_multihost.pytest_plugin.launching import Launchers
from pytest_multihost.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.pytest_plugin.tally import TALLY
from pytest_multihost.pytest_private import base_temp, redirect_terminal

_FAREWELL_S = 10.0
"""How long rank 0 may take to end after it has said how the run went."""

_AFTER_S = 0.2
"""How long to live after rank 0: launchers tell which process was the first to end badly."""

_LOST = 1
_problems: list[str] = []
"""What went wrong in collecting: a process is attached once in its life."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Print nothing from now on: the controller says everything once."""
    redirect_terminal(session.config, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - for good


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Remember what could not be collected."""
    if report.failed:
        _problems.append(report.longreprtext)


def take_part(session: pytest.Session, chosen: Sequence[pytest.Item]) -> NoReturn:
    """Start ranks for rank 0 until it ends the run, then end as it did.

    Without pytest's own end: no plugin of this process may write what rank 0's is writing.

    Args:
        session: What has collected.
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
    except BaseException:  # noqa: BLE001 - pytest's own end, which we must not reach, would tell it
        traceback.print_exc()
    finally:
        tests.launchers.close()
        shutil.rmtree(home, ignore_errors=True)
        sys.stderr.flush()
        os._exit(status)


def _serve(attached: Attached, tests: _Tests, home: Path) -> int:
    """Go to rank 0, do what it asks for, and return the run's exit status.

    Raises:
        MultihostError: Rank 0 was not found, or is gone.
    """
    trouble = [*_problems, *tests.open()]
    stream, greeting = _connector(attached).connect(attached.timeout_s)
    about = _about(listed(tests.plans), trouble, stream)
    stream.send({**about, "answers": greeting.header["asked"]})
    status = _Agent(stream, tests.launcher, home).serve()
    tests.launchers.close()
    shutil.rmtree(home, ignore_errors=True)  # launchers may kill us as soon as rank 0 ends
    _await_end(stream)
    return status


def _leave(number: int, _: object) -> NoReturn:
    """End in order when a launcher ends us."""
    sys.exit(128 + number)


def _connector(attached: Attached) -> Connector:
    find = partial(find_rendezvous, attached.membership, attached.secret, attached.rendezvous_file)
    return Connector(attached.membership, find, str(attached.rendezvous_file))


def _about(
    items: Sequence[Sequence[Any]], problems: Sequence[str], stream: AuthenticatedStream
) -> dict[str, Any]:
    address = stream.stream.getsockname()[0]
    return {
        "kind": "hello",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "kernel": kernel_identity(),
        "items": items,
        "problems": list(problems),
        "address": address,
        "interface": interface_of_address(address),
    }


def _await_end(stream: AuthenticatedStream) -> None:
    """Wait until rank 0's process has ended.

    A launcher that sees one process end badly ends the others, and rank 0 may still be printing.
    """
    deadline_s = time.monotonic() + _FAREWELL_S
    while stream.ended is None and time.monotonic() < deadline_s:
        stream.await_frames(deadline_s)
    time.sleep(_AFTER_S)


@dataclass(frozen=True, slots=True)
class _Tests:
    """The multihost tests of this process, and what launches them.

    Attributes:
        plans: How each is to run, by its node id.
        launchers: What starts their ranks.
    """

    plans: Mapping[str, Plan]
    launchers: Launchers

    def open(self) -> list[str]:
        """Start the servers; return what kept one from starting."""
        try:
            for plan in self.plans.values():
                self.launchers.get_local(plan.requirements)
        except LaunchError as error:
            return [str(error)]
        return []

    def launcher(self, nodeid: str) -> FallbackLauncher:
        """Return what starts the ranks of a test."""
        return self.launchers.get_local(self.plans[nodeid].requirements)


def _read_tests(config: pytest.Config, items: Sequence[pytest.Item], home: Path) -> _Tests:
    settings = config.stash[TALLY].settings
    plans = {plan.nodeid: plan for plan in plan_items(config, items, settings).values()}
    backends = {plan.backend.name: plan.backend for plan in plans.values()}
    launchers = Launchers(
        config=config, settings=settings, items=items, backends=backends, logs=home
    )
    return _Tests(plans, launchers)


@dataclass(slots=True)
class _Agent:
    """Does what rank 0 asks for.

    Attributes:
        stream: The connection to it.
        launcher: Returns what starts the ranks of a test.
        home: A directory of this process's own.
        share: Our share of the world that is running.
    """

    stream: AuthenticatedStream
    launcher: Callable[[str], FallbackLauncher]
    home: Path
    share: Shared | None = None
    _status: int | None = None

    def serve(self) -> int:
        """Serve until the run ends; return its exit status.

        Raises:
            LaunchError: Rank 0 is gone.
        """
        while self._status is None:
            self._wait()
            for frame in self.stream.receive():
                self._do(frame)
            self._pass_on()
            if self.stream.ended is not None and self._status is None:
                happened = "rank 0's process has gone without a word about how the run went"
                raise LaunchError(happened, seen=self.stream.ended)
        return self._status

    def _wait(self) -> None:
        poll = select.poll()
        more = select.POLLOUT if self.stream.has_more_to_send else 0
        poll.register(self.stream.fileno(), select.POLLIN | more)
        if self.share is not None:
            poll.register(self.share.world.fileno(), select.POLLIN)
        poll.poll()
        self.stream.flush()

    def _pass_on(self) -> None:
        """Tell rank 0 what has happened in our ranks."""
        if self.share is None:
            return
        try:
            for event in self.share.wait():
                self.stream.send(event_header(event), event.payload)
        except LaunchError as error:
            self.share = None
            self.stream.send({"kind": "broken", "error": str(error)})

    def _do(self, frame: Frame) -> None:
        kind, header = frame.header["kind"], frame.header
        if kind == "quit":
            self._status = int(header["status"])
        elif "asked" in header:
            about, payload = self._answer(header)
            number = {"kind": "answer", "answers": header["asked"]}
            self.stream.send({**number, **about}, payload)
        elif self.share is not None:
            _steer(self.share.world, frame)

    def _answer(self, header: Mapping[str, Any]) -> Answer:
        kind, share = header["kind"], self.share
        if kind == "ping":
            return {"now_s": time.monotonic()}, b""
        if kind == "probe":
            return {"text": _text(Path(header["path"]))}, b""
        if kind == "start":
            return self._start(header), b""
        if share is None:
            return {"kind": "failed", "error": "its ranks are lost"}, b""
        return {"dump": share.dump, "see": share.see, "end": self._end}[kind](header)

    def _start(self, header: Mapping[str, Any]) -> dict[str, Any]:
        spec = from_json(WorldSpec, header["spec"])
        part = Share(ranks=tuple(header["ranks"]), ports=tuple(header["ports"]))
        try:
            directory, scratch, own = self._places(header)
            launcher = self.launcher(spec.nodeid)
            world = launcher.start(spec, directory=directory, scratch=scratch, share=part)
        except (LaunchError, OSError) as error:
            return {"kind": "failed", "error": str(error)}
        self.share = Shared(world, directory, scratch, own)
        return {"pids": world.forked.header["pids"]}

    def _places(self, header: Mapping[str, Any]) -> tuple[Path, Path, Path | None]:
        """Return the world's directories: rank 0's, or where we do not see these, our own."""
        if "directory" in header:
            return Path(header["directory"]), Path(header["scratch"]), None
        own = Path(tempfile.mkdtemp(prefix="world-", dir=self.home))
        (own / "scratch" / "shared").mkdir(parents=True)
        (own / "logs").mkdir()
        return own / "logs", own / "scratch", own

    def _end(self, header: Mapping[str, Any]) -> Answer:
        share, self.share = self.share, None
        assert share is not None  # noqa: S101 - for the type checker; see `_answer`
        told: dict[str, Any] = {"events": [], "leftovers": []}
        try:
            ending = share.end(grace_s=header["grace_s"])
        except LaunchError as error:
            told["error"] = str(error)
        else:
            told["events"] = [event_header(event) for event in ending.events]
            told["leftovers"] = list(ending.leftovers)
        files, payload = share.remains()
        share.forget()
        return {**told, **files}, payload


def _steer(world: ServerWorld, frame: Frame) -> None:
    header = frame.header
    if header["kind"] == "send":
        world.send(header["rank"], Frame(header["frame"], frame.payload))
    elif header["kind"] == "dump":
        world.request_dumps(header["ranks"], header["what"])
    elif header["kind"] == "pause":
        world.pause(header["rank"], header["pause"])
    elif header["kind"] == "resume":
        world.resume(header["rank"])


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
