"""How a peer serves the controller: as a server does, but over TCP and on its own machine.

It has a server that forks ranks, as the controller has, and forwards requests to it. It has one
thread, which waits only for its connection and its ranks.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.launch import Ending
from pytest_multihost.launch.attach import pack
from pytest_multihost.launch.server import ServerLauncher, ServerWorld
from pytest_multihost.launch.wire import Frame, FrameStream
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.event import Event, FaultChanged
from pytest_multihost.model.messages import (
    DumpsWritten,
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
    SendToRank,
    SnapshotTaken,
    TakeSnapshot,
    ToPeer,
    WorldEnded,
)
from pytest_multihost.nemesis import clean_up_faults, heal_files
from pytest_multihost.pytest_plugin.attempt import harness_processes
from pytest_multihost.slots import slots_path
from pytest_multihost.watch.kernel import ProcReader
from pytest_multihost.watch.probes import request_dump

Answer = tuple[FromPeer, bytes]
"""A message and its payload."""


@dataclass(slots=True)
class PeerServer:
    """Serves rank 0.

    Attributes:
        stream: The connection to it.
        launcher: Returns the launcher of a test's ranks.
        home: A private directory of this process.
        local: This process's ranks of the running world.
    """

    stream: FrameStream[ToPeer]
    launcher: Callable[[str], ServerLauncher]
    home: Path
    local: LocalRanks | None = None
    _status: int | None = None

    def serve(self) -> int:
        """Serve until the run ends; return its exit status.

        Raises:
            LaunchError: Rank 0 is gone.
        """
        while self._status is None:
            poll = select.poll()
            poll.register(self.stream.fileno(), self.stream.poll_events)
            if self.local is not None:
                poll.register(self.local.world.fileno(), self.local.world.poll_events)
            poll.poll()
            self.stream.flush()
            for frame in self.stream.receive():
                self._handle(frame)
            self._pass_on_events()
            if self.stream.ended is not None and self._status is None:
                happened = "rank 0's process has gone without a word about how the run went"
                raise LaunchError(happened, seen=self.stream.ended)
        return self._status

    def _pass_on_events(self) -> None:
        """Forward the events of this process's ranks to rank 0."""
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
            world = self.local.world
            match frame.message:
                case SendToRank(rank, passed_on):
                    world.send(rank, Frame(passed_on, frame.payload))
                case RequestDumps(ranks, what):
                    world.request_dumps(ranks, what)
                case PauseRank() as request:
                    world.request(request)

    def _answer(self, message: ToPeer) -> Answer:
        match message:
            case Ping():
                return Pong(time.monotonic()), b""
            case ReadProbe(path):
                text = None
                with contextlib.suppress(OSError, ValueError):
                    text = Path(path).read_text(encoding="utf-8")
                return ProbeRead(text), b""
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
        private = None
        try:
            if request.directory is None or request.scratch is None:  # rank 0 sees no files here
                private = Path(tempfile.mkdtemp(prefix="world-", dir=self.home))
                logs, scratch = private / "logs", private / "scratch"
                (scratch / "shared").mkdir(parents=True)
                logs.mkdir()
            else:
                logs, scratch = Path(request.directory), Path(request.scratch)
            world = self.launcher(request.spec.nodeid).start(
                request.spec,
                directory=logs,
                scratch=scratch,
                ranks=request.ranks,
                ports=request.ports,
            )
        except (LaunchError, OSError) as error:
            return Failed(str(error))
        self.local = LocalRanks(world, logs, scratch, private)
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


@dataclass(slots=True)
class LocalRanks:
    """This process's ranks of the running world.

    Attributes:
        world: The ranks.
        logs: Where logs and stacks go.
        scratch: For everything else.
        private: The directory above both; None where rank 0's machine sees the files.
        faults: Their fault events.
    """

    world: ServerWorld
    logs: Path
    scratch: Path
    private: Path | None
    faults: list[Event] = field(default_factory=list)
    _proc: ProcReader = field(init=False)

    def __post_init__(self) -> None:
        pids = dict(zip(self.world.ranks, self.world.forked.pids, strict=True))
        self._proc = ProcReader(pids, harness_processes(self.logs, self.scratch, frozenset()))

    def wait(self) -> Sequence[Event]:
        """Return what has happened by now.

        Raises:
            LaunchError: The server is gone.
        """
        events = self.world.wait(0)
        self.faults += [event for event in events if isinstance(event.body, FaultChanged)]
        return events

    def end(self, *, grace_s: float) -> Ending:
        """End all remaining processes, and report faults that only local files record.

        Raises:
            LaunchError: The server is gone.
        """
        ending = self.world.end(grace_s=grace_s)
        if self.private is None:
            return ending
        found = clean_up_faults(self.faults, self.scratch)
        return Ending((*found, *ending.events), ending.leftovers)

    def dump(self, request: RequestDumps) -> tuple[DumpsWritten, bytes]:
        """Have ranks write a dump, and return the files."""
        heal_files(self.scratch, request.ranks)
        files = request_dump(self.world, request.ranks, self.logs, request.what)
        sizes, payload = pack(files.values())
        return DumpsWritten(sizes), payload

    def take_snapshot(self, *, is_deep: bool) -> tuple[SnapshotTaken, bytes]:
        """Return a snapshot of the ranks from outside, and their slot pages."""
        snapshot = self._proc.deep_snapshot() if is_deep else self._proc.shallow_snapshot()
        sizes, payload = pack(slots_path(self.scratch, rank) for rank in self.world.ranks)
        return SnapshotTaken(snapshot, sizes), payload

    def remains(self) -> tuple[dict[str, int], bytes]:
        """Return the ranks' files that rank 0 cannot see, and remove them."""
        if self.private is None:
            return {}, b""
        found = pack(sorted(self.logs.glob("rank-*")))
        shutil.rmtree(self.private, ignore_errors=True)
        return found
