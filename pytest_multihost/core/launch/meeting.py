"""How processes that one launcher has started meet: rank 0's asks, the others answer.

Whoever can connect them offers this over the hook `pytest_multihost_meeting`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pytest_multihost.core.launch.launcher_env import Membership
from pytest_multihost.core.model.messages import FromPeer, PeerHello, ToPeer

A = TypeVar("A")


class Companion(Protocol):
    """Another process of the launcher, as rank 0's sees it.

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

    def request(
        self, message: ToPeer, wanted: type[A], *, within_s: float
    ) -> Callable[[], tuple[A, bytes]]:
        """Send a request; return what waits for the answer and returns it with its payload."""


class Meeting(Protocol):
    """The meeting of this process with the others."""

    @property
    def membership(self) -> Membership:
        """This process's rank, and how many there are."""

    def await_companions(self, within_s: float, *, remedy: str) -> Sequence[Companion]:
        """Return the other processes, in rank 0's.

        Args:
            within_s: How long they may take to come.
            remedy: What the reader can do where one does not come.

        Raises:
            MultihostError: One has not come.
        """

    def part(self, code: int) -> None:
        """Send the exit code to those that have come, in rank 0's process."""

    def answer(
        self,
        answer: Callable[[ToPeer], FromPeer],
        within_s: float,
        *,
        problems: tuple[str, ...] = (),
    ) -> int:
        """Answer what rank 0's process asks until it parts, in any other; return its exit code.

        Args:
            answer: Returns the answer to a request.
            within_s: How long rank 0's process is looked for.
            problems: Why this process cannot take part.

        Raises:
            MultihostError: Rank 0's process was not found, or is gone.
        """
