"""A process that does not know the secret, or sends recorded messages, is not admitted."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_multihost.core.launch import FrameStream, Membership, WireFrame, encode
from pytest_multihost.extensions.engines.attach import Listener, Peer, Rendezvous
from pytest_multihost.extensions.engines.attach.archives import pack, write_files
from pytest_multihost.extensions.engines.attach.rendezvous import (
    CHALLENGE,
    MAGIC,
    PROOF,
    Greeting,
    Handshake,
    RefusedError,
    new_nonce,
)
from pytest_multihost.extensions.engines.attach.world import shares_of
from pytest_multihost.testing import (
    LaunchError,
    PeerHello,
    Ping,
    Pong,
    ProbeRead,
    RanksLost,
    ReadProbe,
    SettingError,
    UnreadableError,
)

pytestmark = pytest.mark.processes

SECRET = b"correct horse battery staple"
HANDSHAKE = Handshake(b"1" * 32, b"2" * 32, rank=1, size=2)


Pair = tuple[FrameStream[Any], FrameStream[Any]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of an authenticated connection: the controller's and the peer's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield (
            HANDSHAKE.stream(ours, SECRET, role="controller"),
            HANDSHAKE.stream(theirs, SECRET, role="peer"),
        )


def test_a_process_that_knows_the_secret_can_prove_it() -> None:
    """Without sending it."""
    proof = HANDSHAKE.proof(SECRET)
    assert HANDSHAKE.proves(SECRET, proof)
    assert SECRET not in proof


@pytest.mark.parametrize(
    "other",
    [
        {"challenge": b"3" * 32},
        {"answer": b"3" * 32},
        {"rank": 0},
        {"size": 3},
    ],
)
def test_a_proof_is_good_for_one_meeting_alone(other) -> None:
    """One that was recorded is worth nothing for another challenge, rank or size."""
    assert not replace(HANDSHAKE, **other).proves(SECRET, HANDSHAKE.proof(SECRET))


@pytest.mark.parametrize("proof", [b"", bytes(32), b"\xff" * 32, SECRET])
def test_anything_else_proves_nothing(proof: bytes) -> None:
    """Of whatever length."""
    assert not HANDSHAKE.proves(SECRET, proof)


def test_numbers_that_are_used_once_differ() -> None:
    """And are long."""
    assert new_nonce() != new_nonce()
    assert len(new_nonce()) == 32


def test_a_frame_that_is_sent_back_is_refused(pair: Pair) -> None:
    """Each direction has a key of its own."""
    one, other = pair
    one.send(WireFrame(Ping()))
    other.socket.send(other.socket.recv(1000))
    assert one.await_frames(time.monotonic() + 5) == []
    assert one.is_garbled


def test_a_frame_of_another_connection_is_refused(pair: Pair) -> None:
    """Its keys are made of that connection's numbers."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        other = replace(HANDSHAKE, challenge=b"3" * 32).stream(ours, SECRET, role="controller")
        other.send(WireFrame(Ping()))
        pair[0].socket.send(theirs.recv(1000))
    assert pair[1].await_frames(time.monotonic() + 5) == []
    assert pair[1].is_garbled


def received(data: bytes, layout: struct.Struct = PROOF) -> list[tuple[Any, ...] | None]:
    """Return what is received of a greeting that arrives byte by byte."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        greeting, found = Greeting(layout), []
        for at in range(len(data)):
            theirs.send(data[at : at + 1])
            found.append(greeting.receive(ours))
        return found


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        bytes(8),
        b"[" * 1000,
        b"\xed\xb3\xbf",
        MAGIC[:-3] + b"99\n",
        MAGIC.replace(b"-", b"_"),
    ],
)
def test_another_protocol_is_recognised_at_once(data: bytes) -> None:
    """The process does not wait for more bytes."""
    with pytest.raises(
        RefusedError, match="does not speak the protocol of pytest-multihost-hangs, version 3"
    ):
        received(data)


@pytest.mark.parametrize("layout", [CHALLENGE, PROOF])
def test_a_greeting_is_waited_for_until_it_is_complete(layout: struct.Struct) -> None:
    """And is as long as it is for everybody."""
    data = MAGIC + os.urandom(layout.size - len(MAGIC))
    found = received(data, layout)
    assert found == [None] * (layout.size - 1) + [layout.unpack(data)[1:]]


def test_no_byte_after_a_greeting_is_read() -> None:
    """The next bytes are a frame with a tag."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(CHALLENGE.pack(MAGIC, bytes(32)) + b"more")
        assert Greeting(CHALLENGE).receive(ours) == (bytes(32),)
        assert ours.recv(100) == b"more"


def test_frames_travel_both_ways(pair: Pair) -> None:
    """With what is beside them."""
    controller, agent = pair
    controller.send(WireFrame(Ping(), b"payload", 3))
    assert agent.await_frames(time.monotonic() + 5) == [WireFrame(Ping(), b"payload", 3)]
    agent.send(WireFrame(Pong(1.5), number=3))
    assert controller.await_frames(time.monotonic() + 5) == [WireFrame(Pong(1.5), number=3)]


def test_a_large_frame_does_not_keep_its_sender_waiting(pair: Pair) -> None:
    """What the other side does not take is kept until it does."""
    one, other = pair
    one.send(WireFrame(Ping(), bytes(4_000_000)))
    assert one.has_more_to_send
    found: list[WireFrame[Any]] = []
    while not found:
        one.flush()
        found = other.receive()
    assert len(found[0].payload) == 4_000_000
    assert not one.has_more_to_send


def test_a_stream_ends_at_the_first_frame_that_is_not_ours(pair: Pair) -> None:
    """Later frames are not read."""
    one, other = pair
    one.socket.send(encode(WireFrame(Ping())) + bytes(32))
    one.send(WireFrame(Ping()))
    assert other.await_frames(time.monotonic() + 5) == []
    assert "failed its check" in str(other.ended)


def test_an_answer_is_found_among_other_frames(pair: Pair) -> None:
    """The others are kept, in their order."""
    ours, theirs = pair
    peer = Peer(1, ours, PeerHello(host="b", pid=7))
    answer = peer.request(ReadProbe("/x"), ProbeRead, within_s=5)
    theirs.send(WireFrame(RanksLost("1")))
    theirs.send(WireFrame(ProbeRead("yes"), number=1))
    theirs.send(WireFrame(RanksLost("2")))
    assert answer() == (ProbeRead("yes"), b"")
    assert [frame.message for frame in peer.take_arrived()] == [RanksLost("1"), RanksLost("2")]


def test_an_answer_to_another_question_ends_the_connection(pair: Pair) -> None:
    """It could not be believed any more."""
    ours, theirs = pair
    peer = Peer(1, ours, PeerHello(host="b", pid=7))
    answer = peer.request(ReadProbe("/x"), ProbeRead, within_s=5)
    theirs.send(WireFrame(Pong(1.0), number=1))
    with pytest.raises(LaunchError, match="is gone") as found:
        answer()
    assert found.value.seen == "it answered with Pong"


@pytest.mark.parametrize("closes", [True, False])
def test_a_peer_that_does_not_answer_is_named(pair: Pair, closes: bool) -> None:
    """It has gone, or is only silent."""
    ours, theirs = pair
    peer = Peer(3, ours, PeerHello(host="b", pid=7))
    if closes:
        theirs.close()
    with pytest.raises(LaunchError) as found:
        peer.request(ReadProbe("/x"), ProbeRead, within_s=0.2)()
    assert found.value.happened == "rank 3's process (pid 7 on b) is gone"
    assert found.value.seen == (
        "it closed the connection" if closes else "it has not answered for 0.2 s"
    )


def test_a_child_does_not_keep_a_connection_open(pair) -> None:
    """Otherwise no process would notice the end of its owner."""
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
        while frame is not None and not frame.f_code.co_filename.endswith("launch/wire.py"):
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
                one.send(WireFrame(Ping(), bytes(500)))
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


def rendezvous(folder: Path, secret: bytes | None = None, **changes: object) -> Rendezvous:
    """Return the rendezvous of a run on this machine; without a secret there will be a file."""
    return Rendezvous(membership(**changes), secret, folder / "attach-test.json")


def test_rank_0_writes_a_rendezvous_file_that_only_its_user_can_read(tmp_path: Path) -> None:
    """It has a new secret and the address of rank 0; the others find both."""
    point = rendezvous(tmp_path / "new")
    stream, secret = point.listen()
    assert rendezvous(tmp_path / "new", rank=1).find() == ((stream.getsockname(),), secret)
    assert point.file.stat().st_mode & 0o077 == 0
    stream.close()


def as_readable(file: Path) -> None:
    """Let others read a file."""
    file.chmod(0o644)


def as_writable(file: Path) -> None:
    """Let others write a file."""
    file.chmod(0o602)


def as_foreign(file: Path) -> None:
    """Give a file to another user."""
    if os.getuid():
        pytest.skip("only root can give a file away")
    os.chown(file, 12345, -1)


def as_link(file: Path) -> None:
    """Replace a file by a symbolic link to it."""
    target = file.rename(file.with_name("elsewhere"))
    file.symlink_to(target)


def as_fifo(file: Path) -> None:
    """Replace a file by a FIFO: who opened it would wait."""
    file.unlink()
    os.mkfifo(file, 0o600)


FOREIGN = pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (as_readable, "users other than its owner may read or write it"),
        (as_writable, "users other than its owner may read or write it"),
        (as_foreign, "it belongs to another user, 12345"),
        (as_link, "it is a symbolic link"),
        (as_fifo, "it is not a file"),
    ],
    ids=["readable", "writable", "foreign", "link", "fifo"],
)


@FOREIGN
def test_a_rendezvous_file_that_others_could_have_written_is_refused_by_both_sides(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    """Or read: its secret is none. Rank 0 must not wait for processes that have refused it."""
    point = rendezvous(tmp_path)
    point.listen()[0].close()
    spoil(point.file)
    with pytest.raises(SettingError, match=words):
        point.find()
    with pytest.raises(SettingError, match=words):
        point.listen()


@FOREIGN
def test_a_rendezvous_file_that_another_user_replaces_ends_the_wait_for_peers(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    """At once: they will not come."""
    point = rendezvous(tmp_path)
    listener = Listener(point)
    spoil(point.file)
    with pytest.raises(SettingError, match=words):
        listener.await_peers(60, remedy="")
    listener.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"secret": "zz"}', '{"addresses": []}'])
def test_a_rendezvous_file_that_makes_no_sense_is_ignored(tmp_path: Path, text: str) -> None:
    """A run that was killed may have left it; rank 0 writes a new one."""
    point = rendezvous(tmp_path)
    point.file.touch(0o600)
    point.file.write_text(text)
    assert point.find() is None


def read(folder: Path, job: str = "1", **variables: str) -> Rendezvous:
    """Return the rendezvous of a process with these variables."""
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "TORCHELASTIC_RUN_ID": job}
    return Rendezvous.read({**place, **variables}, folder)


def test_runs_of_different_names_do_not_meet(tmp_path: Path) -> None:
    """Each has a rendezvous file of its own."""
    assert read(tmp_path).file != read(tmp_path, job="2").file


def test_a_secret_is_taken_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    """Never a short one, nor one that others can read."""
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("0123456789abcdef\n")
    given = read(tmp_path, PYTEST_MULTIHOST_SECRET="0123456789abcdef")  # noqa: S106 - guards nothing
    assert given.secret == b"0123456789abcdef"
    assert read(tmp_path, PYTEST_MULTIHOST_SECRET_FILE=str(file)).secret == b"0123456789abcdef"
    assert read(tmp_path).secret is None
    with pytest.raises(SettingError, match="shorter than 16"):
        read(tmp_path, PYTEST_MULTIHOST_SECRET="hunter2")  # noqa: S106 - guards nothing
    file.chmod(0o640)
    with pytest.raises(SettingError, match="chmod 600"):
        read(tmp_path, PYTEST_MULTIHOST_SECRET_FILE=str(file))
    with pytest.raises(SettingError, match="cannot be read"):
        read(tmp_path, PYTEST_MULTIHOST_SECRET_FILE=str(tmp_path / "none"))


def test_a_secret_without_an_address_is_not_enough(tmp_path: Path) -> None:
    """Open MPI does not give the address of rank 0."""
    with pytest.raises(SettingError, match="does not give the address of rank 0"):
        rendezvous(tmp_path, SECRET).listen()


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    """With the way out."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    with pytest.raises(LaunchError, match="cannot listen") as found:
        rendezvous(tmp_path, SECRET, host="127.0.0.1", port=port).listen()
    assert f"127.0.0.1:{port}: Address already in use" in found.value.seen
    taken.close()


# Who starts which ranks


@pytest.mark.parametrize(
    ("size", "processes", "shares"),
    [
        (2, 2, {0: [0], 1: [1]}),
        (1, 3, {0: [0]}),
        (4, 2, {0: [0, 1], 1: [2, 3]}),
        (5, 3, {0: [0, 1], 1: [2, 3], 2: [4]}),
    ],
)
def test_ranks_are_shared_out_in_rows(size, processes, shares) -> None:
    """Rank 0 always with the controller, which holds the world's ports."""
    assert dict(shares_of(size, range(processes))) == shares


def test_files_travel_in_a_frame(tmp_path: Path) -> None:
    """Those that are there, by their bare names: nobody writes outside of the directory."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    target.mkdir()
    (source / "rank-1.log").write_bytes(b"\xff\x00log")
    (source / "rank-1.stacks").write_bytes(b"")
    names = ("rank-1.log", "rank-1.stacks", "rank-1.none")
    write_files(pack(source / name for name in names), target, [1])
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        "rank-1.log": b"\xff\x00log",
        "rank-1.stacks": b"",
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("../x", b"")
    with pytest.raises(UnreadableError, match="it was not asked for"):
        write_files(archive.getvalue(), target, [1])
    assert not [*tmp_path.rglob("x")]
