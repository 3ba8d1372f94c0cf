"""Worlds whose ranks are hosts: the same tests, the same verdicts, and who is where."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from runs import await_that, server_of, start_pytest

NETNS = ("--multihost-hosts", "netns")


pytestmark = pytest.mark.usefixtures("netns_hosts")


def hosts_of(verdict: Mapping[str, Any]) -> list[str]:
    """Return the host of each rank."""
    return [each["host"] for each in verdict["rank_results"]]


WHERE = """
import os, socket, urllib.request, pytest

def me():
    own = socket.gethostname()
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    return own, socket.gethostbyname(own), *(os.environ[name] for name in names)

@pytest.mark.multihost(ranks=3)
def test_asked_for_by_the_option(world):
    assert world.host == socket.gethostname()
    found = world.gather(me())
    assert found[2] == ("host-2", "10.77.0.3", "2", "0", "1", "2", "10.77.0.1")
    assert len({each[1] for each in found}) == 3

@pytest.mark.multihost(ranks=3, hosts="netns:2")
def test_two_on_each(world):
    found = world.gather(me())
    assert [each[0] for each in found] == ["host-0", "host-0", "host-1"]
    assert found[1][3:5] == ("1", "2")
    assert found[2][3:5] == ("0", "1")

@pytest.mark.multihost(ranks=2, hosts="one")
def test_marker_keeps_it_on_the_machine(world):
    assert world.host == "localhost"
    assert not socket.gethostname().startswith("host-")

@pytest.mark.multihost(ranks=2)
def test_rendezvous_port_is_held_for_whoever_initialises_itself(world):
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if world.is_primary:
        with socket.create_server(place) as server:
            world.barrier("listening")
            stream, _ = server.accept()
            assert stream.recv(5) == b"hello"
    else:
        world.barrier("listening")
        socket.create_connection(place).sendall(b"hello")

@pytest.mark.multihost(ranks=2)
def test_files_and_directories_are_shared(world, shared_tmp_path, tmp_path):
    (shared_tmp_path / str(world.rank)).touch()
    world.barrier()
    assert len(list(shared_tmp_path.iterdir())) == 2
    assert os.getcwd() == os.path.dirname(os.path.abspath(__file__))
"""


@pytest.mark.smoke
def test_a_rank_is_where_it_was_asked_to_be(run_worlds: Callable[..., Any]) -> None:
    """Marker over option; name, address and place agree; the verdict names the hosts."""
    worlds = run_worlds(WHERE, *NETNS)
    worlds.run.assert_outcomes(passed=5)
    option, pairs, one = list(worlds.verdicts.values())[:3]
    assert hosts_of(option) == ["host-0", "host-1", "host-2"]
    assert hosts_of(pairs) == ["host-0", "host-0", "host-1"]
    assert hosts_of(one) == ["localhost", "localhost"]


@pytest.mark.parametrize("launch", ["server", "spawn"])
def test_every_way_of_launching_has_hosts(run_worlds: Callable[..., Any], launch: str) -> None:
    """A rank that becomes another interpreter stays where it is."""
    source = """
    import socket, pytest

    @pytest.mark.multihost(ranks=2, hosts="netns")
    def test_it(world):
        assert world.gather(socket.gethostname()) == ["host-0", "host-1"]
    """
    worlds = run_worlds(source, f"--multihost-launch={launch}")
    worlds.run.assert_outcomes(passed=1)


def test_where_the_kernel_refuses_the_test_is_skipped_with_what_helps(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside of a user namespace that may have no network namespaces; other tests run."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.multihost(ranks=2, hosts="netns")
        def test_hosts(world):
            pass

        @pytest.mark.multihost(ranks=2)
        def test_one(world):
            world.barrier()
        """
    )
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare, of util-linux")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    program = f"{sys.executable} -m pytest -p multihost_hangs -rs"
    forbid = "echo 0 > /proc/sys/user/max_net_namespaces"
    result = pytester.run("unshare", "-Ur", "sh", "-c", f"{forbid} && exec {program}")
    result.assert_outcomes(passed=1, skipped=1)
    text = " ".join(result.stdout.str().split())
    assert "hosts cannot be made from namespaces here" in text
    assert "There is a limit: see /proc/sys/user/max_" in text


HANGS = """
import time, pytest

@pytest.mark.multihost(ranks=3, backend="gloo", timeout=60)
@pytest.mark.multihost_expect("straggler", culprits=[1], waiting=[0, 2])
def test_straggler(world):
    import torch, torch.distributed as dist
    if world.rank == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(3))

@pytest.mark.multihost(ranks=3, backend="gloo", timeout=60)
@pytest.mark.multihost_expect("raised", culprits=[2], waiting=[0, 1])
def test_raised(world):
    import torch, torch.distributed as dist
    if world.rank == 2:
        raise ValueError("no such step")
    dist.all_reduce(torch.ones(3))

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=60)
@pytest.mark.multihost_expect("deadlock")
def test_deadlock(world):
    import torch, torch.distributed as dist
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    mine = (first, second) if world.is_primary else (second, first)
    for group in mine:
        dist.all_reduce(torch.ones(3), group=group)

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=8)
@pytest.mark.multihost_expect("livelock", culprits=[1])
def test_polls_what_is_outside(world):
    import torch, torch.distributed as dist
    while world.rank == 1:
        time.sleep(0.01)
    dist.all_reduce(torch.ones(3))

@pytest.mark.multihost(ranks=3, backend="jax", timeout=25)  # XLA gives up after 30 s
@pytest.mark.multihost_expect("straggler", culprits=[2], waiting=[0, 1])
def test_barrier(world):
    from jax.experimental import multihost_utils
    if world.rank == 2:
        time.sleep(600)
    multihost_utils.sync_global_devices("all here")

@pytest.mark.multihost(ranks=2, backend="jax", timeout=25)  # XLA gives up after 30 s
@pytest.mark.multihost_expect("straggler", culprits=[0], waiting=[1])
def test_jitted_sum(world):
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    step = jax.jit(lambda x: x.sum(), in_shardings=split, out_shardings=whole)
    x = jax.make_array_from_callback((2,), split, lambda _: np.ones(1, np.float32))
    assert float(step(x).block_until_ready()) == 2
    if world.is_primary:
        time.sleep(600)
    step(x).block_until_ready()
"""

BY = {
    "test_straggler": "proof",
    "test_raised": "raise",
    "test_deadlock": "proof",
    "test_polls_what_is_outside": "deadline",
    "test_barrier": "proof",
    "test_jitted_sum": "proof",
}


def test_hangs_on_hosts_are_told_as_on_one(run_worlds: Callable[..., Any]) -> None:
    """By proof where they would be: sockets that lead to other hosts lead to ranks."""
    worlds = run_worlds(HANGS, *NETNS)
    worlds.run.assert_outcomes(passed=len(BY))
    by = {name: each["diagnosis"]["detected_by"] for name, each in worlds.verdicts.items()}
    assert by == BY
    assert hosts_of(worlds.verdicts["test_straggler"]) == ["host-0", "host-1", "host-2"]


def test_the_page_says_how_many_hosts_there_were(run_worlds: Callable[..., Any]) -> None:
    """And each host's rank is told as a rank."""
    source = """
    import pytest

    @pytest.mark.multihost(ranks=3, hosts="netns:2")
    def test_it(world):
        assert world.rank != 2, world.host
    """
    worlds = run_worlds(source)
    assert "world of 3 ranks on 2 hosts, none" in worlds.stdout
    assert "AssertionError: host-1" in worlds.stdout


# What is left


KILLED = """
import os, pathlib, pytest, time

@pytest.mark.multihost(ranks=3, hosts="netns", timeout=60)
def test_it(world):
    pathlib.Path(f"rank-{world.rank}").write_text(os.readlink("/proc/self/ns/net"))
    time.sleep(600)
"""


def holders(spaces: set[str]) -> list[int]:
    """Return the processes that are in one of some network namespaces, or hold one open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            held = {os.readlink(each) for each in (process / "fd").iterdir()}
            if spaces & {os.readlink(process / "ns/net"), *held}:
                found.append(int(process.name))
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run pytest on a world that stays until it is ended."""
    started = start_pytest(tmp_path, KILLED)
    yield started
    started.kill()
    started.communicate()


@pytest.mark.parametrize("victim", ["pytest", "server", "rank"])
def test_whoever_is_killed_no_namespace_is_left(
    run: subprocess.Popen[str], tmp_path: Path, victim: str
) -> None:
    """In the middle of a world: the network ends with the processes."""
    files = [tmp_path / f"rank-{rank}" for rank in range(3)]
    await_that(lambda: all(file.exists() and file.read_text() for file in files))
    spaces = {file.read_text() for file in files}
    server = server_of(run)
    assert server is not None
    ranks = [pid for pid in holders(spaces) if pid not in (run.pid, server.pid)]
    assert len(spaces) == len(ranks) == 3
    victims = {"pytest": run.pid, "server": server.pid, "rank": ranks[1]}
    os.kill(victims[victim], signal.SIGKILL)
    await_that(lambda: holders(spaces) == [])
    if victim == "rank":
        assert re.search(r"rank \d: was killed by SIGKILL", run.communicate(timeout=30)[0])
