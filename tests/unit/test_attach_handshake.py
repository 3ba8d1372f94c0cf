"""What strangers, liars and recorders get from us: nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_multihost.launch.attach import Membership, Peer, given_secret
from pytest_multihost.launch.attach.handshake import (
    VERSION,
    GreetingDecoder,
    Handshake,
    RefusedError,
    authenticated_stream,
    greeting,
    new_nonce,
)
from pytest_multihost.launch.attach.rendezvous import find_rendezvous, listen, rendezvous_path
from pytest_multihost.launch.attach.world import assign_ranks, pack, write_files
from pytest_multihost.launch.wire import Frame, FrameStream
from pytest_multihost.launch.wire.framing import encode
from pytest_multihost.model.errors import LaunchError, SettingError
from pytest_multihost.model.messages import (
    PeerHello,
    Ping,
    Pong,
    ProbeRead,
    Proof,
    RanksLost,
    ReadProbe,
)

SECRET = b"correct horse battery staple"
HANDSHAKE = Handshake(challenge="one", answer="two", rank=1, size=2)


Pair = tuple[FrameStream[Any], FrameStream[Any]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of an authenticated connection: the controller's and the agent's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield (
            authenticated_stream(ours, HANDSHAKE, SECRET, sender="controller"),
            authenticated_stream(theirs, HANDSHAKE, SECRET, sender="agent"),
        )


def test_who_knows_the_secret_can_prove_it() -> None:
    """Without sending it."""
    proof = HANDSHAKE.proof(SECRET)
    assert HANDSHAKE.proves(SECRET, proof)
    assert SECRET.hex() not in proof


@pytest.mark.parametrize(
    "other",
    [
        {"challenge": "1"},
        {"answer": "2"},
        {"rank": 0},
        {"size": 3},
    ],
)
def test_a_proof_is_good_for_one_meeting_alone(other) -> None:
    """One that was recorded is worth nothing for another challenge, rank or size."""
    assert not replace(HANDSHAKE, **other).proves(SECRET, HANDSHAKE.proof(SECRET))


@pytest.mark.parametrize("proof", ["", "0" * 64, "ü", "\udcff"])
def test_anything_else_proves_nothing(proof: str) -> None:
    """Even what UTF-8 cannot hold."""
    assert not HANDSHAKE.proves(SECRET, proof)


def test_numbers_that_are_used_once_differ() -> None:
    """And are long."""
    assert new_nonce() != new_nonce()
    assert len(new_nonce()) == 64


def test_what_one_side_has_sent_is_refused_when_it_comes_back(pair: Pair) -> None:
    """Each direction has a key of its own."""
    controller, agent = (HANDSHAKE.key(SECRET, each) for each in ("controller", "agent"))
    assert controller != agent
    one, other = pair
    one.send(Frame(Ping()))
    other.socket.send(other.socket.recv(1000))
    assert one.await_frames(time.monotonic() + 5) == []
    assert one.is_garbled


def test_a_frame_of_another_connection_is_refused() -> None:
    """Its keys are made of that connection's numbers."""
    other = replace(HANDSHAKE, challenge="another")
    assert other.key(SECRET, "agent") != HANDSHAKE.key(SECRET, "agent")


def framed(content: bytes) -> bytes:
    """Return a frame with this for a message."""
    return struct.pack("!II", len(content), 0) + content


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "does not speak our protocol"),
        (framed(b"12345"), "does not speak our protocol"),
        (framed(b"{{{"), "does not speak our protocol"),
        (framed(b"[" * 1000), "does not speak our protocol"),
        (framed(b'{"kind": "proof", "version": 2, "proof": 17}'), "does not speak our protocol"),
        (struct.pack("!II", 1 << 20, 0), "does not speak our protocol"),
        (struct.pack("!II", 10, 1 << 20), "does not speak our protocol"),
        (framed(b'{"kind": "proof", "version": 99}'), "it speaks version 99"),
    ],
)
def test_whoever_speaks_otherwise_is_told_from_us_at_once(data: bytes, words: str) -> None:
    """Before anything large is waited for."""
    with pytest.raises(RefusedError, match=words):
        GreetingDecoder(Proof).feed(data)


def test_a_greeting_is_waited_for_until_it_is_complete() -> None:
    """And nothing may follow it: what comes next carries a tag."""
    data = greeting(Proof(version=VERSION, rank=1))
    decoder = GreetingDecoder(Proof)
    assert [decoder.feed(data[at : at + 1]) for at in range(len(data) - 1)] == [None] * (
        len(data) - 1
    )
    assert decoder.feed(data[-1:]) == Proof(version=VERSION, rank=1)
    with pytest.raises(RefusedError, match="more than its greeting"):
        GreetingDecoder(Proof).feed(data + b"more")


def test_a_proof_with_a_lone_surrogate_ends_its_own_connection_alone() -> None:
    """It is JSON, and no text that could be encoded."""
    found = GreetingDecoder(Proof).feed(
        framed(b'{"kind": "proof", "version": %d, "proof": "\\udcff"}' % VERSION)
    )
    assert not HANDSHAKE.proves(SECRET, found.proof)


def test_frames_travel_both_ways(pair: Pair) -> None:
    """With what is beside them."""
    controller, agent = pair
    controller.send(Frame(Ping(), b"payload", 3))
    assert agent.await_frames(time.monotonic() + 5) == [Frame(Ping(), b"payload", 3)]
    agent.send(Frame(Pong(1.5), number=3))
    assert controller.await_frames(time.monotonic() + 5) == [Frame(Pong(1.5), number=3)]


def test_a_large_frame_does_not_keep_its_sender_waiting(pair: Pair) -> None:
    """What the other side does not take is kept until it does."""
    one, other = pair
    one.send(Frame(Ping(), bytes(4_000_000)))
    assert one.has_more_to_send
    found: list[Frame[Any]] = []
    while not found:
        one.flush()
        found = other.receive()
    assert len(found[0].payload) == 4_000_000
    assert not one.has_more_to_send


def test_a_stream_ends_at_the_first_frame_that_is_not_ours(pair: Pair) -> None:
    """And what comes after it is not even looked at."""
    one, other = pair
    one.socket.send(encode(Frame(Ping())) + bytes(32))
    one.send(Frame(Ping()))
    assert other.await_frames(time.monotonic() + 5) == []
    assert "frame" in str(other.ended)


def test_an_answer_is_found_among_what_else_has_come(pair: Pair) -> None:
    """And that is kept in its order."""
    ours, theirs = pair
    peer = Peer(1, ours, PeerHello(host="b", pid=7))
    number = peer.request(ReadProbe("/x"))
    theirs.send(Frame(RanksLost("1")))
    theirs.send(Frame(ProbeRead("yes"), number=number))
    theirs.send(Frame(RanksLost("2")))
    assert peer.answer(number, ProbeRead, within_s=5) == (ProbeRead("yes"), b"")
    assert [frame.message for frame in peer.take_arrived()] == [RanksLost("1"), RanksLost("2")]


def test_an_answer_to_another_question_ends_the_connection(pair: Pair) -> None:
    """It could not be believed any more."""
    ours, theirs = pair
    peer = Peer(1, ours, PeerHello(host="b", pid=7))
    theirs.send(Frame(Pong(1.0), number=peer.request(ReadProbe("/x"))))
    with pytest.raises(LaunchError, match="is gone") as found:
        peer.answer(1, ProbeRead, within_s=5)
    assert found.value.seen == "it answered with Pong"


@pytest.mark.parametrize("closes", [True, False])
def test_who_does_not_answer_is_named(pair: Pair, closes: bool) -> None:
    """Gone, or only silent."""
    ours, theirs = pair
    peer = Peer(3, ours, PeerHello(host="b", pid=7))
    if closes:
        theirs.close()
    with pytest.raises(LaunchError) as found:
        peer.answer(peer.request(ReadProbe("/x")), ProbeRead, within_s=0.2)
    assert found.value.happened == "rank 3's process (pid 7 on b) is gone"
    assert found.value.seen == (
        "it closed the connection" if closes else "it has not answered for 0.2 s"
    )


def test_a_child_does_not_keep_a_connection_open(pair) -> None:
    """Else nobody would see its owner end."""
    one, other = pair
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    one.close()
    assert other.await_frames(time.monotonic() + 5) == []
    assert other.ended == "it closed the connection"
    os.write(write, b"x")
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)


ALONE = "MULTIHOST_TEST_ALONE"


def run_alone(test: str) -> None:
    """Run a test in a pytest of its own, where there is no thread besides."""
    flags = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:randomly"]
    flags += ["-o", "faulthandler_timeout=0"]  # its thread takes signals until it has blocked them
    variables = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, f"{__file__}::{test}"],
        env={**variables, ALONE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


def test_a_signal_in_the_middle_of_a_frame_sends_nothing_twice(pair) -> None:
    """Ctrl-C raises anywhere; what was sent is known to have been, and what was not is kept."""
    if len(os.listdir("/proc/self/task")) > 1 and ALONE not in os.environ:
        run_alone("test_a_signal_in_the_middle_of_a_frame_sends_nothing_twice")
        return
    assert len(os.listdir("/proc/self/task")) == 1
    one, other = pair
    interrupted = 0
    is_counting = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if is_counting:
            return
        while frame is not None and not frame.f_code.co_filename.endswith("wire/stream.py"):
            frame = frame.f_back
        if frame is not None:
            interrupted += 1
            raise KeyboardInterrupt

    sent = found = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for _ in range(2000):
            with contextlib.suppress(KeyboardInterrupt):
                one.send(Frame(Ping(), bytes(500)))
                sent += 1
            is_counting = True
            found += len(other.receive())
            is_counting = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    one.drain(time.monotonic() + 5)
    found += len(other.receive())
    assert other.ended is None
    assert interrupted > 0
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert 2000 >= found >= sent


# The secret, and where it lies


def membership(**changes: object) -> Membership:
    """Return rank 0's membership in a run on this machine."""
    about = {"rank": 0, "size": 2, "source": "test", "job": "1", "is_one_machine": True}
    return Membership(**{**about, **changes})


def test_rank_0_leaves_a_letter_that_only_its_user_can_read(tmp_path: Path) -> None:
    """With a new secret and where it listens; the others find both."""
    rendezvous_file = rendezvous_path(tmp_path / "new", membership())
    stream, secret = listen(membership(), None, rendezvous_file)
    point = find_rendezvous(membership(rank=1), None, rendezvous_file)
    assert point is not None
    assert point.secret == secret
    assert point.addresses == (stream.getsockname(),)
    assert rendezvous_file.stat().st_mode & 0o077 == 0
    stream.close()


def test_a_letter_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    """Or read: its secret is none."""
    rendezvous_file = rendezvous_path(tmp_path, membership())
    listen(membership(), None, rendezvous_file)[0].close()
    rendezvous_file.chmod(0o644)
    with pytest.raises(SettingError, match="others than its user may read or write it"):
        find_rendezvous(membership(rank=1), None, rendezvous_file)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"secret": "zz"}', '{"addresses": []}'])
def test_a_letter_that_makes_no_sense_is_waited_out(tmp_path: Path, text: str) -> None:
    """A run that was killed may have left it; rank 0 writes a new one."""
    rendezvous_file = rendezvous_path(tmp_path, membership())
    rendezvous_file.touch(0o600)
    rendezvous_file.write_text(text)
    assert find_rendezvous(membership(rank=1), None, rendezvous_file) is None


def test_runs_of_different_names_do_not_meet(tmp_path: Path) -> None:
    """Each has a rendezvous file of its own."""
    assert rendezvous_path(tmp_path, membership()) != rendezvous_path(tmp_path, membership(job="2"))


def test_a_secret_is_taken_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    """Never a short one, nor one that others can read."""
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("0123456789abcdef\n")
    assert given_secret({"PYTEST_MULTIHOST_SECRET": "0123456789abcdef"}) == b"0123456789abcdef"
    assert given_secret({"PYTEST_MULTIHOST_SECRET_FILE": str(file)}) == b"0123456789abcdef"
    assert given_secret({}) is None
    with pytest.raises(SettingError, match="shorter than 16"):
        given_secret({"PYTEST_MULTIHOST_SECRET": "hunter2"})
    file.chmod(0o640)
    with pytest.raises(SettingError, match="chmod 600"):
        given_secret({"PYTEST_MULTIHOST_SECRET_FILE": str(file)})
    with pytest.raises(SettingError, match="cannot be read"):
        given_secret({"PYTEST_MULTIHOST_SECRET_FILE": str(tmp_path / "none")})


def test_a_secret_without_an_address_is_not_enough(tmp_path: Path) -> None:
    """Open MPI does not tell where rank 0 is."""
    with pytest.raises(SettingError, match="does not tell where rank 0 is"):
        listen(membership(), SECRET, tmp_path / "file")


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    """With the way out."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    with pytest.raises(LaunchError, match="cannot listen") as found:
        listen(membership(host="127.0.0.1", port=port), SECRET, tmp_path / "file")
    assert f"127.0.0.1:{port}: Address already in use" in found.value.seen
    taken.close()


# Who starts which ranks


@pytest.mark.parametrize(
    ("size", "processes", "shares"),
    [
        (2, 2, {0: (0,), 1: (1,)}),
        (1, 3, {0: (0,)}),
        (4, 2, {0: (0, 1), 1: (2, 3)}),
        (5, 3, {0: (0, 1), 1: (2, 3), 2: (4,)}),
    ],
)
def test_ranks_are_shared_out_in_rows(size, processes, shares) -> None:
    """Rank 0 always with the controller, which holds the world's ports."""
    assert assign_ranks(size, processes) == shares


def test_files_travel_in_a_frame(tmp_path: Path) -> None:
    """Those that are there, by their bare names: nobody writes outside of the directory."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    target.mkdir()
    (source / "rank-1.log").write_bytes(b"\xff\x00log")
    (source / "rank-1.stacks").write_bytes(b"")
    names = ("rank-1.log", "rank-1.stacks", "rank-1.none")
    sizes, payload = pack(source / name for name in names)
    write_files(sizes, payload, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        "rank-1.log": b"\xff\x00log",
        "rank-1.stacks": b"",
    }
    write_files({"../x": 3}, payload, target)
    assert not (tmp_path / "x").exists()
