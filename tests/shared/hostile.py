"""Hostile input for both sides of the connections of an attached run, and what must hold for it.

Each target takes inputs of its strategy and fails if one of them does more than end its own
connection. The test suite runs a few hundred inputs, `make fuzz` many.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from pytest_multihost.core.launch import Decoder, FrameStream, Membership, WireFrame
from pytest_multihost.extensions.engines.attach import Connector, Listener, Rendezvous
from pytest_multihost.extensions.engines.attach.rendezvous import (
    CHALLENGE,
    MAGIC,
    PROOF,
    Greeting,
    Handshake,
    RefusedError,
    Role,
    new_nonce,
)
from pytest_multihost.testing import (
    DumpsWritten,
    FromPeer,
    GarbledError,
    LaunchError,
    Ping,
    Pong,
    RanksLost,
    ToPeer,
    ToRank,
    ToServer,
    Welcome,
)

SECRET = b"correct horse battery staple"
_CHUNK = 1 << 16
_LENGTHS = 8 + 32  # of a frame, with their tag
_WAIT_S = 20.0

Edit = tuple[str, int, bytes]
"""What is done to a message on its way, where, and with which bytes."""


def edited(data: bytes, edits: Sequence[Edit]) -> bytes:
    """Return data after some edits."""
    found = bytearray(data)
    for kind, place, more in edits:
        at = place % (len(found) + 1)
        match kind:
            case "flip" if at < len(found):
                found[at] ^= (more or b"\x01")[0] or 1
            case "cut":
                del found[at:]
            case "insert":
                found[at:at] = more
            case "drop":
                del found[at : at + len(more)]
            case "double":
                found += bytes(found)
    return bytes(found)


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "drop", "double"]),
        st.integers(0, 400),
        st.binary(max_size=9),
    ),
    max_size=3,
)
NOISE = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"[" * 1020, b"GET / HTTP/1.1\r\n\r\n", MAGIC, MAGIC * 9, bytes(4096)]),
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=40)).map(
        lambda each: struct.pack("!II", *each[:2]) + each[2]
    ),
)


def pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Return data in pieces of these sizes, the rest as the last."""
    found = []
    for size in sizes:
        found.append(data[:size])
        data = data[size:]
    return [*filter(None, found), data]


SIZES = st.lists(st.integers(1, 60), max_size=3)


class ListenerTarget:
    """The controller's side of the handshake: connections of strangers, then of a peer."""

    name = "connections to the controller"
    strategy = st.tuples(
        st.sampled_from(["noise", "wrong secret", "secret"]),
        NOISE,
        EDITS,
        st.tuples(st.integers(0, 3), st.sampled_from([0, 2, 3, 2**32 - 1])),
        SIZES,
    )

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = free.getsockname()[:2]
        about = {"rank": 0, "size": 3, "source": "test", "job": "1"}
        membership = Membership(**about, host=self.address[0], port=self.address[1])
        self.listener = Listener(Rendezvous(membership, SECRET, Path("/nonexistent")))

    def check(self, given_input: tuple[str, bytes, list[Edit], tuple[int, int], list[int]]) -> None:
        """Connect as a stranger, then as a peer, which must be admitted."""
        kind, noise, edits, (rank, size), sizes = given_input
        with self._connected() as stranger:
            data = noise
            if kind != "noise":
                secret = SECRET if kind == "secret" else SECRET[::-1]
                data = edited(self._proof(stranger, secret, rank, size), edits)
            for piece in pieces(data, sizes):
                try:
                    stranger.sendall(piece)
                except OSError:  # it has been sent away already
                    break
                self._turn()
        self._turn_until(lambda: not self.listener._admission._pending)
        self._forget_peers()
        with self._connected() as peer:
            peer.sendall(self._proof(peer, SECRET, 2, 3))
            self._turn_until(lambda: 2 in self.listener.peers)
        self._forget_peers()
        assert len(self.listener._admission._selector.get_map()) == 1
        assert len(self.listener._admission.refused) <= 3

    def _connected(self) -> socket.socket:
        before = self.listener._admission._pending[-1:]
        stream = socket.create_connection(self.address, timeout=_WAIT_S)
        # No port is left in TIME_WAIT: there are not enough for so many connections.
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._turn_until(lambda: self.listener._admission._pending[-1:] not in (before, []))
        return stream

    def _proof(self, stream: socket.socket, secret: bytes, rank: int, size: int) -> bytes:
        fields = Greeting(CHALLENGE).receive(stream)
        assert fields is not None
        handshake = Handshake(fields[0], new_nonce(), rank, size)
        return PROOF.pack(MAGIC, handshake.answer, rank, size, handshake.proof(secret))

    def _turn(self) -> None:
        self.listener._admission.step(0.0)

    def _turn_until(self, is_reached: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while not is_reached():
            assert time.monotonic() < deadline_s, "the peer is not admitted, or a slot is lost"
            self.listener._admission.step(0.01)

    def _forget_peers(self) -> None:
        for peer in self.listener.peers.values():
            peer.stream.close()
        self.listener.peers.clear()

    def close(self) -> None:
        """Stop listening."""
        self.listener.close()


class ConnectorTarget:
    """The peer's side of the handshake: what listens at the address is not the controller."""

    name = "answers to a peer"
    strategy = st.tuples(
        st.sampled_from(["noise", "challenge", "wrong secret", "secret"]), NOISE, EDITS, SIZES
    )

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._inputs: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        address = self._server.getsockname()
        about = {"rank": 1, "size": 2, "source": "test", "job": "1"}
        membership = Membership(**about, host=address[0], port=address[1])
        self._rendezvous = Rendezvous(membership, SECRET, Path("/nonexistent"))

    def check(self, given_input: tuple[str, bytes, list[Edit], list[int]]) -> None:
        """Connect once: there is a reason why not, or a controller that knows the secret."""
        connector = Connector(self._rendezvous)
        self._inputs.put(given_input)
        address = self._rendezvous.membership.addresses[0]
        found = connector._try(address, SECRET, time.monotonic() + _WAIT_S)
        if found is None:
            assert connector.seen[address]
            return
        found[0].close()
        assert given_input[0] == "secret"
        assert isinstance(found[1].message, Welcome)

    def _serve(self) -> None:
        while (given_input := self._inputs.get()) is not None:
            stream, _ = self._server.accept()
            with stream:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stream.settimeout(_WAIT_S)
                try:
                    self._answer(stream, *given_input)
                    stream.shutdown(socket.SHUT_WR)
                    while stream.recv(_CHUNK):  # else its end would overtake what was sent
                        pass
                except (OSError, RefusedError):  # the peer has given up
                    continue

    def _answer(
        self, stream: socket.socket, kind: str, noise: bytes, edits: list[Edit], sizes: list[int]
    ) -> None:
        challenge = new_nonce()
        greeting = CHALLENGE.pack(MAGIC, challenge)
        if kind in ("noise", "challenge"):
            data = noise if kind == "noise" else edited(greeting, edits) + noise
            for piece in pieces(data, sizes):
                stream.sendall(piece)
            return
        stream.sendall(greeting)
        proof, fields = Greeting(PROOF), None
        while fields is None:
            fields = proof.receive(stream)
        secret = SECRET if kind == "secret" else SECRET[::-1]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            handshake = Handshake(challenge, *fields[:3])
            handshake.stream(ours, secret, role="controller").send(WireFrame(Welcome(), number=1))
            data = edited(theirs.recv(_CHUNK), edits)
        for piece in pieces(data, sizes):
            stream.sendall(piece)

    def close(self) -> None:
        """Stop listening."""
        self._inputs.put(None)
        self._thread.join(_WAIT_S)
        self._server.close()


DOWN = (
    WireFrame(Ping(), number=1),
    WireFrame(Ping(), b"payload" * 9, 2),
    WireFrame(Welcome(), number=3),
)
UP = (
    WireFrame(Pong(0.5), number=1),
    WireFrame(DumpsWritten(), b"payload" * 9, 2),
    WireFrame(RanksLost("")),
)


class StreamTarget:
    """An authenticated connection whose bytes somebody changes on their way."""

    name = "changed frames, both ways"
    strategy = st.tuples(st.sampled_from([DOWN, UP]), st.integers(1, 3), EDITS, NOISE, SIZES)
    handshake = Handshake(bytes(32), bytes(32), 1, 2)

    def check(
        self, given_input: tuple[Sequence[WireFrame[Any]], int, list[Edit], bytes, list[int]]
    ) -> None:
        """What arrives is the beginning of what was sent, and nothing else is waited for."""
        frames, count, edits, noise, sizes = given_input
        near, between = socket.socketpair()
        far, sink = socket.socketpair()
        with near, between, far, sink:
            roles: tuple[Role, Role] = ("controller", "peer")
            sender_role, receiver_role = roles if frames is DOWN else roles[::-1]
            sender = self.handshake.stream(near, SECRET, role=sender_role)
            receiver = self.handshake.stream(far, SECRET, role=receiver_role)
            for frame in frames[:count]:
                sender.send(frame)
            genuine = between.recv(_CHUNK)
            data = edited(genuine, edits) + noise
            found = self._received(receiver, sink, pieces(data, sizes))
            kept = len(receiver._decoder._pending)
        assert found == list(frames[: len(found)])
        assert (len(found) == count) == data.startswith(genuine)
        assert kept <= (_CHUNK if receiver.is_garbled else len(genuine))
        assert receiver.is_garbled or len(data) <= len(genuine) + _LENGTHS

    def _received(
        self, receiver: FrameStream[Any], sink: socket.socket, data: Sequence[bytes]
    ) -> list[WireFrame[Any]]:
        found = []
        for piece in data:
            try:
                sink.sendall(piece)
            except OSError:
                break
            found += receiver.receive()
        return found

    def close(self) -> None:
        """Nothing is open."""


KINDS = ["fork", "release", "quit", "rank_event", "peer_hello", "pong", "snapshot_taken", "pause"]
NAMES = ["kind", "number", "event", "rank", "gate", "tests", "now_s", "spec", "snapshot", "ranks"]
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from([*KINDS, 10**400, "\udcff"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


class MessageTarget:
    """Messages of a shape that no message has."""

    name = "messages of every kind of connection"
    strategy = st.tuples(
        st.sampled_from([ToPeer, FromPeer, ToRank, ToServer]),
        st.one_of(
            st.tuples(st.sampled_from(KINDS), VALUES).map(
                lambda each: {**(each[1] if isinstance(each[1], dict) else {}), "kind": each[0]}
            ),
            VALUES,
            st.sampled_from([b"[" * 100_000, b"\xed\xa0\x80", b"NaN", b'{"kind": ' + b"9" * 5000]),
        ),
    )

    def check(self, given_input: tuple[Any, Any]) -> None:
        """Each is a message, or refused with the one error that ends a connection."""
        messages, value = given_input
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        decoder: Decoder[Any] = Decoder(messages)
        try:
            decoder.feed(struct.pack("!II", len(content), 0) + content)
        except GarbledError:
            return

    def close(self) -> None:
        """Nothing is open."""


TARGETS = (ListenerTarget, ConnectorTarget, StreamTarget, MessageTarget)
WAITING_TARGETS = TARGETS[:2]

_BATCH = 5_000
"""Hypothesis remembers every input of a run, so a long run would measure its memory."""


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """How many inputs a target has taken, how long that took, and what became of them.

    Attributes:
        slowest_s: The most that an input took, on the target's clock: of the processor, so that a
            busy machine does not count, or that of the wall for a target that waits.
    """

    name: str
    inputs: int
    seconds: float
    slowest_s: float
    ends: Mapping[str, int]


def fuzz(
    make: type[Any], inputs: int, *, number: int = 0, progress: Callable[[int], None] | None = None
) -> Fuzzed:
    """Give a target inputs, and raise for one that does more than end its own connection.

    Args:
        make: The target.
        inputs: How many.
        number: Chooses the inputs.
        progress: Called with the number of inputs so far.
    """
    target, taken, slowest_s, started_s = make(), 0, 0.0, time.monotonic()
    clock = time.monotonic if make in WAITING_TARGETS else time.process_time

    def check(given_input: Any) -> None:  # noqa: ANN401 - of the target's strategy
        nonlocal taken, slowest_s
        taken += 1
        began_s = clock()
        if progress is not None:
            progress(taken)
        try:
            target.check(given_input)
        except LaunchError as error:
            # A controller that knows the secret may refuse, and does so for no other reason.
            assert "rank 0 refused this process" in error.happened  # noqa: PT017 - a property
        slowest_s = max(slowest_s, clock() - began_s)

    try:
        while taken < inputs:
            limits = settings(
                max_examples=min(_BATCH, inputs - taken),
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            seed(number + taken)(limits(given(make.strategy)(check)))()
    finally:
        target.close()
    seconds = time.monotonic() - started_s
    return Fuzzed(make.name, taken, seconds, slowest_s, getattr(target, "counts", {}))
