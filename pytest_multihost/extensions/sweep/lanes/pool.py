"""The controller's side of the lanes: opens lanes, gives them worlds, and replaces lost lanes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.launch.interpreter import spawn_interpreter
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.launch.packets import receive_packet, send_packet
from pytest_multihost.core.launch.reaper import wait_until_dead
from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.core.launch.wire import signals_deferred
from pytest_multihost.core.model.errors import GarbledError, LaunchError
from pytest_multihost.extensions.sweep.lanes.messages import (
    FromLane,
    LaneOpened,
    LanesJob,
    OpenLane,
    RunWorld,
    UseServer,
    WorldLost,
)

CODE = "from pytest_multihost.extensions.sweep.lanes.process import main; main()"
"""The program of the lane parent."""

_START_S = 60.0
"""How long the lane parent may take to import everything."""

_END_S = 20.0
"""How long servers may take to end the ranks of ended lanes."""


@dataclass(slots=True)
class _LaneHandle:
    """A lane, as the controller sees it.

    Attributes:
        request: The world that it runs; None if it is idle.
        servers: Pidfds of its servers, by key.
    """

    connection: socket.socket
    pid: int
    request: RunWorld | None = None
    servers: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class LanePool:
    """The lanes of a run of pytest, kept from its first sweep to its end.

    Attributes:
        log: The file in which lanes write errors.
    """

    log: Path
    environment: Mapping[str, str]
    _parent: tuple[socket.socket, int] | None = None
    _lanes: list[_LaneHandle] = field(default_factory=list)
    _ending: list[int] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(
        default_factory=lambda: close_in_children(selectors.DefaultSelector())
    )

    def start(self) -> None:
        """Start the lane parent, unless it runs; returns before it is ready."""
        if self._parent is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_START_S)
        with theirs:
            theirs.set_inheritable(True)
            job = LanesJob(theirs.fileno(), os.getpid())
            pid = spawn_interpreter(CODE, job, environment=self.environment, log=self.log)
        self._parent = close_in_children(ours), pid

    def grow(self, count: int) -> None:
        """Open lanes until there are `count`.

        Raises:
            LaunchError: The lane parent is gone.
        """
        self.start()
        while len(self._lanes) < count:
            with signals_deferred():
                self._open_lane()

    def _open_lane(self) -> None:
        assert self._parent is not None  # noqa: S101 - for the type checker
        parent, _ = self._parent
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                send_packet(parent, OpenLane(), [theirs.fileno()])
                packet = receive_packet(parent, LaneOpened)
            if packet is None:
                raise LaunchError("the process that forks lanes is gone", seen=f"See {self.log}.")
        except (OSError, GarbledError) as error:
            ours.close()
            raise LaunchError("no lane could be opened", seen=str(error)) from error
        lane = _LaneHandle(close_in_children(ours), packet.message.pid)
        self._lanes.append(lane)
        self._selector.register(ours, selectors.EVENT_READ, lane)

    def begin(self, request: RunWorld, launchers: Mapping[str, ServerLauncher]) -> None:
        """Let an idle lane run a world; there must be an idle lane.

        Args:
            launchers: The controller's launchers for this world, by the keys of their servers; the
                lane gets a clone of each server.

        Raises:
            LaunchError: No server could be cloned.
        """
        lane = next(each for each in self._lanes if each.request is None)
        with signals_deferred():
            for key, launcher in launchers.items():
                if key not in lane.servers:
                    self._attach_server(lane, key, launcher)
            lane.request = request
            with contextlib.suppress(OSError):  # it has ended: `wait` will see that
                send_packet(lane.connection, request)

    def _attach_server(self, lane: _LaneHandle, key: str, launcher: ServerLauncher) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            pid = launcher.clone_server(theirs.fileno(), lane.pid)
            with contextlib.suppress(ProcessLookupError):
                lane.servers[key] = os.pidfd_open(pid)
            with contextlib.suppress(OSError):
                use = UseServer(key, launcher.name, pid)
                send_packet(lane.connection, use, [ours.fileno()])

    def wait(self, timeout_s: float) -> Iterator[tuple[RunWorld, FromLane]]:
        """Wait for answers, and yield each with its request."""
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            lane: _LaneHandle = key.data
            answer = _receive(lane)
            request, lane.request = lane.request, None
            if answer is None or isinstance(answer, WorldLost):
                self._drop(lane)
            if request is not None:
                yield request, answer or WorldLost(request.serial, "the lane has ended")

    def _drop(self, lane: _LaneHandle) -> None:
        """End a lane. Its servers end its world."""
        self._lanes.remove(lane)
        self._selector.unregister(lane.connection)
        lane.connection.close()
        # The lane parent reaps only ended lanes, and the kernel reuses their ids late.
        with contextlib.suppress(ProcessLookupError):
            os.kill(lane.pid, signal.SIGKILL)
        self._ending += lane.servers.values()

    def stop(self) -> None:
        """End all lanes, and wait until their worlds are gone."""
        with signals_deferred():
            for lane in list(self._lanes):
                self._drop(lane)
            wait_until_dead(self._ending, _END_S)
            for descriptor in self._ending:
                os.close(descriptor)
            self._ending.clear()

    def close(self) -> None:
        """End all lanes and the lane parent."""
        self.stop()
        if self._parent is not None:
            (connection, pid), self._parent = self._parent, None
            connection.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._selector.close()


def _receive(lane: _LaneHandle) -> FromLane | None:
    """Return a lane's answer; None if the lane has ended."""
    try:
        packet = receive_packet(lane.connection, FromLane)
    except (OSError, GarbledError):
        return None
    return packet.message if packet is not None else None
