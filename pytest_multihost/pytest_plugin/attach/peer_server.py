"""What a peer does on the controller's request: as a server, but over TCP and on its own machine.

It has a server that forks ranks, as the controller has, and passes on to it what it is asked for.
One thread, which waits for nothing but its connection and its ranks.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.launch import Share
from pytest_multihost.launch.server import FallbackLauncher
from pytest_multihost.launch.wire import Frame, FrameStream
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.event import Event
from pytest_multihost.model.messages import (
    EndWorld,
    Failed,
    Fork,
    FromPeer,
    PauseRank,
    Ping,
    Pong,
    ProbeRead,
    Quit,
    RankEvent,
    RanksLost,
    ReadProbe,
    RequestDumps,
    ResumeRank,
    SendToRank,
    TakeSnapshot,
    ToPeer,
    WorldEnded,
)
from pytest_multihost.pytest_plugin.attach.local_ranks import Directories, LocalRanks

Answer = tuple[FromPeer, bytes]
"""A message and its payload."""


@dataclass(slots=True)
class PeerServer:
    """Serves rank 0.

    Attributes:
        stream: The connection to it.
        launcher: Returns what starts the ranks of a test.
        home: A directory of this process's own.
        local: Our ranks of the world that is running.
    """

    stream: FrameStream[ToPeer]
    launcher: Callable[[str], FallbackLauncher]
    home: Path
    local: LocalRanks | None = None
    _status: int | None = None

    def serve(self) -> int:
        """Serve until the run ends; return its exit status.

        Raises:
            LaunchError: Rank 0 is gone.
        """
        while self._status is None:
            self._wait()
            for frame in self.stream.receive():
                self._handle(frame)
            self._pass_on_events()
            if self.stream.ended is not None and self._status is None:
                happened = "rank 0's process has gone without a word about how the run went"
                raise LaunchError(happened, seen=self.stream.ended)
        return self._status

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.stream.fileno(), self.stream.poll_events)
        if self.local is not None:
            poll.register(self.local.world.fileno(), self.local.world.poll_events)
        poll.poll()
        self.stream.flush()

    def _pass_on_events(self) -> None:
        """Tell rank 0 what has happened in our ranks."""
        if self.local is None:
            return
        try:
            for event in self.local.wait():
                self._send_event(event)
        except LaunchError as error:
            self.local = None
            self.stream.send(Frame(RanksLost(str(error))))

    def _send_event(self, event: Event) -> None:
        self.stream.send(Frame(RankEvent(event), event.payload))

    def _handle(self, frame: Frame[ToPeer]) -> None:
        if isinstance(frame.message, Quit):
            self._status = frame.message.status
        elif frame.number:
            message, payload = self._answer(frame.message)
            self.stream.send(Frame(message, payload, frame.number))
        elif self.local is not None:
            self._pass_on(frame)

    def _pass_on(self, frame: Frame[ToPeer]) -> None:
        """Do what wants no answer."""
        assert self.local is not None  # noqa: S101 - for the type checker; see `_handle`
        world = self.local.world
        match frame.message:
            case SendToRank(rank, message):
                world.send(rank, Frame(message, frame.payload))
            case RequestDumps(ranks, what):
                world.request_dumps(ranks, what)
            case PauseRank(rank, pause):
                world.pause(rank, pause)
            case ResumeRank(rank):
                world.resume(rank)

    def _answer(self, message: ToPeer) -> Answer:
        match message:
            case Ping():
                return Pong(time.monotonic()), b""
            case ReadProbe(path):
                return ProbeRead(_text(Path(path))), b""
            case Fork() as fork:
                return self._fork(fork), b""
        if self.local is None:
            return Failed("its ranks are lost"), b""
        match message:
            case RequestDumps() as request:
                return self.local.dump(request)
            case TakeSnapshot(is_deep):
                return self.local.take_snapshot(is_deep=is_deep)
            case EndWorld(grace_s):
                return self._end(self.local, grace_s)
        return Failed(f"{type(message).__name__} is no request"), b""

    def _fork(self, request: Fork) -> FromPeer:
        spec, share = request.spec, Share(ranks=request.ranks, ports=request.ports)
        try:
            if request.directory is None or request.scratch is None:
                directories = Directories.make(self.home)
            else:
                directories = Directories(Path(request.directory), Path(request.scratch))
            world = self.launcher(spec.nodeid).start(
                spec, directory=directories.logs, scratch=directories.scratch, share=share
            )
        except (LaunchError, OSError) as error:
            return Failed(str(error))
        self.local = LocalRanks(world, directories)
        return world.forked

    def _end(self, local: LocalRanks, grace_s: float) -> Answer:
        self.local = None
        leftovers: tuple[str, ...] = ()
        try:
            ending = local.end(grace_s=grace_s)
        except LaunchError:  # the server is gone, and the ranks with it
            pass
        else:
            leftovers = ending.leftovers
            for event in ending.events:
                self._send_event(event)
        sizes, payload = local.remains()
        return WorldEnded(leftovers, sizes), payload


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
