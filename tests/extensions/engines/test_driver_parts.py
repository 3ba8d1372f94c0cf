"""Parts of runs whose ranks an engine's nodes start."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pytest_multihost.extensions.engines.attach.world import hosts_of, shares_of
from pytest_multihost.extensions.engines.cluster.commands import begin_exec, begin_ssh
from pytest_multihost.extensions.engines.cluster.slurm import split_options
from pytest_multihost.extensions.engines.driver import line
from pytest_multihost.extensions.engines.driver.heartbeats import (
    HEARTBEAT,
    ChunkDecoder,
    encode_chunk,
)
from pytest_multihost.extensions.engines.driver.line import Duplex, carry
from pytest_multihost.extensions.engines.driver.options import parse_ray_options
from pytest_multihost.extensions.engines.driver.order import PeerOrder, encode_order, read_order
from pytest_multihost.extensions.engines.driver.orders_of_run import carried_variables
from pytest_multihost.extensions.engines.driver.start_peer import find_project
from pytest_multihost.extensions.engines.driver.versions import version_conflict
from pytest_multihost.extensions.engines.engine import StartRequest
from pytest_multihost.testing import LaunchError, SettingError

pytestmark = pytest.mark.unit

ORDER = PeerOrder(
    plugin="1.0",
    secret="ab" * 32,
    rank=1,
    size=3,
    engine="exec",
    args=("-x", "tests"),
    directory="/nowhere/project",
    landmarks=("pytest.ini",),
    environment={"LANG": "C"},
    silent_s=7.5,
)


def piped(data: bytes) -> int:
    """Return a descriptor that yields these bytes, and then ends."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def test_an_order_arrives_as_it_was_sent() -> None:
    """And what follows on the same stream is left there."""
    source = piped(encode_order(ORDER) + b"more")
    assert read_order(source, "1.0") == ORDER
    assert os.read(source, 100) == b"more"
    os.close(source)


@pytest.mark.parametrize(
    "data", [b"", b"123", b"ffffffff{}", b"hello, world", b"00000002{}", b"00000002[]"]
)
def test_anything_else_is_no_order(data: bytes) -> None:
    """Such as the input of somebody who starts the program by hand."""
    source = piped(data)
    with pytest.raises(LaunchError, match="holds no order"):
        read_order(source, "1.0")
    os.close(source)


def test_an_order_of_another_version_is_refused_with_both() -> None:
    """Whatever else its fields are."""
    source = piped(encode_order(ORDER))
    with pytest.raises(LaunchError) as error:
        read_order(source, "2.0")
    assert error.value.seen == "2.0 here, 1.0 where pytest was started."
    os.close(source)


def all_of(descriptor: int) -> bytes:
    """Return everything that can be read from a descriptor, to its end."""
    with open(descriptor, "rb") as file:
        return file.read()


def answer(connection: socket.socket) -> None:
    """Send back everything that has arrived, once the other side has ended."""
    with connection, connection.makefile("rwb") as file:
        data = file.read()
        file.write(data)


def pumped(
    connection: socket.socket, incoming: int, outgoing: int, silent_s: float = 100.0
) -> None:
    """Carry bytes between a peer and its standard input and output until the end."""
    decode = ChunkDecoder().feed
    carry([Duplex.between(connection, incoming, outgoing, decode=decode, silent_s=silent_s)])


def write_chunks(descriptor: int, data: bytes) -> None:
    """Write bytes in chunks with heartbeats between them, and close the descriptor."""
    with open(descriptor, "wb") as file:
        file.writelines(
            encode_chunk(data[start : start + 100_000]) + HEARTBEAT
            for start in range(0, len(data), 100_000)
        )


def test_a_pump_carries_all_bytes_both_ways_to_the_end() -> None:
    """More than any buffer holds; the end of one way does not cut the other."""
    ours, theirs = socket.socketpair()
    (from_driver, driver_writes), (driver_reads, to_driver) = os.pipe(), os.pipe()
    data = os.urandom(3_000_000)
    calls = [
        partial(write_chunks, driver_writes, data),
        partial(answer, ours),
        partial(pumped, theirs, from_driver, to_driver),
    ]
    threads = [threading.Thread(target=each, daemon=True) for each in calls]
    for each in threads:
        each.start()
    assert all_of(driver_reads) == data
    for each in threads:
        each.join(20)


def test_a_pump_ends_an_input_that_has_fallen_silent() -> None:
    """The pipe is open: nobody can tell a cable that is cut from a driver without words."""
    ours, theirs = socket.socketpair()
    (from_driver, driver_writes), (driver_reads, to_driver) = os.pipe(), os.pipe()
    arguments = (theirs, from_driver, to_driver, 0.3)
    pumping = threading.Thread(target=pumped, args=arguments, daemon=True)
    pumping.start()
    os.write(driver_writes, encode_chunk(b"last words"))
    with ours, ours.makefile("rb") as file:
        assert file.read() == b"last words"  # and then the end
    pumping.join(20)
    assert not pumping.is_alive()
    for each in (driver_writes, driver_reads):
        os.close(each)


def test_heartbeats_keep_an_input_open() -> None:
    """For longer than the limit, which counts from the last one."""
    ours, theirs = socket.socketpair()
    (from_driver, driver_writes), (driver_reads, to_driver) = os.pipe(), os.pipe()
    arguments = (theirs, from_driver, to_driver, 2.0)
    pumping = threading.Thread(target=pumped, args=arguments, daemon=True)
    pumping.start()
    for _ in range(30):
        os.write(driver_writes, HEARTBEAT)
        time.sleep(0.1)
    os.write(driver_writes, encode_chunk(b"still here"))
    assert ours.recv(100) == b"still here"
    os.close(driver_writes)
    assert ours.recv(100) == b""
    ours.close()
    pumping.join(20)
    os.close(driver_reads)


def test_chunks_survive_any_cut() -> None:
    """Wherever a read ends, the same bytes come out, and heartbeats carry none."""
    data = HEARTBEAT + encode_chunk(b"one") + HEARTBEAT + encode_chunk(b"and two") + HEARTBEAT
    for cut in range(len(data) + 1):
        decoder = ChunkDecoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == b"oneand two"
    decoder = ChunkDecoder()
    assert b"".join(decoder.feed(bytes([each])) for each in data) == b"oneand two"


@contextmanager
def carried(beat_s: float) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the driver's connection and a node's, between which a thread carries bytes."""
    (driver, driver_side), (node, node_side) = socket.socketpair(), socket.socketpair()
    node_side = node_side.detach()
    lines = [Duplex.between(driver_side, node_side, os.dup(node_side), encode=encode_chunk)]
    carrying = threading.Thread(target=carry, args=(lines, beat_s), daemon=True)
    carrying.start()
    with driver, node:
        yield driver, node
    carrying.join(20)
    assert not carrying.is_alive()


def test_a_node_gets_heartbeats_from_a_silent_driver() -> None:
    """Whatever the driver is doing: it need not do anything."""
    with carried(0.01) as (_, node), node.makefile("rb") as file:
        assert file.read(3 * len(HEARTBEAT)) == HEARTBEAT * 3


def test_bytes_are_carried_both_ways() -> None:
    """In chunks to the node, and as they are to the driver."""
    with carried(100.0) as (driver, node):
        driver.sendall(b"to the node")
        assert ChunkDecoder().feed(node.recv(100)) == b"to the node"
        node.sendall(b"to the driver")
        assert driver.recv(100) == b"to the driver"


@pytest.mark.parametrize("first", [0, 1])
def test_the_end_of_one_side_is_the_end_of_the_other(first: int) -> None:
    """After its last bytes."""
    with carried(100.0) as ends:
        ends[first].sendall(b"the last")
        ends[first].close()
        with ends[1 - first].makefile("rb") as file:
            assert file.read().endswith(b"the last")


def test_the_last_bytes_to_a_node_arrive_although_nobody_reads_what_it_sends() -> None:
    """The order to end may be among them, and an event of a rank on its way to nobody."""
    data = bytes(600_000)  # more than a connection holds
    with carried(100.0) as (driver, node):
        driver.sendall(data)
        driver.close()
        node.sendall(b"an event")
        time.sleep(0.2)  # its bytes cannot be written by then
        with node.makefile("rb") as file:
            assert ChunkDecoder().feed(file.read()) == data


def test_a_pump_gives_up_bytes_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those to a driver behind a cable that is cut; an open pipe has no end."""
    monkeypatch.setattr(line, "STUCK_S", 0.1)
    ours, theirs = socket.socketpair()
    (from_driver, driver_writes), (driver_reads, to_driver) = os.pipe(), os.pipe()
    pumping = threading.Thread(target=pumped, args=(theirs, from_driver, to_driver), daemon=True)
    pumping.start()
    with ours:
        ours.sendall(bytes(300_000))  # more than a pipe holds
    pumping.join(20)
    assert not pumping.is_alive()
    for each in (driver_writes, driver_reads):
        os.close(each)


def test_a_pump_waits_for_a_reader_while_the_peer_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow it is."""
    monkeypatch.setattr(line, "STUCK_S", 0.1)
    ours, theirs = socket.socketpair()
    (from_driver, driver_writes), (driver_reads, to_driver) = os.pipe(), os.pipe()
    pumping = threading.Thread(target=pumped, args=(theirs, from_driver, to_driver), daemon=True)
    pumping.start()
    ours.sendall(bytes(100_000))
    pumping.join(0.5)
    assert pumping.is_alive()
    assert len(os.read(driver_reads, 100_000)) > 0
    ours.close()
    os.close(driver_writes)
    assert all_of(driver_reads)
    pumping.join(20)


def test_the_project_is_found_in_the_drivers_place_first(tmp_path: Path) -> None:
    """Elsewhere only if it is not there, or if the engine has made a copy."""
    place, copy = tmp_path / "place", tmp_path / "copy"
    order = PeerOrder(**{**{n: getattr(ORDER, n) for n in _FIELDS}, "directory": str(place)})
    for each in (place, copy):
        each.mkdir()
    with pytest.raises(LaunchError, match="does not have the project") as error:
        find_project(order, copy)
    assert error.value.seen.splitlines()[0] == f"{place}: it has no pytest.ini"
    (copy / "pytest.ini").touch()
    assert find_project(order, copy) == copy
    (place / "pytest.ini").touch()
    assert find_project(order, copy) == place
    assert find_project(order, copy, is_copy=True) == copy


_FIELDS = tuple(PeerOrder.__dataclass_fields__)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"torch": "2.1"}, {"torch": "2.2"}, "torch is 2.1 in a, and 2.2 in b."),
        ({"Python": "3.11"}, {"Python": "3.12"}, "Python is 3.11 in a, and 3.12 in b."),
        ({"torch": "2.1"}, {"torch": "2.1"}, ""),
        ({}, {"torch": "2.1"}, ""),  # a driver without torch
    ],
)
def test_versions_are_compared_where_both_have_some(
    first: dict[str, str], second: dict[str, str], words: str
) -> None:
    """A process without a runtime is no conflict."""
    assert version_conflict([("a", first), ("b", second)]) == words


def test_nodes_are_compared_with_each_other_if_the_driver_has_no_runtime() -> None:
    """They run the ranks."""
    named = [("laptop", {}), ("n1", {"jax": "1"}), ("n2", {"jax": "2"})]
    assert version_conflict(named) == "jax is 1 in n1, and 2 in n2."


def test_peers_get_neither_secrets_nor_the_launchers_numbers() -> None:
    """But what changes how tests are collected and run."""
    given = {
        "PYTEST_ADDOPTS": "-x",
        "PYTEST_MULTIHOST_TIMEOUT": "7",
        "PYTEST_MULTIHOST_SECRET": "x",
        "PYTEST_MULTIHOST_RANK": "0",
        "PYTEST_XDIST_WORKER": "gw0",
        "JAX_PLATFORMS": "cpu",
        "JAX_PROCESS_ID": "0",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/root",
    }
    kept = {"PYTEST_ADDOPTS", "PYTEST_MULTIHOST_TIMEOUT", "JAX_PLATFORMS"}
    assert set(carried_variables(given)) == kept


@pytest.mark.parametrize("text", ["gpu", "'", "gpu --time=1"])
def test_options_of_slurm_must_be_options(text: str) -> None:
    """A word would be salloc's command."""
    with pytest.raises(SettingError):
        split_options(text)


def test_options_of_slurm_are_split_as_in_a_shell() -> None:
    """Quotation marks keep words together."""
    assert split_options("-p gpu --comment='a b'") == ["-p", "gpu", "--comment=a b"]
    assert split_options("") == []


@pytest.mark.parametrize("text", ["", "env 'x", "env x"])
def test_a_command_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """Nothing is started."""
    with pytest.raises(SettingError):
        begin_exec(text, StartRequest(python=None, code="", count=None, folder=tmp_path))


@pytest.mark.parametrize("text", ["", "a,", "-oProxyCommand=x"])
def test_hosts_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    """An option of ssh is no host."""
    with pytest.raises(SettingError):
        begin_ssh(text, StartRequest(python=None, code="", count=None, folder=tmp_path))


def test_options_of_ray_are_an_object_of_objects() -> None:
    """With two keys."""
    assert parse_ray_options('{"resources": {"CPU": 2}}') == {"resources": {"CPU": 2}}
    with pytest.raises(SettingError, match="must be an object with"):
        parse_ray_options('{"cpu": 2}')


def test_no_peers_have_no_ranks() -> None:
    """Before the nodes are there."""
    assert shares_of(0, []) == []
    assert hosts_of(0, []) == ()


@pytest.mark.parametrize(
    "name",
    [
        *("CI_JOB_TOKEN", "CI_REGISTRY_PASSWORD", "CI_REPOSITORY_URL", "CIRCLE_TOKEN", "CIVIC_KEY"),
        *(
            "PYTEST_S3_SECRET_KEY",
            "TORCH_HUB_TOKEN",
            "JAX_API_KEY",
            "LANGSMITH_API_KEY",
            "LC_TOKEN",
        ),
        *("PYTEST_MULTIHOST_SECRET", "PYTEST_MULTIHOST_SECRET_FILE", "TZ_SECRET", "XLA_TOKEN"),
    ],
)
def test_a_variable_that_begins_as_a_harmless_one_stays(name: str) -> None:
    """Names count as a whole."""
    assert carried_variables({name: "x"}) == {}


def test_variables_that_change_how_tests_run_are_carried() -> None:
    """Also those of options, and those that --multihost-carry names."""
    names = ("CI", "TZ", "LC_ALL", "NCCL_DEBUG", "PYTEST_ADDOPTS", "PYTEST_MULTIHOST_TIMEOUT")
    given = dict.fromkeys((*names, "OWN", "PYTEST_MULTIHOST_SEATS", "OTHER"), "x")
    named = ("OWN", "PYTEST_MULTIHOST_SEATS")
    assert set(carried_variables(given, named)) == {*names, *named}
    assert carried_variables({"PYTEST_MULTIHOST_SECRET": "x"}, ["PYTEST_MULTIHOST_SECRET"]) == {}
