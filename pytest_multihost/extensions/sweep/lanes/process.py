"""The programs of the lane parent and of a lane."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NoReturn

from pytest_multihost.core.attempt import run_apart, write
from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.launch import Launcher, hold_permits
from pytest_multihost.core.launch.job_spec import take_job
from pytest_multihost.core.launch.libc import die_with_parent
from pytest_multihost.core.launch.packets import Packet, receive_packet, send_packet
from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.core.model.replay import token
from pytest_multihost.core.registry import new_plugin_manager, offered_renderers
from pytest_multihost.core.report.artifacts import Attempt, build_verdict
from pytest_multihost.core.services import ServiceKind
from pytest_multihost.extensions.sweep.judge import judge_run
from pytest_multihost.extensions.sweep.lanes.messages import (
    FromLane,
    LaneOpened,
    LanesJob,
    OpenLane,
    RunWorld,
    ToLane,
    UseServer,
    WaitMeasured,
    WorldLost,
    WorldRun,
)
from pytest_multihost.extensions.sweep.lanes.split_launcher import SplitLauncher
from pytest_multihost.extensions.sweep.rating.wait_end import wait_end
from pytest_multihost.extensions.sweep.remains import compare, read_remains, read_usual
from pytest_multihost.extensions.sweep.result import WEAK, DisturbedRun
from pytest_multihost.extensions.sweep.sayings import first_saying, read_logs

_MAX_TEXT = 4_000
"""The maximum of characters of an error in a message."""


def main() -> NoReturn:
    """Fork a lane on each request, until the controller ends."""
    job: LanesJob = take_job(LanesJob)
    die_with_parent(job.controller)
    if os.getsid(0) != os.getpid():
        os.setsid()  # Ctrl-C is the controller's
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # lanes that have ended are reaped at once
    control = socket.socket(fileno=job.control)
    control.set_inheritable(False)
    _services()  # loaded once for all lanes
    gc.collect()
    gc.freeze()
    while (packet := receive_packet(control, OpenLane)) is not None:
        parent, (descriptor,) = os.getpid(), packet.descriptors
        if (pid := os.fork()) == 0:
            control.close()
            _be_lane(socket.socket(fileno=descriptor), parent)
        os.close(descriptor)
        send_packet(control, LaneOpened(pid))
    os._exit(0)


def _be_lane(connection: socket.socket, parent: int) -> NoReturn:
    """Run worlds until the controller closes the connection; never returns."""
    try:
        die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        lane = _Lane(connection)
        while (packet := receive_packet(connection, ToLane)) is not None:
            lane.answer(packet)
    except BaseException:  # noqa: BLE001 - the log of the lanes has it
        traceback.print_exc()
    finally:
        os._exit(0)


@dataclass(slots=True)
class _Lane:
    """A lane, in its own process.

    Attributes:
        launchers: The launchers of ranks, by the key of their server.
    """

    connection: socket.socket
    launchers: dict[str, ServerLauncher] = field(default_factory=dict)

    def answer(self, packet: Packet[ToLane]) -> None:
        """Handle a message. The controller replaces this lane after a lost world."""
        match packet.message:
            case UseServer() as server:
                control = socket.socket(fileno=packet.descriptors[0])
                launcher = ServerLauncher.of_clone(server.launch, control, server.pid)
                self.launchers[server.key] = launcher
            case RunWorld() as request:
                try:
                    launchers = [(self.launchers[e.server], e.ranks) for e in request.shares]
                    run = _run(request, SplitLauncher(launchers))
                except Exception:  # noqa: BLE001 - a defect of one run must not end the sweep
                    lost = WorldLost(request.serial, traceback.format_exc()[-_MAX_TEXT:])
                    send_packet(self.connection, lost)
                else:
                    send_packet(self.connection, run)


def _run(request: RunWorld, launcher: Launcher) -> FromLane:
    """Run a world, judge it, and remove its files."""
    scratch = Path(tempfile.mkdtemp(prefix="w", dir=request.scratch))
    try:
        if request.permits is None:
            return _run_in(scratch, request, launcher)
        places = Path(request.permits)
        with hold_permits(places, request.spec.size, count=request.permit_count):
            return _run_in(scratch, request, launcher)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_in(scratch: Path, request: RunWorld, launcher: Launcher) -> FromLane:
    directory = scratch / "artifacts" if request.keep is None else Path(request.keep)
    directory.mkdir(parents=True, exist_ok=True)
    judged = run_apart(
        request.spec,
        launcher,
        request.symptoms,
        request.root,
        directory=directory,
        scratch=scratch,
        kinds=_services(),
        primary_leaves_last=request.primary_leaves_last,
        # A proof assumes that no runtime times out before the test does. That is not so here.
        early="off" if request.measures_end else "fail",
        patience_s=request.patience_s,
    )
    result = judged.result
    if result.end.is_lost:
        return WorldLost(request.serial, (result.reason or result.ending)[-_MAX_TEXT:])
    if request.measures_end:
        logs = read_logs(directory, request.spec.size)
        return WaitMeasured(request.serial, wait_end(result, request.disturbance.fault, logs))
    kept = None if request.keep is None else os.path.relpath(directory, request.artifacts)
    usual = read_usual(Path(request.scratch))
    remains = read_remains(result, directory, scratch, usual=usual)
    found = compare(usual, remains, overwrites=request.overwrites)
    run = judge_run(
        request.disturbance,
        judged,
        usual_s=request.usual_s,
        usual_differences=request.usual_differences,
        found=found,
        token=token(request.spec),
        directory=kept,
    )
    if run.outcome in WEAK:
        logs = read_logs(directory, request.spec.size)
        run = replace(run, said=first_saying(logs, request.usual_lines))
    if request.keep is not None and run.outcome in WEAK:
        _write_artifacts(directory, judged, request)
    elif request.keep is not None:
        shutil.rmtree(directory, ignore_errors=True)
        run = replace(run, directory=None)
    return WorldRun(request.serial, _shortened(run))


@cache
def _services() -> Sequence[Sequence[ServiceKind]]:
    """Return the kinds of services that each plugin offers, the same for all worlds of a lane."""
    found: list[Sequence[ServiceKind]] = new_plugin_manager().hook.pytest_multihost_services()
    return found


def _write_artifacts(directory: Path, judged: Judgement, request: RunWorld) -> None:
    """Write the artifacts of a failed attempt; the answer itself carries the verdict."""
    environment = request.environment or {}
    about = Attempt(
        run_id=request.run_id, directory=directory.name, worker=None, environment=environment
    )
    renderers = offered_renderers(new_plugin_manager().hook)
    write(directory, judged, build_verdict(judged, about), about, renderers, run=None)


def _shortened(run: DisturbedRun) -> DisturbedRun:
    error = run.error[:_MAX_TEXT] if run.error is not None else None
    return replace(run, summary=run.summary[:_MAX_TEXT], error=error)
