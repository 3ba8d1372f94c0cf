from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

import pytest_multihost
from pytest_multihost import World
from pytest_multihost.fixes.ring import (
    Layout,
    Link,
    Prefill,
    Receiving,
    Ring,
    join,
    listen,
    orphans,
    prefill_count,
    split,
)

pytestmark = pytest.mark.multihost(ranks=2, backend="none", timeout=60)

ACTIVATION = 8192
CHUNK = 64
PIPELINES = (1, 2, 3, 4)


@pytest.fixture
def connect(world: World) -> Iterator[Callable[[Layout], Ring]]:
    """Make rings of all ranks; their wires stay open until every rank has come to its end."""
    made: list[Ring] = []

    def connect(layout: Layout) -> Ring:
        listener = listen()
        addresses = world.gather(listener.getsockname())
        made.append(join(listener, addresses, world.rank, layout))
        return made[-1]

    yield connect
    for ring in made:
        ring.left.close()
        ring.right.close()


def _message(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def _receive_what_was_sent(receiving: Receiving, sent: list[int]) -> None:
    """Go on until the message is complete or, as the sender is done, never will be."""
    while receiving.in_flight and not receiving.is_stranded(sent):
        receiving.step()


def _hanging(**expected: object) -> object:
    """Return the unfixed side of a test, with what the plugin must say of it."""
    return pytest.param(
        "absolute", id="unfixed", marks=pytest.mark.multihost_expect(kind="finished", **expected)
    )


FIXED = pytest.param("region", id="fixed")


@pytest.mark.parametrize(
    "prefill", [_hanging(culprits=[0], waiting=[1], match="ring receive"), FIXED]
)
def test_an_activation_over_three_wires(
    world: World, connect: Callable[[Layout], Ring], prefill: Prefill
) -> None:
    """The sender has sent everything and is done; the receiver waits for two frames more."""
    ring = connect(Layout(wires=3, prefill=prefill))
    if world.is_primary:
        ring.right.send(_message(ACTIVATION))
    else:
        with pytest_multihost.operation("ring receive", peers=[0]):
            received = ring.left.receive(ACTIVATION)
        assert received == _message(ACTIVATION)


@pytest.mark.multihost(ranks=3)
@pytest.mark.parametrize(
    "prefill", [_hanging(culprits=[0], waiting=[1, 2], match="rank 0 returned"), FIXED]
)
def test_a_pipeline_of_three_stages(
    world: World, connect: Callable[[Layout], Ring], prefill: Prefill
) -> None:
    """The last stage waits for one that itself waits for the first, which is done."""
    ring = connect(Layout(wires=2, prefill=prefill))
    received = _message(5000)
    if not world.is_primary:
        with pytest_multihost.operation("activations", peers=[world.rank - 1]):
            received = ring.left.receive(5000)
    if world.rank < world.size - 1:
        ring.right.send(received)
    assert received == _message(5000)


def _sizes(wires: int, pipeline: int) -> list[int]:
    """Return sizes around all borders: of bytes per wire, chunks and pipelines; and some others."""
    borders = [wires * CHUNK * count for count in range(pipeline + 2)]
    around = {border + step for border in borders for step in range(-wires, wires * wires + 1)}
    others = random.Random(wires * 10 + pipeline).sample(range(1, 2 * borders[-1]), 10)
    return sorted(size for size in around | {*others} if size >= 0)


def _try(world: World, link: Link, size: int) -> Receiving | None:
    """Send a message in rank 0; in rank 1 receive what comes of it, and return that.

    The next one is sent only afterwards: receives that are too many would take its frames.
    """
    receiving = None
    if world.is_primary:
        link.send(_message(size))
        world.gather(link.sent)
    else:
        receiving = link.receiving(size)
        sent, _ = world.gather(link.sent)
        _receive_what_was_sent(receiving, sent)
        assert link.taken == sent
        assert receiving.message == _message(size)
    world.barrier()
    return receiving


@pytest.mark.parametrize("prefill", ["absolute", "region"])
@pytest.mark.parametrize("wires", [1, 2, 3, 4])
def test_which_sizes_hang_is_exactly_what_is_computed(
    world: World, connect: Callable[[Layout], Ring], wires: int, prefill: Prefill
) -> None:
    """A hang is told by the state: the sender is done, the wires are empty, receives are posted.

    The bytes have all come even then. One wire never hangs, nor does any with the fix.
    """
    ring = connect(Layout(wires=wires, chunk=CHUNK, prefill=prefill))
    hangs = 0
    for pipeline in PIPELINES:
        layout = replace(ring.left.layout, pipeline=pipeline)
        ours = ring.right if world.is_primary else ring.left
        for size in _sizes(wires, pipeline):
            receiving = _try(world, Link(ours.wires, layout), size)
            if receiving is not None:
                expected = orphans(split(size, wires), CHUNK, pipeline, prefill)
                assert receiving.posted == [*expected], (size, layout)
                hangs += receiving.in_flight > 0
    if not world.is_primary:
        assert (hangs > 0) == (prefill == "absolute" and wires > 1)


@dataclass(frozen=True)
class Streamed:
    """What a receiver has of a stream of messages.

    Attributes:
        messages: Those whose receive has returned.
        is_stuck: Whether the next one's never will.
    """

    messages: list[bytes]
    is_stuck: bool


def _stream(world: World, ring: Ring, messages: list[bytes]) -> Streamed | None:
    """Send all messages before the first is received; return what comes of them in rank 1."""
    if world.is_primary:
        for message in messages:
            ring.right.send(message)
        world.gather(ring.right.sent)
        return None
    sent, _ = world.gather(ring.right.sent)
    received = []
    for message in messages:
        receiving = ring.left.receiving(len(message))
        _receive_what_was_sent(receiving, sent)
        if receiving.in_flight:
            return Streamed(received, is_stuck=True)
        received.append(bytes(receiving.message))
    return Streamed(received, is_stuck=False)


MESSAGES = [_message(ACTIVATION, seed) for seed in range(5)]


def test_in_a_stream_the_bug_spoils_the_next_message_before_it_hangs(
    world: World, connect: Callable[[Layout], Ring]
) -> None:
    """The first is right, the second holds bytes of the third, and the third never ends."""
    streamed = _stream(world, connect(Layout(wires=3, prefill="absolute")), MESSAGES)
    if streamed is not None:
        first, second = streamed.messages
        assert streamed.is_stuck
        assert first == MESSAGES[0]
        start, end = split(ACTIVATION, 3)[1]
        assert second[:start] == MESSAGES[1][:start]
        assert second[start:end] == MESSAGES[2][start:end]


@pytest.mark.claim("apply the fix for a hang that others have published")
def test_a_stream_with_the_fix(world: World, connect: Callable[[Layout], Ring]) -> None:
    """All five come as they were sent."""
    streamed = _stream(world, connect(Layout(wires=3)), MESSAGES)
    assert streamed in (None, Streamed(MESSAGES, is_stuck=False))


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_messages_go_both_ways(world: World, connect: Callable[[Layout], Ring], size: int) -> None:
    """Of two processes each is the other's left and right."""
    ring = connect(Layout(wires=4, chunk=4096, pipeline=2))
    if world.is_primary:
        ring.right.send(_message(size))
        assert ring.right.receive(size) == _message(size, 1)
    else:
        assert ring.left.receive(size) == _message(size)
        ring.left.send(_message(size, 1))


@pytest.mark.multihost(ranks=4)
def test_a_message_goes_round(world: World, connect: Callable[[Layout], Ring]) -> None:
    """Each process gets it from the left and passes it on, until it is back."""
    ring = connect(Layout(wires=3, chunk=512))
    if world.is_primary:
        ring.right.send(_message(10_000))
    message = ring.left.receive(10_000)
    if not world.is_primary:
        ring.right.send(message)
    assert message == _message(10_000)


def test_a_receive_with_a_limit_says_what_it_waits_for(
    world: World, connect: Callable[[Layout], Ring]
) -> None:
    """Nothing was sent: one receive is posted on each wire of three."""
    ring = connect(Layout(wires=3))
    if not world.is_primary:
        with pytest.raises(TimeoutError, match=r"in flight on each wire: \[1, 1, 1\]"):
            ring.left.receive(ACTIVATION, timeout_s=0.01)


def test_a_neighbour_that_leaves_ends_the_receive(
    world: World, connect: Callable[[Layout], Ring]
) -> None:
    """With an error, whatever is posted."""
    ring = connect(Layout(wires=3))
    if world.is_primary:
        with ring:
            ring.right.send(_message(1))
    else:
        with pytest.raises(ConnectionError, match="has closed wire"):
            ring.left.receive(ACTIVATION)


@pytest.mark.no_multihost
@pytest.mark.parametrize(
    ("wires", "hanging"),
    [
        (1, set()),
        (2, {1, *range(4097, 8194)}),
        (3, {1, 2, 4, *range(4097, 12291), 12292}),
        (4, {1, 2, 3, 5, 6, 9, *range(4097, 16388), 16389, 16390, 16393}),
    ],
)
def test_the_sizes_that_hang_are_those_that_hung_in_upstreams_code(
    wires: int, hanging: set[int]
) -> None:
    """Its `RingImpl`, before and after the fix, was run with a stand-in for the network cards."""
    sizes = range(20_000)
    found = {size for size in sizes if any(orphans(split(size, wires), 4096, 2, "absolute"))}
    assert found == hanging
    assert not any(any(orphans(split(size, wires), 4096, 2, "region")) for size in sizes)


@pytest.mark.no_multihost
@pytest.mark.parametrize(
    ("start", "end", "count"),
    [(0, 0, 0), (0, 1, 1), (0, 4096, 1), (0, 4097, 2), (0, 99999, 2), (8192, 8193, 1), (5, 5, 0)],
)
def test_receives_are_counted_by_the_size_of_the_region(start: int, end: int, count: int) -> None:
    """Wherever it begins; never more than the pipeline holds."""
    assert prefill_count(start, end, 4096, 2) == count
