"""A meeting of the processes that torchrun, srun or mpirun has started; see `Meeting` in core."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.launcher_env import Membership
from pytest_multihost.core.launch.wire import FrameStream
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.messages import FromPeer, Ping, Pong, Quit, ToPeer
from pytest_multihost.extensions.engines.attach import Connector, Listener, Peer, Rendezvous
from pytest_multihost.extensions.engines.peer_server import await_end

_AGAIN_S = 60.0


@dataclass(slots=True)
class LauncherMeeting:
    """This process's meeting with the others of its launcher."""

    rendezvous: Rendezvous
    _listener: Listener | None = None

    @classmethod
    def at(cls, folder: Path, environment: Mapping[str, str]) -> LauncherMeeting:
        """Return the meeting that the launcher's variables describe.

        Args:
            folder: The folder of the rendezvous file, which is used if rank 0 makes the secret.

        Raises:
            SettingError: No launcher has started this process, or the secret cannot be used.
        """
        rendezvous = Rendezvous.read(environment, folder)
        rendezvous.forget_variables()
        return cls(rendezvous)

    @property
    def membership(self) -> Membership:
        """This process's rank, and the number of processes."""
        return self.rendezvous.membership

    def await_companions(self, within_s: float, *, remedy: str) -> Sequence[Peer]:
        """Return the other processes; call it in rank 0's process.

        Raises:
            MultihostError: A process has not connected within `within_s` seconds.
        """
        self._listener = Listener(self.rendezvous)
        try:
            self._listener.await_peers(within_s, remedy=remedy)
        finally:
            self._listener.close()
        return tuple(self._listener.peers.values())

    def part(self, code: int) -> None:
        """Send the exit code to the connected processes; call it in rank 0's process."""
        for peer in self._listener.peers.values() if self._listener is not None else ():
            peer.part(code)

    def answer(
        self,
        answer: Callable[[ToPeer], FromPeer],
        within_s: float,
        *,
        problems: tuple[str, ...] = (),
    ) -> int:
        """Answer the requests of rank 0's process until it parts; return its exit code.

        Raises:
            MultihostError: Rank 0's process was not found within `within_s` seconds, or is gone.
        """
        stream = Connector(self.rendezvous).connect(within_s, tests=(), problems=problems)
        try:
            return _answer_until_end(stream, answer)
        finally:
            await_end(stream)


def _answer_until_end(stream: FrameStream[ToPeer], answer: Callable[[ToPeer], FromPeer]) -> int:
    """Answer requests until the exit code arrives, and return it.

    Raises:
        LaunchError: Rank 0's process is gone.
    """
    while True:
        for frame in stream.await_frames(time.monotonic() + _AGAIN_S):
            if isinstance(frame.message, Quit):
                return frame.message.status
            is_ping = isinstance(frame.message, Ping)
            found = Pong(time.monotonic()) if is_ping else answer(frame.message)
            stream.send(WireFrame(found, number=frame.number))
        if stream.ended is not None:
            raise LaunchError("rank 0's process has gone", seen=stream.ended)
