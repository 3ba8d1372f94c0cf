"""What ranks and exchange send each other arrives as it was sent."""

from __future__ import annotations

import math
import socket
from pathlib import Path

import pytest

from pytest_multihost.extensions.simulated.launches import (
    Blob,
    Completion,
    SimulatedLaunch,
    completion_from_tuple,
    completion_to_tuple,
    launch_from_tuple,
    launch_to_tuple,
)
from pytest_multihost.extensions.simulated.link import ExchangeLink, Unpacker, _comes, pack

BLOBS = (Blob("float32", b"\1\2\3\4"), Blob("int64", None), Blob("uint8", b"abc", (1, 2)))
LAUNCH = SimulatedLaunch(
    rank=7,
    number=3,
    group="0.1/0",
    member=2,
    size=4,
    operation="all_reduce",
    sequence=5,
    root=1,
    tag=9,
    reduction="sum",
    blobs=BLOBS,
    stream="0.1/0:1-2",
)
END = Completion(rank=7, number=3, blobs=BLOBS, source=1, error="members pass 1 and 2 tensors")


def test_a_launch_arrives_whole() -> None:
    """Each field has a value of its own here, so one that is lost or swapped shows."""
    [found] = Unpacker().feed(pack(launch_to_tuple(LAUNCH)))
    assert launch_from_tuple(found) == LAUNCH


def test_the_end_of_an_operation_arrives_whole() -> None:
    """The result of a collective is in it."""
    [found] = Unpacker().feed(pack(completion_to_tuple(END)))
    assert completion_from_tuple(found) == END


def test_messages_arrive_however_their_bytes_are_cut() -> None:
    """A socket returns what has come, which may be half of a message, or three."""
    unpacker, sent = Unpacker(), b"".join(pack(("rest", number)) for number in range(3))
    found = [each for at in range(0, len(sent), 5) for each in unpacker.feed(sent[at : at + 5])]
    assert found == [("rest", 0), ("rest", 1), ("rest", 2)]


@pytest.mark.parametrize("timeout_s", [1.0, 400 * 86_400.0, math.inf])
def test_an_answer_may_be_awaited_for_a_year(timeout_s: float) -> None:
    """Longer than poll(2) can wait."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        assert _comes(ours, timeout_s)


def test_an_exchange_that_is_gone_fails_no_rank_that_leaves_its_groups(tmp_path: Path) -> None:
    """It may be gone before a thread has connected."""
    ExchangeLink(str(tmp_path / "nothing"), 0).lose("0.1/0", 0, "destroyed")
