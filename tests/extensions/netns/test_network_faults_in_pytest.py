"""Networks between hosts, cut and slowed for real: what ranks see, and what the verdict says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import await_that, start_pytest
from runtimes import require

pytestmark = pytest.mark.usefixtures("netns_hosts")
NETNS = ("--multihost-hosts", "netns")

SOCKETS = """
import socket, time, pytest
from pytest_multihost import at, faults

def stream(world):
    '''A connection between ranks 0 and 1.'''
    if world.is_primary:
        with socket.create_server(("", 7000)) as server:
            world.barrier("up")
            made, _ = server.accept()
    else:
        world.barrier("up")
        made = socket.create_connection(("host-0", 7000))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made

def datagrams(world, timeout=0.5):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("", 7001))
    made.settimeout(timeout)
    return made

def ping(world, made, count=7):
    '''How long there and back takes, seen by rank 0.'''
    took = []
    for _ in range(count):
        if world.is_primary:
            begun = time.perf_counter()
            made.sendall(b"x")
            made.recv(1)
            took.append(time.perf_counter() - begun)
        else:
            made.recv(1)
            made.sendall(b"x")
    return sorted(took)[len(took) // 2] if took else 0.0

def reached(world, made):
    '''From whom something arrives.'''
    for other in range(world.size):
        if other != world.rank:
            made.sendto(str(world.rank).encode(), (f"10.77.0.{other + 1}", 7001))
    found = set()
    try:
        while True:
            found.add(int(made.recv(10)))
    except TimeoutError:
        return found
"""

SEEN = (
    SOCKETS
    + """
@pytest.mark.multihost(ranks=2, faults=[
    faults.net_delay(rank=1, seconds=0.1, at=at.sync_point("now"))])
def test_delay(world):
    made = stream(world)
    before = ping(world, made)
    world.sync_point("now")
    world.barrier("slow")
    assert ping(world, made) - before == pytest.approx(0.1, rel=0.3) or not world.is_primary

@pytest.mark.multihost(ranks=2, faults=[
    faults.net_rate(rank=0, bytes_per_s=2_000_000, at=at.sync_point("now"))])
def test_rate(world):
    made, size = stream(world), 3_000_000
    world.sync_point("now")
    world.barrier("slow")
    begun = time.perf_counter()
    if world.is_primary:
        made.sendall(bytes(size))
        made.recv(1)
        assert size / (time.perf_counter() - begun) == pytest.approx(2_000_000, rel=0.3)
    else:
        left = size
        while left:
            left -= len(made.recv(1 << 16))
        made.sendall(b"x")

@pytest.mark.multihost(ranks=2, faults=[
    faults.net_loss(rank=0, percent=30, at=at.sync_point("now"))])
def test_loss(world):
    made, count = datagrams(world, timeout=1), 3000
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    world.sync_point("now")
    world.barrier("lossy")
    if world.is_primary:
        for index in range(count):
            made.sendto(b"x", ("host-1", 7001))
            if index % 50 == 0:
                time.sleep(0.002)
    else:
        arrived = 0
        try:
            while made.recv(10):
                arrived += 1
        except TimeoutError:
            pass
        assert 1 - arrived / count == pytest.approx(0.3, abs=0.05)

@pytest.mark.multihost(ranks=4, faults=[
    faults.partition(groups=[[0], [1, 2]], at=at.sync_point("now"))])
def test_both_ways(world):
    made = datagrams(world)
    world.sync_point("now")
    world.barrier("cut")
    assert reached(world, made) == [{3}, {2, 3}, {1, 3}, {0, 1, 2}][world.rank]

@pytest.mark.multihost(ranks=3, faults=[
    faults.partition(groups=[[1], [0]], one_way=True, at=at.sync_point("now")),
    faults.net_delay(rank=2, seconds=0.1, at=at.sync_point("now"))])
def test_one_way_beside_a_slow_host(world):
    made = datagrams(world)
    world.sync_point("now")
    world.barrier("cut")
    assert reached(world, made) == [{2}, {0, 2}, {0, 1}][world.rank]

@pytest.mark.multihost(ranks=2, faults=[
    faults.partition(groups=[[0], [1]], heals_after=0.5, at=at.sync_point("now"))])
def test_heals(world):
    made = stream(world)
    world.sync_point("now")
    world.barrier("cut")
    assert ping(world, made, count=1) > 0.3 or not world.is_primary
    assert ping(world, made) < 0.1

@pytest.mark.multihost(ranks=2, faults=[faults.reset(rank=1, at=at.sync_point("now"))])
def test_reset(world):
    made = stream(world)
    world.sync_point("now")
    with pytest.raises((ConnectionResetError, ConnectionAbortedError)) as raised:
        made.recv(1)
    expected = (ConnectionResetError, ConnectionAbortedError)
    assert raised.type is expected[world.rank]
    world.barrier("reset")
    stream(world)

@pytest.mark.multihost(ranks=2, faults=[faults.dns_failure(rank=1, at=at.sync_point("now"))])
def test_names(world):
    assert socket.gethostbyname("host-0") == "10.77.0.1"
    world.sync_point("now")
    if world.is_primary:
        socket.gethostbyname("host-1")
    else:
        with pytest.raises(socket.gaierror):
            socket.gethostbyname("host-0")
        assert socket.gethostbyname(socket.gethostname()) == "10.77.0.2"

@pytest.fixture
def well(world):
    yield
    assert socket.gethostbyname("host-0") == "10.77.0.1"
    with datagrams(world) as made:
        world.barrier("bound again")
        made.sendto(b"x", (f"10.77.0.{2 - world.rank}", 7001))
        assert made.recv(10) == b"x"

@pytest.mark.multihost(ranks=2, faults=[
    faults.dns_failure(rank=1), faults.partition(groups=[[0], [1]])])
def test_fixtures_are_torn_down_on_a_network_that_is_whole(world, well):
    with datagrams(world) as made:
        world.barrier("bound")
        assert reached(world, made) == set()

@pytest.mark.multihost(ranks=2, faults=[
    faults.partition(groups=[[0], [1]], at=at.sync_point("never"))])
def test_missed(world):
    world.sync_point("other")
"""
)


@pytest.mark.claim("cut or slow the network between hosts")
def test_ranks_see_what_was_asked_for(run_worlds: Callable[..., Any]) -> None:
    """Delay, rate and loss by their figures; cuts by who reaches whom; and a miss is a failure."""
    worlds = run_worlds(SEEN, *NETNS)
    worlds.run.assert_outcomes(passed=9, failed=1)
    assert "never fired on rank 0: rank 0 passed other x1" in worlds.stdout


HANGS = """
import os, time, pytest, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from pytest_multihost import at, faults

@pytest.mark.multihost(ranks=4, timeout=60, faults=[
    faults.partition(groups=[[0], [1, 2, 3]], at=at.collective("all_reduce", nth=2))])
@pytest.mark.multihost_expect("transport", culprits=[], waiting=[0, 1, 2, 3], within=4,
    match="the network is cut between rank 0 and ranks 1-3")
def test_all_reduce(world):
    for _ in range(4):
        dist.all_reduce(torch.ones(3))

@pytest.mark.multihost(ranks=3, timeout=60, faults=[
    faults.partition(groups=[[0, 1], [2]], at=at.sync_point("step"))])
@pytest.mark.multihost_expect("transport", culprits=[], within=4,
    match="the network is cut between ranks 0,1 and rank 2")
def test_ddp_step(world):
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    for step in range(3):
        loss = model(torch.ones(2, 64)).sum()
        if step == 1:
            world.sync_point("step")
        loss.backward()

CUT = faults.partition(groups=[[0], [1, 2]], at=at.sync_point("cut"))

@pytest.mark.multihost(ranks=3, timeout=60, faults=[CUT])
@pytest.mark.multihost_expect("straggler", culprits=[2], waiting=[0, 1])
def test_late(world):
    world.sync_point("cut")
    if world.rank == 2:
        time.sleep(600)
    dist.all_reduce(torch.ones(3))

@pytest.mark.multihost(ranks=3, timeout=60, faults=[CUT])
@pytest.mark.multihost_expect("died", culprits=[2], waiting=[0, 1])
def test_dead(world):
    world.sync_point("cut")
    world.barrier("cut")
    if world.rank == 2:
        os._exit(3)
    dist.all_reduce(torch.ones(3))

@pytest.mark.multihost(ranks=2, startup_timeout=8, faults=[
    faults.partition(groups=[[0], [1]], at=at.rendezvous())])
@pytest.mark.multihost_expect("transport", match="entered init_process_group, and the network is")
def test_black_hole(world):
    pass
"""


def test_a_cut_is_told_from_a_late_or_dead_rank_in_gloo(run_worlds: Callable[..., Any]) -> None:
    """In the middle of an all_reduce, of a DDP step, at the rendezvous."""
    worlds = run_worlds(HANGS, *NETNS, "--multihost-backend", "gloo")
    worlds.run.assert_outcomes(passed=5)
    by = {name: each["diagnosis"]["detected_by"] for name, each in worlds.verdicts.items()}
    assert by["test_all_reduce"] == by["test_ddp_step"] == "proof"
    evidence = worlds.verdicts["test_late"]["diagnosis"]["evidence"]
    claims = [each["claim"] for each in evidence if each["source"] == "fault"]
    assert len(claims) == 1
    assert "the network is cut between rank 0 and ranks 1,2 since +" in claims[0]


JAX = """
import numpy as np, pytest
from pytest_multihost import at, faults

@pytest.mark.multihost(ranks=3, timeout=60, faults=[
    faults.partition(groups=[[0], [1, 2]], at=at.sync_point("save"))])
@pytest.mark.multihost_expect("transport", culprits=[], within=4,
    match="the network is cut between rank 0 and ranks 1,2")
def test_save(world, shared_tmp_path):
    import jax, orbax.checkpoint as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()), ("x",))
    whole = np.arange(world.size * 4.0)
    spread = NamedSharding(mesh, P("x"))
    state = jax.make_array_from_callback(whole.shape, spread, lambda index: whole[index])
    with ocp.CheckpointManager(shared_tmp_path / "run") as manager:
        for step in range(3):
            if step == 1:
                world.sync_point("save")
            manager.save(step, args=ocp.args.StandardSave({"weights": state}))
            manager.wait_until_finished()

@pytest.mark.multihost(ranks=2, startup_timeout=8, faults=[
    faults.partition(groups=[[0], [1]], at=at.rendezvous())])
@pytest.mark.multihost_expect("transport", culprits=[], match="jax.distributed.initialize, and th")
def test_black_hole(world):
    pass

@pytest.mark.multihost(ranks=2, startup_timeout=30, faults=[
    faults.partition(groups=[[0], [1]], at=at.rendezvous(), heals_after=1)])
def test_slow_rendezvous(world):
    pass
"""


def test_a_cut_is_named_in_the_middle_of_a_save_of_orbax(run_worlds: Callable[..., Any]) -> None:
    """Also where ranks of jax never meet; one that heals is no more than a late start."""
    require("orbax.checkpoint")
    worlds = run_worlds(JAX, *NETNS, "--multihost-backend", "jax")
    worlds.run.assert_outcomes(passed=3)
    assert worlds.verdicts["test_save"]["diagnosis"]["detected_by"] == "proof"


INNOCENT = """
import pytest, torch, torch.distributed as dist
from pytest_multihost import at, faults

THIRD = at.collective(nth=3)

def steps():
    for _ in range(4):
        dist.all_reduce(torch.ones(3))

@pytest.mark.multihost(faults=[faults.partition(groups=[[0], [1]], heals_after=5, at=THIRD)])
def test_healed_late(world):
    steps()

@pytest.mark.multihost(faults=[faults.net_loss(rank=1, percent=45, at=THIRD)])
def test_lossy(world):
    steps()

@pytest.mark.multihost(faults=[faults.net_delay(rank=1, seconds=3, at=THIRD)])
def test_slow(world):
    steps()
"""


def test_a_network_that_recovers_or_is_slow_is_never_called_hung(
    run_worlds: Callable[..., Any],
) -> None:
    """Nothing moves for seconds, and then it does."""
    arguments = ("--multihost-backend", "gloo", "--ranks", "2", "--multihost-timeout", "80")
    worlds = run_worlds(INNOCENT, *NETNS, *arguments)
    worlds.run.assert_outcomes(passed=3)


def test_without_hosts_of_our_own_it_is_a_usage_error(pytester: pytest.Pytester) -> None:
    """It names the test, the fault, and what is needed; two that exclude each other, both."""
    pytester.makepyfile(
        """
        import pytest
        from pytest_multihost import faults

        @pytest.mark.multihost(ranks=2, faults=[faults.net_rate(rank=0, bytes_per_s=1000)])
        def test_one(world):
            pass

        @pytest.mark.multihost(ranks=2, hosts="netns", faults=[
            faults.net_loss(rank=0, percent=1), faults.net_loss(rank=[0, 1], percent=2)])
        def test_two(world):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "multihost_hangs")
    text = " ".join(result.stderr.str().split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "test_one: @pytest.mark.multihost faults: faults.net_rate(rank=0," in text
    assert "needs hosts=\"netns\"; the test has hosts='one'" in text
    assert "faults.net_loss(rank=0, percent=1) and faults.net_loss(rank=[0, 1], percent=2)" in text


# What is left


KILLED = """
import os, pathlib, pytest, socket, time
from pytest_multihost import at, faults

@pytest.mark.multihost(ranks=2, hosts="netns", timeout=60, faults=[
    faults.partition(groups=[[0], [1]], at=at.sync_point("now")),
    faults.net_delay(rank=[0, 1], seconds=0.01)])
def test_it(world):
    other = socket.socket()
    if world.is_primary:
        other.bind(("10.77.0.1", 7000)); other.listen(); world.barrier("up"); other.accept()
    else:
        world.barrier("up"); other.connect(("10.77.0.1", 7000))
    world.sync_point("now")
    world.barrier("cut")
    if not world.is_primary:
        other.sendall(b"x" * 1000)  # the kernel will try to send it when the rank is dead
    pathlib.Path(f"rank-{world.rank}").write_text(os.readlink("/proc/self/ns/net"))
    time.sleep(600)
"""


def descendants(pid: int) -> set[int]:
    """Return all processes below one."""
    with suppress(psutil.Error):
        return {each.pid for each in psutil.Process(pid).children(recursive=True)}
    return set()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run pytest on a world that stays until it is ended."""
    started = start_pytest(tmp_path, KILLED)
    yield started
    started.kill()
    started.communicate()


@pytest.mark.parametrize("victim", ["pytest", "server"])
def test_whoever_is_killed_nobody_goes_on_disturbing(
    run: subprocess.Popen[str], tmp_path: Path, victim: str
) -> None:
    """The process that carries frames ends with the server, and its namespaces with it."""
    files = [tmp_path / f"rank-{rank}" for rank in range(2)]
    await_that(lambda: all(file.exists() and file.read_text() for file in files))
    [server] = psutil.Process(run.pid).children()
    below = descendants(server.pid)
    assert len(below) == 3  # two ranks, and who disturbs their network
    os.kill({"pytest": run.pid, "server": server.pid}[victim], signal.SIGKILL)
    await_that(lambda: not any(psutil.pid_exists(pid) for pid in below))


def test_a_fault_that_the_kernel_refuses_fails_its_rank_and_says_why(
    run_worlds: Callable[..., Any],
) -> None:
    """A world goes on without its network only by mistake."""
    source = """
    import os, signal, psutil, pytest
    from pytest_multihost import at, faults

    @pytest.mark.multihost(ranks=2, hosts="netns", faults=[
        faults.partition(groups=[[0], [1]], at=at.sync_point("now"))])
    def test_it(world):
        if world.is_primary:
            [daemon] = {each.pid for each in psutil.Process(os.getppid()).children()} - {
                *world.gather(os.getpid())}
            os.kill(daemon, signal.SIGKILL)
        else:
            world.gather(os.getpid())
        world.sync_point("now")
    """
    worlds = run_worlds(source)
    worlds.run.assert_outcomes(failed=1)
    assert re.search(r"rank 0: LaunchError: faults.partition\(.*not be performed", worlds.stdout)
