"""Frames on the wire: whole however they are cut, and to whom they belong."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_multihost.core.launch import frames
from pytest_multihost.core.launch.frames import Authenticator, Decoder, WireFrame, encode
from pytest_multihost.core.launch.wire import Channel, FrameStream
from pytest_multihost.testing import GarbledError, Gate, JsonObject, MultihostError, Release, ToRank

FRAMES = [
    WireFrame({"kind": "hello", "text": "ü ☃ \N{PILE OF POO}"}),
    WireFrame({"kind": "exchange"}, b"\x00\xff{}" * 3),
    WireFrame({}),
]


def test_frames_survive_any_cut() -> None:
    """Wherever a read ends, the same frames come out."""
    data = b"".join(map(encode, FRAMES))
    for cut in range(len(data) + 1):
        decoder = Decoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == FRAMES


def test_frames_survive_byte_by_byte() -> None:
    """No frame needs to arrive in one piece."""
    decoder = Decoder()
    data = b"".join(map(encode, FRAMES))
    assert [frame for byte in data for frame in decoder.feed(bytes([byte]))] == FRAMES


def test_a_frame_comes_out_as_soon_as_it_is_complete() -> None:
    """Nobody waits for the next frame to get this one."""
    assert Decoder().feed(encode(FRAMES[1])) == [FRAMES[1]]


@pytest.mark.parametrize(
    "garbage",
    [
        b"Hello, world!",  # read as lengths, these would be two billion bytes
        b"\x00\x00\x00\x03\x00\x00\x00\x00abc",
        b"\x00\x00\x00\x02\x00\x00\x00\x00\xff\xfe",
        b"\x00\x00\x00\x02\x00\x00\x00\x00[]",
        encode(WireFrame({"kind": "pickle"})),
        encode(WireFrame({})),
    ],
    ids=["text", "no JSON", "no UTF-8", "no object", "another kind", "no kind"],
)
def test_what_we_did_not_write_is_refused(garbage: bytes) -> None:
    """Somebody else may write into a descriptor that they think is theirs."""
    with pytest.raises(GarbledError):
        Decoder(frozenset({"hello"})).feed(garbage)


def test_a_header_is_looked_at_before_its_payload_is_waited_for() -> None:
    """A length that nobody meant could announce gigabytes that never come."""
    announced = encode(WireFrame({"kind": "pickle"}, b"x" * 100))[:-100]
    with pytest.raises(GarbledError):
        Decoder(frozenset({"hello"})).feed(announced)


class _Unspeakable:
    def __repr__(self) -> str:
        message = "no"
        raise RuntimeError(message)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ({1}, "{1}"),
        (b"x", "b'x'"),
        (_Unspeakable(), "<_Unspeakable whose repr() raises>"),
        ([1, {"deep": object}], [1, {"deep": "<class 'object'>"}]),
    ],
    ids=["set", "bytes", "raises", "nested"],
)
def test_what_json_does_not_know_is_sent_as_its_repr(value: object, sent: object) -> None:
    """A less precise record is worth more than none."""
    assert Decoder().feed(encode(WireFrame({"value": value})))[0].message == {"value": sent}


@pytest.mark.parametrize("value", [{(1, 2): 3}, [[]]], ids=["tuple as key", "circular"])
def test_what_json_refuses_is_sent_as_well(value: Any) -> None:  # noqa: ANN401
    """A user's record_property("x", {(1, 2): 3}) must not cost the rank its report."""
    if isinstance(value, list):
        value[0].append(value)
    [frame] = Decoder().feed(encode(WireFrame({"kind": "report", "value": value})))
    assert frame.message["kind"] == "report"


@pytest.mark.timeout(0.5)
@pytest.mark.parametrize("case", ["many circles", "huge number", "bad key"])
def test_what_json_refuses_twice_is_sent_as_well(case: str) -> None:
    """And at once: the second try must not fail like the first, nor take for ever."""
    circles: list[object] = []
    circles += [circles] * 4  # a tree of 4 ** 20 leaves, if one follows it
    value = {
        "many circles": circles,
        "huge number": [10**5000, {(1, 2): 3}],  # json.dumps: more digits than Python converts
        "bad key": {_Unspeakable(): 1},
    }[case]
    [frame] = Decoder().feed(encode(WireFrame({"kind": "report", "value": value})))
    assert frame.message["kind"] == "report"


def test_text_that_utf8_cannot_hold_is_sent() -> None:
    """Output of a test may hold lone surrogates."""
    assert Decoder().feed(encode(WireFrame({"text": "\udcff"})))[0].message == {"text": "\udcff"}


def test_a_message_that_is_too_large_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length would not fit into the four bytes that announce it."""
    monkeypatch.setattr(frames, "MAX_PART", 10)
    with pytest.raises(MultihostError, match="shared_tmp_path"):
        encode(WireFrame({}, b"12345678901"))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """Return a rank's channel and the controller's end of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Return threads that have ended when the test has, as the sockets are closed before."""
    with ThreadPoolExecutor(3) as pool:
        yield pool


Ends = tuple[Channel, socket.socket]


def wait_for(channel: Channel, gate: Gate) -> WireFrame[ToRank]:
    """Return the next frame that opens a gate."""
    return channel.receive(lambda message: message == Release(gate))


def await_reader(channel: Channel) -> None:
    """Wait until some thread reads for all."""
    while not channel._is_being_read:
        time.sleep(0.001)


def test_what_a_rank_sends_arrives(ends: Ends) -> None:
    """Header and payload, through a real socket."""
    channel, controller = ends
    channel.send({"kind": "exchange"}, b"payload")
    assert Decoder().feed(controller.recv(1000)) == [WireFrame({"kind": "exchange"}, b"payload")]


def test_an_event_that_is_sent_with_the_next_one_comes_before_it(ends: Ends) -> None:
    """Nothing is written until the next event, and then both are, in their order."""
    channel, controller = ends
    channel.send_with_next({"kind": "report"})
    assert not select.select([controller], [], [], 0.0)[0]
    channel.send({"kind": "phase"})
    assert Decoder().feed(controller.recv(1000)) == [
        WireFrame({"kind": "report"}),
        WireFrame({"kind": "phase"}),
    ]


def test_a_wait_sends_what_was_to_be_sent_with_the_next_event(ends: Ends) -> None:
    """The controller may open the gate only because of that event."""
    channel, controller = ends
    channel.send_with_next({"kind": "report"})
    controller.sendall(encode(WireFrame(Release("go"))))
    wait_for(channel, "go")
    assert Decoder().feed(controller.recv(1000)) == [WireFrame({"kind": "report"})]


def test_frames_for_somebody_else_are_kept(ends: Ends) -> None:
    """A frame that nobody wants yet is there when somebody does."""
    channel, controller = ends
    for gate in ("go", "exit"):
        controller.sendall(encode(WireFrame(Release(gate))))
    assert wait_for(channel, "exit").message == Release("exit")
    assert wait_for(channel, "go").message == Release("go")


def test_each_of_two_threads_gets_its_own_frame(ends: Ends, pool: ThreadPoolExecutor) -> None:
    """Whichever of them reads, the other is served while the reader still waits for its own."""
    channel, controller = ends
    first = pool.submit(wait_for, channel, "go")
    await_reader(channel)  # so it is `first` that reads, and must hand over what is not its own
    second = pool.submit(wait_for, channel, "teardown")
    controller.sendall(encode(WireFrame(Release("teardown"))))
    assert second.result(5).message == Release("teardown")
    assert not first.done()
    controller.sendall(encode(WireFrame(Release("go"))))
    assert first.result(5).message == Release("go")


def test_reading_goes_on_when_the_reader_leaves(ends: Ends, pool: ThreadPoolExecutor) -> None:
    """The thread that has what it wanted leaves the reading to one that has not."""
    channel, controller = ends
    first = pool.submit(wait_for, channel, "go")
    await_reader(channel)
    second = pool.submit(wait_for, channel, "teardown")
    controller.sendall(encode(WireFrame(Release("go"))))
    assert first.result(5)
    controller.sendall(encode(WireFrame(Release("teardown"))))
    assert second.result(5).message == Release("teardown")


def test_all_threads_hear_that_the_controller_is_gone(ends: Ends, pool: ThreadPoolExecutor) -> None:
    """Not only the one that happens to read."""
    channel, controller = ends
    gates: list[Gate] = ["go", "exit"]
    waiting = [pool.submit(wait_for, channel, gate) for gate in gates]
    await_reader(channel)
    controller.close()
    for each in waiting:
        with pytest.raises(EOFError, match="controller"):
            each.result(5)


def test_threads_that_send_do_not_mix_their_frames(ends: Ends, pool: ThreadPoolExecutor) -> None:
    """A frame larger than the socket's buffer is still sent in one piece."""
    channel, controller = ends
    kinds = ["a", "b", "c"]
    sent = [pool.submit(channel.send, {"kind": kind}, kind.encode() * 1_000_000) for kind in kinds]
    decoder, frames = Decoder(), list[WireFrame]()
    while len(frames) < len(kinds):
        frames += decoder.feed(controller.recv(1 << 20))
    assert [each.result(5) for each in sent] == [None, None, None]
    assert {f.message["kind"]: set(f.payload) for f in frames} == {k: {ord(k)} for k in kinds}


@pytest.mark.parametrize(
    "use", [lambda channel: channel.send({}), lambda c: wait_for(c, "go")], ids=["send", "receive"]
)
def test_a_forked_child_may_not_use_the_channel(ends: Ends, use: Any) -> None:  # noqa: ANN401
    """Two processes on one stream would tear each other's frames apart."""
    channel, controller = ends
    inherited = Channel(channel.stream, _owner=os.getpid() + 1)
    controller.sendall(encode(WireFrame(Release("go"))))  # so that an unrefused read would not wait
    assert (channel.is_ours, inherited.is_ours) == (True, False)
    with pytest.raises(MultihostError, match="forked child"):
        use(inherited)


def test_reading_what_is_there_never_waits(ends: Ends) -> None:
    """Frames, nothing and the end of the stream are told apart."""
    channel, controller = ends
    stream = FrameStream[Any](controller, JsonObject)
    assert (stream.receive(), stream.ended) == ([], None)
    channel.send({"kind": "hello"})
    assert (stream.receive(), stream.ended) == ([WireFrame({"kind": "hello"})], None)
    channel.send({"kind": "done"})
    channel.stream.close()
    assert stream.receive() == [WireFrame({"kind": "done"})]
    assert (stream.receive(), stream.ended) == ([], "it closed the connection")


def test_what_was_said_before_the_end_is_heard_when_sending_finds_the_end(ends: Ends) -> None:
    """A rank that has died still counts as having told what it told."""
    channel, controller = ends
    stream = FrameStream[Any](controller, JsonObject)
    channel.send({"kind": "done"})
    channel.stream.close()
    stream.send(WireFrame(Release("exit")))
    assert (stream.receive(), stream.has_more_to_send) == ([WireFrame({"kind": "done"})], False)


def test_frames_before_one_that_is_invalid_arrive_though_they_came_in_one_piece(ends: Ends) -> None:
    """What a rank has told does not depend on how the kernel has cut it."""
    channel, controller = ends
    stream = FrameStream[Any](controller, JsonObject)
    channel.stream.sendall(encode(WireFrame({"kind": "done"})) + struct.pack("!II", 3, 0) + b"abc")
    assert stream.receive() == [WireFrame({"kind": "done"})]
    assert stream.is_garbled


NESTED = b'{"kind": "Release", "gate": ' + b"[" * 100_000
LONG = b'{"kind": "FaultPerformed", "error": "", "index": ' + b"9" * 10_000 + b"}"


@pytest.mark.parametrize(
    "content",
    [
        NESTED,
        LONG,
        b'{"kind": "Release"}',
        b'{"kind": "Release", "gate": "none"}',
        b'{"kind": "Release", "gate": {}}',
        b'{"kind": ["Release"], "gate": "go"}',
        b'{"kind": "Release", "gate": "go", "number": "one"}',
        b'{"kind": "CollectiveComplete", "key": ["a", "b"], "sizes": []}',
        b"[]",
        b"\xed\xa0\x80",
    ],
)
def test_a_message_of_another_shape_is_refused(content: bytes) -> None:
    """With one error, whatever is wrong with it: whoever reads has others to serve."""
    with pytest.raises(GarbledError):
        Decoder(ToRank).feed(struct.pack("!II", len(content), 0) + content)


KEY = b"k" * 32


def authentic(*messages: ToRank) -> list[bytes]:
    """Return frames with the tags that they have in their order."""
    sender = Authenticator(KEY)
    return [encode(WireFrame(each), sender) for each in messages]


def test_authentic_frames_arrive_however_the_stream_is_cut() -> None:
    """Byte by byte too."""
    data = b"".join(authentic(Release("go"), Release("exit")))
    decoder = Decoder(ToRank, authenticator=Authenticator(KEY))
    found = [each for at in range(len(data)) for each in decoder.feed(data[at : at + 1])]
    assert [each.message for each in found] == [Release("go"), Release("exit")]


@pytest.mark.parametrize(
    "select",
    [
        lambda go, _: [go, go],  # sent again
        lambda _, leave: [leave],  # the one before was left out
        lambda go, leave: [leave, go],
        lambda go, _: [go[:-1] + bytes([go[-1] ^ 1])],
    ],
    ids=["again", "left out", "exchanged", "another tag"],
)
def test_a_frame_that_is_not_the_one_that_is_due_is_refused(select: Any) -> None:  # noqa: ANN401
    """Though its tag is genuine: it counts the frames."""
    decoder = Decoder(ToRank, authenticator=Authenticator(KEY))
    with pytest.raises(GarbledError, match="failed its check"):
        decoder.feed(b"".join(select(*authentic(Release("go"), Release("exit")))))


@pytest.mark.parametrize("at", [0, 7, 20, 50, 90, 130])
def test_a_frame_with_a_byte_changed_is_refused(at: int) -> None:
    """In its lengths, its message or a tag; nobody waits for as much as a changed length says."""
    [frame] = authentic(Release("go"))
    changed = bytearray(frame)
    changed[at] ^= 1
    decoder = Decoder(ToRank, authenticator=Authenticator(KEY))
    with pytest.raises(GarbledError, match="failed its check"):
        decoder.feed(bytes(changed))


def test_nothing_in_a_frame_is_read_before_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stranger sends must not even reach the JSON parser."""
    monkeypatch.setattr(frames.json, "loads", lambda _: pytest.fail("it was parsed"))
    decoder = Decoder(ToRank, authenticator=Authenticator(KEY))
    with pytest.raises(GarbledError):
        decoder.feed(authentic(Release("go"))[0][:40] + b"{}" * 100)
