"""Waits for messages of zmq are recorded with whether another rank owes the message."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from runs import await_that

from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.slots import SlotPage, read_slots
from pytest_multihost.extensions.servers.zmq import record_zmq
from pytest_multihost.testing import Operation

pytestmark = pytest.mark.unit

zmq = pytest.importorskip("zmq", reason="the recorder of zmq needs pyzmq")
zmq_asyncio = pytest.importorskip("zmq.asyncio", reason="it comes with pyzmq")

WRAPPED = (
    (zmq.Socket, ("bind", "connect", "send", "recv", "close")),
    (zmq.Poller, ("poll",)),
    (zmq_asyncio.Socket, ("recv", "recv_multipart")),
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A context of zmq in a rank whose waits are recorded.

    Attributes:
        page: The slot page of the rank.
        folder: A folder for endpoints.
        made: The sockets of the context.
        waiting: The threads that wait at sockets.
    """

    page: SlotPage
    folder: Path
    context: Any = field(default_factory=zmq.Context)
    made: list[Any] = field(default_factory=list)
    waiting: list[threading.Thread] = field(default_factory=list)

    def socket(self, kind: str, context: Any = None) -> Any:  # noqa: ANN401 - of zmq
        """Return a new socket that is closed when the test ends, with what it has not sent."""
        found = (context or self.context).socket(getattr(zmq, kind))
        found.setsockopt(zmq.LINGER, 0)
        self.made.append(found)
        return found

    def sockets(self, kind: str, other: str) -> tuple[Any, Any]:
        """Return a socket that has connected to an endpoint, and one that has bound it."""
        endpoint = f"ipc://{self.folder / str(len(self.made))}"
        connected, bound = self.socket(kind), self.socket(other)
        bound.bind(endpoint)
        connected.connect(endpoint)
        return connected, bound

    @property
    def open(self) -> tuple[Operation, ...]:
        """The operations that have not ended."""
        return read_slots(self.page.path, rank=1).open

    def wait_of(self, wait: Callable[[], object]) -> Operation:
        """Return the record of a wait that another thread begins now."""

        def run() -> None:
            with contextlib.suppress(zmq.ContextTerminated):
                wait()

        self.waiting.append(threading.Thread(target=run))
        self.waiting[-1].start()
        await_that(lambda: self.open)
        [found] = self.open
        return found

    def end(self) -> None:
        """End all waits, then close the sockets: no socket may be used by two threads at a time."""
        ending = threading.Thread(target=self.context.term)
        ending.start()
        for each in self.waiting:
            each.join()
        for each in self.made:
            each.close()
        ending.join()


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """Rank 1 of 2, whose recorder wraps pyzmq until the test ends."""
    for owner, names in WRAPPED:
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    page = SlotPage.create(tmp_path / "slots")
    record_zmq(Recorder(page, rank=1, size=2))
    found = Recorded(page, tmp_path)
    yield found
    found.end()


@pytest.mark.parametrize(
    ("kind", "other", "scope"),
    [
        ("REQ", "REP", "message-answer"),
        ("DEALER", "ROUTER", "message-perhaps"),
        ("PAIR", "PAIR", "message-perhaps"),
    ],
)
def test_a_socket_that_has_asked_is_owed_an_answer(
    rank: Recorded, kind: str, other: str, scope: str
) -> None:
    """Perhaps only, where the message may have been a greeting."""
    asking, _ = rank.sockets(kind, other)
    asking.send(b"question")
    found = rank.wait_of(asking.recv)
    assert (found.name, found.kind, found.scope.kind) == ("zmq.recv", "wait", scope)
    assert str(rank.folder) in found.detail


@pytest.mark.parametrize(
    ("kind", "other"), [("PULL", "PUSH"), ("DEALER", "ROUTER"), ("PAIR", "PAIR"), ("REP", "REQ")]
)
def test_a_socket_that_has_not_asked_is_owed_nothing(rank: Recorded, kind: str, other: str) -> None:
    """It waits for the next message of any rank."""
    waiting, _ = rank.sockets(kind, other)
    assert rank.wait_of(waiting.recv).scope.kind == "message-request"


def test_an_answer_settles_the_question(rank: Recorded) -> None:
    """The next wait of the socket is for a message that no rank owes."""
    asking, other = rank.sockets("PAIR", "PAIR")
    asking.send(b"question")
    other.send(b"answer")
    assert asking.recv() == b"answer"
    assert rank.open == ()
    assert rank.wait_of(asking.recv).scope.kind == "message-request"


def test_a_call_that_may_not_block_records_nothing(rank: Recorded) -> None:
    """Neither a receive nor a poll, however often a loop calls it."""
    waiting, _ = rank.sockets("PULL", "PUSH")
    poller = zmq.Poller()
    poller.register(waiting, zmq.POLLIN)
    with pytest.raises(zmq.Again):
        waiting.recv(zmq.NOBLOCK)
    assert poller.poll(timeout=0) == []
    assert read_slots(rank.page.path, rank=1).recent == ()


@pytest.mark.parametrize(
    ("asks", "scope"), [((), "request"), ((0,), "perhaps"), ((0, 1), "perhaps")]
)
def test_a_poll_of_several_sockets_may_want_another_message(
    rank: Recorded, asks: tuple[int, ...], scope: str
) -> None:
    """So an answer that one of them is owed is perhaps not what the rank waits for."""
    poller, sockets = zmq.Poller(), [rank.sockets("REQ", "REP")[0] for _ in range(2)]
    for each in sockets:
        poller.register(each, zmq.POLLIN)
    for number in asks:
        sockets[number].send(b"question")
    found = rank.wait_of(poller.poll)
    assert (found.name, found.scope.kind) == ("zmq.poll", f"message-{scope}")


def test_a_poll_of_one_socket_is_a_wait_at_that_socket(rank: Recorded) -> None:
    """Nothing else can end it."""
    poller, (asking, _) = zmq.Poller(), rank.sockets("REQ", "REP")
    poller.register(asking, zmq.POLLIN)
    asking.send(b"question")
    assert rank.wait_of(poller.poll).scope.kind == "message-answer"


def test_a_closed_socket_leaves_its_questions_to_no_other(rank: Recorded) -> None:
    """Libzmq may give a new socket the address of one that has been closed."""
    for _ in range(20):
        asking, _ = rank.sockets("PAIR", "PAIR")
        asking.send(b"question")
        asking.close()
    waiting, _ = rank.sockets("PAIR", "PAIR")
    assert rank.wait_of(waiting.recv).scope.kind == "message-request"


def test_an_awaited_message_is_recorded_until_it_comes(rank: Recorded) -> None:
    """As work in the background, because the loop's thread waits for other things as well."""

    async def waits() -> tuple[Operation, ...]:
        context = zmq_asyncio.Context(rank.context)
        asking, answering = (rank.socket("PAIR", context) for _ in range(2))
        answering.bind(f"ipc://{rank.folder / 'awaited'}")
        asking.connect(f"ipc://{rank.folder / 'awaited'}")
        await asking.send(b"question")
        answer = asyncio.ensure_future(asking.recv())
        await asyncio.sleep(0)
        found = rank.open
        await answering.send(b"answer")
        assert await answer == b"answer"
        return found

    [found] = asyncio.run(waits())
    assert (found.name, found.waited_s) == ("zmq.recv", None)
    assert rank.open == ()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "ipc://{folder}/named"])
def test_both_sides_agree_on_the_name_of_an_endpoint(rank: Recorded, address: str) -> None:
    """Though they may call the host by different names."""
    bound = rank.socket("PULL")
    bound.bind(address.format(folder=rank.folder))
    endpoint = bound.getsockopt_string(zmq.LAST_ENDPOINT)
    rank.socket("PUSH").connect(endpoint.replace("127.0.0.1", "localhost"))
    entered = read_slots(rank.page.path, rank=1).entered
    kinds = {scope.kind: scope.name for _, _, scope in entered}
    assert kinds.keys() == {"endpoint-bound", "endpoint-connected"}
    assert len(set(kinds.values())) == 1


def test_an_endpoint_within_a_process_is_not_declared(rank: Recorded) -> None:
    """No other rank can be at its other side."""
    rank.socket("PULL").bind("inproc://here")
    assert read_slots(rank.page.path, rank=1).entered == {}


def test_a_closed_socket_raises_its_own_error(rank: Recorded) -> None:
    """The recorder asks it for its type, and adds no error of its own."""
    asking, _ = rank.sockets("REQ", "REP")
    asking.send(b"question")
    asking.close()
    with pytest.raises(zmq.ZMQError) as raised:
        asking.recv()
    assert raised.value.errno == zmq.ENOTSOCK
