"""Interfaces between the processes of one launcher: rank 0 sends requests, the others answer.

A plugin that can connect the processes offers a `Meeting` through the hook
`pytest_multihost_meeting`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from pytest_multihost.core.launch.launcher_env import Membership
from pytest_multihost.core.model.messages import FromPeer, PeerHello, ToPeer

A = TypeVar("A")


class Companion(Protocol):
    """Rank 0's connection to another process of the launcher.

    Every request raises LaunchError if the process is gone, or does not answer.
    """

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def hello(self) -> PeerHello:
        """Its description of itself."""

    @property
    def offset_s(self) -> float:
        """Offset from its clock to this process's."""

    @property
    def uncertainty_s(self) -> float:
        """Error bound of `offset_s`."""

    def measure_clock(self) -> None:
        """Measure the offset of its clock to this process's."""

    def reading(self, what: str) -> AbstractContextManager[None]:
        """Turn an error in reading an answer in the block into a LaunchError that names it."""

    def request(
        self, message: ToPeer, wanted: type[A], *, within_s: float
    ) -> Callable[[], tuple[A, bytes]]:
        """Send a request; return a function that waits for the answer and its payload."""


class Meeting(Protocol):
    """This process's connection to the others."""

    @property
    def membership(self) -> Membership:
        """This process's rank, and the number of processes."""

    def await_companions(self, within_s: float, *, remedy: str) -> Sequence[Companion]:
        """Wait until all other processes have connected, and return them. Only for rank 0.

        Args:
            within_s: How long they may take to connect.
            remedy: The user's next step if a process does not connect.

        Raises:
            MultihostError: A process has not connected.
        """

    def part(self, code: int) -> None:
        """Send the exit code to all processes that have connected. Only for rank 0."""

    def answer(
        self,
        answer: Callable[[ToPeer], FromPeer],
        within_s: float,
        *,
        problems: tuple[str, ...] = (),
    ) -> int:
        """Answer rank 0's requests until it sends an exit code; return that. Not for rank 0.

        Args:
            answer: Returns the answer to a request.
            within_s: How long to search for rank 0's process.
            problems: Why this process cannot take part.

        Raises:
            MultihostError: Rank 0's process was not found, or is gone.
        """
