"""Tests whose ranks stand still for a while, and which all end by themselves, and pass.

For most of them, two ranks wait for a lock that a third one holds: no rank can move. But the test
ends them, or somebody else lets them go on. So no line may appear, and nobody may be ended.
"""

import asyncio
import concurrent.futures
import contextlib
import fcntl
import multiprocessing
import os
import queue
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from datetime import timedelta
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path

import pytest

STILL_S = 25.0
FORK = multiprocessing.get_context("fork")


def hold(path, rank, seconds=600.0):
    """Hold the lock as rank 1, and wait for it as another rank."""
    with Path(path).open("a") as file:
        take(path, rank, file)
        if rank == 1:
            time.sleep(seconds)


def take(path, rank, file):
    """Take the lock, rank 1 as the first."""
    held = Path(f"{path}.held")
    while rank != 1 and not held.exists():
        time.sleep(0.05)
    fcntl.flock(file, fcntl.LOCK_EX)
    held.touch()


def start(target, *arguments):
    """Start three ranks of a function."""
    found = [
        FORK.Process(target=target, args=(arguments[0], rank, *arguments[1:])) for rank in range(3)
    ]
    for each in found:
        each.start()
    return found


def kill(ranks):
    for each in sorted(ranks, key=lambda each: each is ranks[1]):  # the lock's holder at last
        each.kill()
        each.join()
    assert all(each.exitcode == -signal.SIGKILL for each in ranks), "somebody else ended a rank"


def outside(program, *arguments):
    """Start a program that is nobody's descendant."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    launcher = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    subprocess.run([sys.executable, "-c", launcher, *command], check=True)


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "lock"


def test_that_its_ranks_hang(lock):
    ranks = start(hold, lock)
    for each in ranks:
        each.join(STILL_S / 3)
        assert each.is_alive()
    kill(ranks)


def test_that_kills_the_straggler_later(lock):
    ranks = start(hold, lock)
    time.sleep(STILL_S)
    ranks[1].kill()
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, -signal.SIGKILL, 0]


def test_that_polls_for_a_file_that_comes_after_40_seconds(tmp_path):
    def write_late(path, rank):
        time.sleep(40.0 if rank == 1 else 0.0)
        (path / str(rank)).touch()

    ranks = start(write_late, tmp_path)
    while not (tmp_path / "1").exists():
        time.sleep(1.0)
    for each in ranks:
        each.join()


def test_with_a_slow_compiler(lock):
    def build(path, rank):
        with Path(path).open("a") as file:
            take(path, rank, file)
            if rank == 1:
                subprocess.run(["sleep", str(STILL_S)], check=True)

    ranks = start(build, lock)
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0, 0]


def test_that_joins_for_40_seconds(lock):
    ranks = start(hold, lock)
    ranks[0].join(40)
    kill(ranks)


def test_of_servers(tmp_path):
    class Answer(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(self.rfile.readline())

    def serve(path, rank):
        with socketserver.UnixStreamServer(str(path / str(rank)), Answer) as server:
            server.serve_forever(poll_interval=600)

    ranks = start(serve, tmp_path)
    time.sleep(STILL_S)
    for rank in range(3):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / str(rank)))
            client.sendall(b"hello\n")
            assert client.recv(16) == b"hello\n"
    kill(ranks)


def test_with_a_queue_and_a_timeout(lock):
    answers = FORK.Queue()
    ranks = start(hold, lock)
    with pytest.raises(queue.Empty):
        answers.get(timeout=STILL_S)
    kill(ranks)


def test_of_retries(tmp_path):
    def connect(path, rank):
        while True:
            with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                client.connect(str(path / "server"))
                return
            time.sleep(1.0)

    ranks = start(connect, tmp_path)
    time.sleep(STILL_S)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        server.listen()
        for each in ranks:
            each.join()


def test_that_communicates_with_a_limit(lock):
    program = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX)"
    ranks = start(hold, lock)
    time.sleep(0.2)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE
    ) as one:
        with pytest.raises(subprocess.TimeoutExpired):
            one.communicate(timeout=STILL_S)
        one.kill()
    kill(ranks)


def test_with_a_timer_of_its_own(lock):
    ranks = start(hold, lock)
    timer = threading.Timer(STILL_S, ranks[1].kill)
    timer.start()
    for each in ranks:
        each.join()
    assert ranks[0].exitcode == 0


def test_with_an_alarm(lock):
    class RungError(Exception):
        pass

    def fail(*_):
        raise RungError

    old = signal.signal(signal.SIGALRM, fail)
    ranks = start(hold, lock)
    signal.alarm(int(STILL_S))
    with pytest.raises(RungError):
        ranks[0].join()
    signal.signal(signal.SIGALRM, old)
    kill(ranks)


def test_whose_ranks_have_alarms(lock):
    def wake(path, rank):
        signal.signal(signal.SIGALRM, lambda *_: os._exit(5))
        signal.alarm(int(STILL_S))
        hold(path, rank)

    ranks = start(wake, lock)
    for each in ranks:
        each.join()
    assert {each.exitcode for each in ranks} == {5, 0} or all(e.exitcode == 5 for e in ranks)


def test_with_an_event_and_a_timeout(lock):
    def wait(path, rank):
        with Path(path).open("a") as file:
            take(path, rank, file)
            if rank == 1:
                threading.Event().wait(STILL_S)

    ranks = start(wait, lock)
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0, 0]


def test_of_asyncio(lock):
    async def wait():
        program = "import time; time.sleep(600)"
        one = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one.wait(), STILL_S)
        one.kill()
        await one.wait()

    ranks = start(hold, lock)
    asyncio.run(wait())
    kill(ranks)


def nap(seconds):
    time.sleep(seconds)
    return seconds


def test_of_futures(lock):
    ranks = start(hold, lock)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=FORK) as pool:
        found = pool.submit(nap, STILL_S + 5)
        with pytest.raises(concurrent.futures.TimeoutError):
            found.result(timeout=STILL_S)
    kill(ranks)


def test_that_waits_for_any_with_a_limit(lock):
    ranks = start(hold, lock)
    assert wait_for_any([each.sentinel for each in ranks], timeout=STILL_S) == []
    kill(ranks)


def test_whose_lock_an_outsider_holds(lock):
    program = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'a');"
        " fcntl.flock(file, fcntl.LOCK_EX); time.sleep(25)"
    )
    outside(program, lock)
    time.sleep(1.0)

    def wait(path, rank):
        with Path(path).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    ranks = start(wait, lock)
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0, 0]


def test_with_a_fifo_of_an_outsider(tmp_path):
    os.mkfifo(tmp_path / "fifo")

    def read(path, rank):
        if rank == 1:
            (path / "fifo").read_bytes()
            (path / "done").touch()
        with (path / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    outside("import sys, time; time.sleep(25); open(sys.argv[1], 'w').close()", tmp_path / "fifo")
    ranks = start(read, tmp_path)
    for each in ranks:
        each.join()
    assert (tmp_path / "done").exists()


def test_with_a_rank_that_sleeps_45_seconds(lock):
    ranks = start(hold, lock, 45.0)
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0, 0]


def test_with_a_select_of_30_seconds(lock):
    def wait(path, rank):
        with Path(path).open("a") as file:
            take(path, rank, file)
            if rank == 1:
                one, _ = socket.socketpair()
                select.select([one], [], [], 30.0)

    ranks = start(wait, lock)
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0, 0]


def test_of_a_pool_with_a_slow_task():
    with FORK.Pool(3) as pool:
        assert pool.map(nap, [0.1, STILL_S, 0.1], chunksize=1) == [0.1, STILL_S, 0.1]


def test_with_a_watchdog(lock):
    ranks, stop = start(hold, lock), threading.Event()

    def look():
        until_s = time.monotonic() + STILL_S
        while not stop.wait(5.0):
            if time.monotonic() > until_s:
                ranks[1].kill()
                return

    watchdog = threading.Thread(target=look)
    watchdog.start()
    for each in ranks:
        each.join()
    stop.set()
    watchdog.join()
    assert ranks[0].exitcode == 0


def test_with_a_loop_of_waitpid(lock):
    ranks, until_s = start(hold, lock), time.monotonic() + STILL_S
    while time.monotonic() < until_s:
        assert os.waitpid(ranks[0].pid, os.WNOHANG) == (0, 0)
        time.sleep(0.5)
    kill(ranks)


def meet(rank, path):
    import torch.distributed as dist

    store = dist.FileStore(str(path), 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=STILL_S)
    )
    if rank == 1:
        Path(f"{path}.up").touch()
        time.sleep(55.0)
        return
    with pytest.raises(RuntimeError):
        dist.barrier()
    Path(f"{path}.given_up").touch()


def test_of_a_timeout_of_gloo(tmp_path):
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=meet, args=(rank, tmp_path / "store")) for rank in (0, 1)]
    for each in ranks:
        each.start()
    ranks[0].join()
    assert (tmp_path / "store.given_up").exists()
    ranks[1].kill()
    ranks[1].join()


def test_that_continues_a_stopped_rank(lock):
    def stop(path, rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    ranks = start(stop, lock)
    time.sleep(STILL_S)
    os.kill(ranks[1].pid, signal.SIGCONT)
    for each in ranks:
        each.join()


def test_of_a_barrier_with_a_timeout(lock):
    barrier = FORK.Barrier(4)

    def wait(path, rank):
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(STILL_S)

    ranks = start(wait, lock)
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0, 0]


def test_of_a_shared_value(lock):
    value = FORK.Value("i", 0)

    def spin(path, rank):
        while not value.value:
            time.sleep(0.2)

    ranks = start(spin, lock)
    timer = threading.Timer(STILL_S, setattr, (value, "value", 1))
    timer.start()
    for each in ranks:
        each.join()


def test_whose_shell_ends_the_ranks(lock):
    program = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX)"
    ranks = start(hold, lock)
    while not Path(f"{lock}.held").exists():
        time.sleep(0.05)
    done = subprocess.run(
        ["timeout", "-s", "KILL", str(int(STILL_S)), sys.executable, "-c", program, str(lock)],
        check=False,
    )
    assert done.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}
    kill(ranks)


LONG = timedelta(minutes=30)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for_key(rank, port, seconds=STILL_S):
    """Set a key as rank 1, after a while; wait for it as another rank. Rank 0 has the store."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, timeout=LONG)
    if rank == 1:
        time.sleep(seconds)
        store.set("of rank 1", "here")
    store.get("of rank 1")
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < 3:
        time.sleep(0.1)


def leave(rank, port):
    if rank == 1:
        os._exit(0)
    wait_for_key(rank, port)


def start_with_port(target, port):
    found = [FORK.Process(target=target, args=(rank, port)) for rank in range(3)]
    for each in found:
        each.start()
    return found


def test_that_replaces_a_rank_that_has_left():
    port = free_port()
    ranks, one = start_with_port(leave, port), FORK.Process(target=wait_for_key, args=(1, port, 0))
    timer = threading.Timer(STILL_S, one.start)
    timer.start()
    for each in ranks:
        each.join()
    timer.join()
    one.join()
    assert [each.exitcode for each in (*ranks, one)] == [0, 0, 0, 0]


def test_whose_rank_goes_on_as_a_daemon():
    def become_a_daemon(rank, port):
        if rank == 1:
            if os.fork():
                os._exit(0)
            os.setsid()
        wait_for_key(rank, port)

    ranks = start_with_port(become_a_daemon, free_port())
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0, 0]


def test_of_two_worlds():
    port = free_port()
    first = [FORK.Process(target=wait_for_key, args=(rank, port)) for rank in (0, 2)]
    second = [FORK.Process(target=wait_for_key, args=(1, port, STILL_S))]
    second += start_with_port(wait_for_key, free_port())
    for each in (*first, *second):
        each.start() if each.pid is None else None
    for each in (*first, *second):
        each.join()
    assert {each.exitcode for each in (*first, *second)} == {0}


AGAIN = """
import os, signal, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from traps import wait_for_key

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 0 and rank == 1:
    time.sleep(1.0)
    sys.exit(3)
if "ignores" in sys.argv and attempt == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait_for_key(rank, int(sys.argv[1]) + attempt, 0.0)
"""


def run_torchrun(path, *words, interval="0.1"):
    (path / "again.py").write_text(AGAIN)
    (path / "traps.py").write_text(Path(__file__).read_text())
    port = free_port()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    command += ["--max-restarts", "1", "--monitor-interval", interval]
    command += ["--master-port", str(free_port()), str(path / "again.py"), str(port), *words]
    assert subprocess.run(command, check=False).returncode == 0


def test_of_a_torchrun_that_looks_seldom_and_starts_its_ranks_again(tmp_path):
    run_torchrun(tmp_path, interval="25")


def test_of_a_torchrun_whose_ranks_ignore_its_signal(tmp_path):
    run_torchrun(tmp_path, "ignores")


WORKERS = """
import os, time
from traps import wait_for_key

RANK = int(os.environ["PYTEST_XDIST_WORKER"][2:])

def test_first():
    if RANK == 1:
        time.sleep(25.0)

def test_outer():
    wait_for_key(RANK, int(os.environ["TRAP_PORT"]), 0.0)
"""


def run_workers(path):
    (path / "test_workers.py").write_text(WORKERS)
    (path / "traps.py").write_text(Path(__file__).read_text())
    (path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"]
    return subprocess.run(
        [*command, "-n", "3", "--dist=each", "test_workers.py"],
        cwd=path,
        env={**os.environ, "TRAP_PORT": str(free_port()), "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def test_of_workers_of_which_one_is_late(tmp_path):
    assert "6 passed" in run_workers(tmp_path)
