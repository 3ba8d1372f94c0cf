"""Serves the controller in a peer: like a server, but over TCP and on the peer's own machine.

Like the controller, a peer has a server that forks ranks, and forwards requests to it. The peer has
one thread, which waits only for its connection and its ranks.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from pytest_multihost.core.attempt import harness_processes
from pytest_multihost.core.launch import Ending
from pytest_multihost.core.launch.ending_signals import ENDING, LOST_AFTER_S
from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.scratch import make_shared_directories
from pytest_multihost.core.launch.server import ServerLauncher, ServerWorld
from pytest_multihost.core.launch.wire import FrameStream
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import Event, FaultChanged
from pytest_multihost.core.model.messages import (
    Answered,
    Ask,
    CollectedTest,
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
    Signalled,
    SnapshotTaken,
    TakeSnapshot,
    ToPeer,
    WorldEnded,
)
from pytest_multihost.core.services import MachinePart, machine_parts
from pytest_multihost.core.slots import slots_path
from pytest_multihost.core.slots.page import history_path
from pytest_multihost.core.watch.kernel import ProcReader
from pytest_multihost.core.watch.probes import request_dump
from pytest_multihost.extensions.engines.attach import pack

_FAREWELL_S = 30.0
"""How long rank 0 may take to end after it has sent the run's exit status.

It may have to unload torch on a loaded machine; without a limit, a stuck rank 0 would keep
all others."""

_AFTER_S = 0.2
"""Delay of this process's exit after rank 0's: launchers report the first process that failed."""

Answer = tuple[FromPeer, bytes]
"""A message and its payload."""


LACKING = "lacking"
"""The question for the part that a machine lacks, and the key of its answer."""

Lacking = Callable[[str, int], str]
"""Returns the part that a machine lacks for a test. Arguments: node id, ranks on this machine."""


class Connect(Protocol):
    """Connects this process to rank 0's."""

    def __call__(
        self, *, tests: tuple[CollectedTest, ...], problems: tuple[str, ...]
    ) -> FrameStream[ToPeer]:
        """Return the connection, after sending this process's hello over it.

        Raises:
            MultihostError: Rank 0 was not found.
        """


@dataclass(frozen=True, slots=True)
class _LocalRanks:
    """This process's ranks of the running world.

    Attributes:
        logs: The folder for logs and stacks.
        private: The directory above both; None if rank 0 sees the files itself.
        parts: The parts of the world's services on this machine.
        faults: The events of faults, for the cleanup.
    """

    world: ServerWorld
    logs: Path
    scratch: Path
    private: Path | None
    proc: ProcReader
    parts: tuple[MachinePart, ...]
    faults: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class PeerServer:
    """Serves rank 0.

    Attributes:
        launcher: Returns the launcher of a test's ranks.
        home: A private directory of this process.
        lacking: Returns the part that this machine lacks for a number of ranks of a test; empty if
            none.
    """

    stream: FrameStream[ToPeer]
    launcher: Callable[[str], ServerLauncher]
    home: Path
    _local: _LocalRanks | None = None
    _status: int | None = None
    lacking: Lacking | None = None

    def serve(self) -> int:
        """Serve until the run ends; return its exit status.

        Raises:
            LaunchError: Rank 0 is gone.
        """
        while self._status is None:
            poll = select.poll()
            poll.register(self.stream.fileno(), self.stream.poll_events)
            if self._local is not None:
                poll.register(self._local.world.fileno(), self._local.world.poll_events)
            poll.poll()
            self.stream.flush()
            for frame in self.stream.receive():
                self._handle(frame)
            self._unless_lost(self._pass_on_events)
            if self.stream.ended is not None and self._status is None:
                happened = "rank 0's process has ended without a result of the run"
                raise LaunchError(happened, seen=self.stream.ended)
        return self._status

    def _unless_lost(self, act: Callable[[], None]) -> None:
        """Call a function that uses this process's ranks; inform rank 0 if their server is gone."""
        try:
            act()
        except LaunchError as error:
            self._local = None
            self.stream.send(WireFrame(RanksLost(str(error))))

    def _pass_on_events(self) -> None:
        """Forward the events of this process's ranks to rank 0."""
        if self._local is None:
            return
        events = self._local.world.wait(0)
        self._local.faults.extend(each for each in events if isinstance(each.body, FaultChanged))
        self._send_events(events)

    def _send_events(self, events: Iterable[Event]) -> None:
        for event in events:
            self.stream.send(WireFrame(RankEvent(event), event.payload))

    def _handle(self, frame: WireFrame[ToPeer]) -> None:
        if isinstance(frame.message, Quit):
            self._status = frame.message.status
        elif frame.number:
            try:
                message, payload = self._answer(frame.message)
            except LaunchError as error:  # the next poll of the ranks reports that they are lost
                message, payload = Failed(str(error)), b""
            self.stream.send(WireFrame(message, payload, frame.number))
        elif self._local is not None:
            self._unless_lost(partial(self._pass_on, frame, self._local.world))

    def _pass_on(self, frame: WireFrame[ToPeer], world: ServerWorld) -> None:
        """Forward a message without an answer to this process's ranks."""
        match frame.message:
            case SendToRank(rank, passed_on):
                world.send(rank, WireFrame(passed_on, frame.payload))
            case RequestDumps(ranks, what):
                world.request_dumps(ranks, what)
            case PauseRank() as request:
                world.request(request)

    def _answer(self, message: ToPeer) -> Answer:
        local = self._local
        match message:
            case Ping():
                return Pong(time.monotonic()), b""
            case ReadProbe(path):
                text = None
                with contextlib.suppress(OSError, ValueError):
                    text = Path(path).read_text(encoding="utf-8")
                return ProbeRead(text), b""
            case Ask(question, {"nodeid": str(nodeid), "ranks": int(ranks)}) if (
                question == LACKING and self.lacking is not None
            ):
                return Answered({LACKING: self.lacking(nodeid, ranks)}), b""
            case Fork() as fork:
                return self._fork(fork), b""
            case _ if local is None:
                return Failed("its ranks are lost"), b""
            case RequestDumps(ranks, what):
                for each in local.parts:
                    each.before_stacks(ranks)
                files = request_dump(local.world, ranks, local.logs, what)
                return DumpsWritten(), pack(files.values())
            case TakeSnapshot(is_deep):
                found = local.proc.deep_snapshot() if is_deep else local.proc.shallow_snapshot()
                pages = [slots_path(local.scratch, rank) for rank in local.world.ranks]
                histories = map(history_path, pages) if is_deep else ()  # they are larger
                return SnapshotTaken(found), pack([*pages, *histories])
            case EndWorld(grace_s):
                return self._end(local, grace_s)
        return Failed(f"{type(message).__name__} is not a request"), b""

    def _fork(self, request: Fork) -> FromPeer:
        private = None
        try:
            if request.directory is None or request.scratch is None:  # rank 0 cannot see files here
                private = Path(tempfile.mkdtemp(prefix="world-", dir=self.home))
                logs, scratch = private / "logs", private / "scratch"
                scratch.mkdir(parents=True)
                make_shared_directories(scratch)
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
        pids = dict(zip(world.ranks, world.forked.pids, strict=True))
        proc = ProcReader(pids, harness_processes(logs, scratch, frozenset()))
        parts = machine_parts(request.spec, scratch)
        self._local = _LocalRanks(world, logs, scratch, private, proc, parts)
        return world.forked

    def _end(self, local: _LocalRanks, grace_s: float) -> Answer:
        """End all remaining processes, and send events and logs that only this machine has."""
        self._local = None
        ending = Ending()
        with contextlib.suppress(LaunchError):  # the server is gone, and the ranks with it
            ending = local.world.end(grace_s=grace_s)
        if local.private is None:
            self._send_events(ending.events)
            return WorldEnded(ending.leftovers), b""
        unseen = [event for each in local.parts for event in each.clean_up(local.faults)]
        self._send_events((*unseen, *ending.events))
        payload = pack(sorted(local.logs.glob("rank-*")))
        shutil.rmtree(local.private, ignore_errors=True)
        return WorldEnded(ending.leftovers), payload


@dataclass(slots=True)
class PeerProcess:
    """A process that starts ranks for rank 0, from its signal handlers to its end.

    Attributes:
        connector: Returns a connection to rank 0 over which it has sent this process's hello.
    """

    connector: Connect
    _stream: FrameStream[ToPeer] | None = None
    _signalled_s: float | None = None

    def take_signals(self) -> None:
        """Ignore Ctrl-C, which rank 0 handles, and forward other ending signals to rank 0."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # not SIGHUP under nohup
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        """Ask rank 0 to end the run, which then reports where the ranks were.

        Without a connection this process exits at once, and at a second signal that comes later
        than `LOST_AFTER_S`: Slurm repeats the one of a time limit within milliseconds.
        """
        now_s, first_s = time.monotonic(), self._signalled_s
        if self._stream is None or (first_s is not None and now_s > first_s + LOST_AFTER_S):
            sys.exit(128 + number)
        if first_s is None:
            self._signalled_s = now_s
            self._stream.send(WireFrame(Signalled(signal.Signals(number).name)))

    def connect(self, *, tests: tuple[CollectedTest, ...], problems: tuple[str, ...]) -> None:
        """Connect to rank 0.

        Args:
            tests: The worlds for which this process can start ranks.
            problems: Why this process cannot take part.

        Raises:
            MultihostError: Rank 0 was not found.
        """
        self._stream = self.connector(tests=tests, problems=problems)

    def serve(
        self,
        launcher: Callable[[str], ServerLauncher],
        home: Path,
        lacking: Lacking | None = None,
    ) -> int:
        """Serve rank 0's requests until the run ends; return its exit status.

        The arguments are attributes of `PeerServer`.

        Raises:
            LaunchError: Rank 0 is gone.
        """
        assert self._stream is not None  # noqa: S101 - it is connected
        return PeerServer(self._stream, launcher, home, lacking=lacking).serve()

    def outlive_controller(self) -> None:
        """Wait until rank 0's process has ended.

        A launcher that sees one process fail ends the others, and rank 0 may still be printing.
        """
        if self._stream is not None:
            await_end(self._stream)


def await_end(stream: FrameStream[ToPeer]) -> None:
    """Wait until the process at the other end has ended, and `_AFTER_S` longer."""
    deadline_s = time.monotonic() + _FAREWELL_S
    while stream.ended is None and time.monotonic() < deadline_s:
        stream.await_frames(deadline_s)
    time.sleep(_AFTER_S)
