"""Is it hung? Real processes, looked at from outside; every case is a world of one or two ranks.

All worlds live at the same time and are looked at together, over and over, so that dozens of them
take seconds. Those that hang must be proven to within a few looks; those that do not must never be.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import builders
import psutil
import pytest
from runtimes import require

from pytest_multihost.core.proof import (
    SHORT_S,
    AskTurns,
    FileLockHolders,
    ProofSearch,
    ProofState,
    Snapshot,
    lock_holders,
    main_labels,
)
from pytest_multihost.core.watch.kernel import (
    HarnessProcesses,
    ProcReader,
    Quiescence,
    inet_sockets,
)
from pytest_multihost.core.watch.kernel.elf import symbol_table
from pytest_multihost.core.watch.kernel.membership import find_family
from pytest_multihost.core.watch.kernel.proc_files import Stat
from pytest_multihost.core.watch.kernel.sockets import inet_sockets_from
from pytest_multihost.testing import Endpoint, KernelSnapshot, Operation, Operations

DEADLINE_S = 60.0
LOOKS = 20
CORPUS = Path(__file__).parents[2] / "corpus"

PRELUDE = """
import os, socket, subprocess, sys, threading, time
directory, rank = sys.argv[1], sys.argv[2]

def ready(text=""):
    with open(f"{directory}/new-{rank}", "w") as file:
        file.write(text)
    os.rename(f"{directory}/new-{rank}", f"{directory}/ready-{rank}")

def told(rank):
    path = f"{directory}/ready-{rank}"
    while not os.path.exists(path):
        time.sleep(0.02)
    return open(path).read()
"""
SLEEPS = "ready(); time.sleep(600)"


@dataclass
class World:
    """Ranks that run programs of ours.

    Attributes:
        path: Their directory.
        ranks: The processes.
        kept: What must stay open on our side.
        pages: What must stay mapped on our side.
        helpers: Processes beside the ranks.
        harness: What the watch is told to be the harness's.
        waits_in_operation: Ranks whose main threads wait in an operation.
    """

    path: Path
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kept: list[socket.socket | int] = field(default_factory=list)
    pages: list[mmap.mmap] = field(default_factory=list)
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    harness: HarnessProcesses = field(default_factory=HarnessProcesses)
    waits_in_operation: Sequence[int] = ()

    def start(self, *sources: str, fds: Sequence[int] = (), env: Mapping[str, str] = {}) -> World:
        """Start one more rank for each source; they inherit `fds`, named FD0, FD1, ..."""
        names = "".join(f"FD{i} = {fd}\n" for i, fd in enumerate(fds))
        for source in sources:
            log = self.path / f"rank-{len(self.ranks)}.log"
            arguments = ["-c", PRELUDE + names + source, str(self.path), str(len(self.ranks))]
            with log.open("wb") as file:
                rank = subprocess.Popen(
                    [sys.executable, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    pass_fds=fds,
                    start_new_session=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                )
            self.ranks.append(rank)
        return self

    def await_ready(self, timeout_s: float = 60) -> None:
        """Wait until all ranks have said that they are where they are to be seen."""
        deadline = time.monotonic() + timeout_s
        for i, rank in enumerate(self.ranks):
            while not (self.path / f"ready-{i}").exists():
                assert rank.poll() is None, (self.path / f"rank-{i}.log").read_text()
                assert time.monotonic() < deadline, f"{self.path}: rank {i} is late"
                time.sleep(0.02)

    def watch(self) -> ProcReader:
        """Return a watch on the ranks."""
        return ProcReader({i: rank.pid for i, rank in enumerate(self.ranks)}, self.harness)

    def quiescence(self) -> Quiescence:
        """Return what says whether the ranks are quiescent."""
        return Quiescence({i: rank.pid for i, rank in enumerate(self.ranks)}, self.harness)

    def operations(self) -> tuple[Operations, ...]:
        """Return what a recorder would have told of the ranks that wait in an operation."""
        return tuple(
            Operations(rank, (collective(self.ranks[rank].pid, len(self.ranks)),))
            for rank in self.waits_in_operation
        )

    def end(self) -> None:
        """End all ranks and what they have started."""
        for rank in self.ranks:
            for process in descendants(rank.pid):
                process.kill()
            rank.kill()
            rank.wait()
        for helper in self.helpers:
            helper.kill()
            helper.wait()
        for each in self.kept:
            os.close(each) if isinstance(each, int) else each.close()


def descendants(leader: int) -> list[psutil.Process]:
    """Return the living processes of a rank's session."""
    found = []
    for process in psutil.process_iter():
        try:
            is_theirs = os.getsid(process.pid) == leader != process.pid
            if is_theirs and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.Error):  # gone meanwhile
            continue
    return found


def collective(tid: int, size: int) -> Operation:
    """Return an operation for which a thread waits."""
    return builders.operation(group=tuple(range(size)), sequence=2, thread=tid)


HUNG: dict[str, Callable[[World], World]] = {}
ALIVE: dict[str, tuple[str, Callable[[World], World]]] = {}


def hung(make: Callable[[World], World]) -> Callable[[World], World]:
    """Name a world that hangs: no wait in it can end."""
    HUNG[make.__name__] = make
    return make


def alive(blocker: str) -> Callable[[Callable[[World], World]], Callable[[World], World]]:
    """Name a world that may go on, with a part of the sentence that says why."""

    def add(make: Callable[[World], World]) -> Callable[[World], World]:
        ALIVE[make.__name__] = (blocker, make)
        return make

    return add


def hung_program(name: str, *sources: str) -> None:
    """Name a world of plain programs that hangs."""
    HUNG[name] = lambda world: world.start(*sources)


def alive_program(name: str, blocker: str, *sources: str) -> None:
    """Name a world of plain programs that may go on."""
    ALIVE[name] = (blocker, lambda world: world.start(*sources))


hung_program(
    "lock_deadlock",
    """
first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
def take(one, other):
    with one:
        both.wait()
        with other:
            pass
threading.Thread(target=take, args=(second, first)).start()
ready(); take(first, second)
""",
)
hung_program("event", "ready(); threading.Event().wait()")
hung_program("event_with_a_late_limit", "ready(); threading.Event().wait(600)")
hung_program("sleep", SLEEPS)
hung_program("select_on_nothing", "import select; ready(); select.select([], [], [], 600)")
hung_program("poll", "import select; ready(); select.poll().poll(600_000)")
hung_program("asyncio", "import asyncio; ready(); asyncio.run(asyncio.sleep(600))")
hung_program("child", "ready(); subprocess.run(['sleep', '600'])")
hung_program(
    "idle_pool",
    "from concurrent.futures import ThreadPoolExecutor as P\n"
    "p = P(3); list(p.map(abs, [1, 2, 3])); ready(); threading.Event().wait()",
)
hung_program("eventfd", "ready(); os.read(os.eventfd(0), 8)")
hung_program(
    "eventfd_in_asyncio",
    """
import asyncio
async def main():
    asyncio.get_running_loop().add_reader(os.eventfd(0), print)
    ready()
    await asyncio.Event().wait()
asyncio.run(main())
""",
)
hung_program("socketpair", "a, b = socket.socketpair(); ready(); a.recv(1)")
hung_program("one_rank_is_dead", "ready()", "ready(); threading.Event().wait()")
hung_program(
    "socket_with_a_late_limit",
    "a, b = socket.socketpair(); a.settimeout(600); ready(); a.recv(1)",
)
hung_program(
    "process_lock_taken_twice",
    "import multiprocessing; lock = multiprocessing.get_context('fork').Lock(); lock.acquire()\n"
    "ready(); lock.acquire()",
)
hung_program(
    "queue_whose_producer_is_dead",
    """
import queue
q = queue.Queue()
t = threading.Thread(target=q.put, args=(1,)); t.start(); t.join(); q.get()
ready(); q.get()
""",
)
hung_program(
    "process_queue_whose_producer_is_dead",
    """
import multiprocessing
context = multiprocessing.get_context("fork")
q = context.Queue()
p = context.Process(target=q.put, args=(1,)); p.start(); q.get(); p.join()
ready(); q.get()
""",
)
hung_program(
    "file_lock_held_by_a_rank",
    """
import fcntl
file = open(f"{directory}/lock", "w")
told(1); ready(); fcntl.flock(file, fcntl.LOCK_EX)
""",
    """
import fcntl
file = open(f"{directory}/lock", "w"); fcntl.flock(file, fcntl.LOCK_EX)
ready(); threading.Event().wait()
""",
)
LISTENS = """
server = socket.create_server(("127.0.0.1", 0))
ready(str(server.getsockname()[1])); peer = server.accept()[0]
"""
hung_program(
    "socket_between_ranks",
    LISTENS + "peer.recv(1)",
    "peer = socket.create_connection(('127.0.0.1', int(told(0)))); ready(); peer.recv(1)",
)
hung_program(
    "socket_that_a_rank_does_not_accept",
    LISTENS.partition("peer =")[0] + "threading.Event().wait()",
    "peer = socket.create_connection(('127.0.0.1', int(told(0)))); ready(); peer.recv(1)",
)

alive_program("short_event", "waits for a lock", "ready()\nwhile True: threading.Event().wait(1)")
alive_program("short_sleep", "sleeps", "ready()\nwhile True: time.sleep(0.5)")
alive_program("sleep_that_ends", "sleeps for another", "ready(); time.sleep(40)")
alive_program(
    "process_lock_of_a_child",
    "child process `python",
    """
import multiprocessing
lock = multiprocessing.get_context("fork").Lock()
def hold():
    lock.acquire(); ready(); time.sleep(40); lock.release()
multiprocessing.get_context("fork").Process(target=hold).start()
told(rank); lock.acquire()
""",
)
alive_program("spin", "runs", "ready()\nwhile True: pass")
alive_program(
    "child_that_ends", "child process `sleep`", "ready(); subprocess.run(['sleep', '40'])"
)
alive_program(
    "child_that_another_thread_waits_for",
    "child process `sleep`",
    "p = subprocess.Popen(['sleep', '40']); ready(); threading.Event().wait()",
)
alive_program(
    "orphan",
    "child process `sleep`",
    "os.system('(sleep 40 &)'); ready(); threading.Event().wait()",
)
alive_program(
    "timer_thread",
    "rank 0: thread ",
    "e = threading.Event(); threading.Timer(40, e.set).start(); ready(); e.wait()",
)
alive_program(
    "itimer",
    "SIGALRM",
    "import signal; signal.signal(signal.SIGALRM, lambda *_: os._exit(0))\n"
    "signal.setitimer(signal.ITIMER_REAL, 40); ready(); threading.Event().wait()",
)
alive_program(
    "short_asyncio",
    "epoll_wait",
    "import asyncio\nready()\nwhile True: asyncio.run(asyncio.sleep(0.3))",
)
alive_program("pause", "signal", "import signal; ready(); signal.pause()")
alive_program("sigwait", "signal", "import signal; ready(); signal.sigwait({signal.SIGUSR1})")
alive_program(
    "socket_with_a_limit",
    "poll",
    "a, b = socket.socketpair(); a.settimeout(40); ready(); a.recv(1)",
)
alive_program(
    "socket_with_a_hidden_limit",
    "recvfrom",
    "import struct; a, b = socket.socketpair()\n"
    "a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('qq', 40, 0))\n"
    "ready(); a.recv(1)",
)
CONNECTED = """
server = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(server.getsockname()); b = server.accept()[0]; server.close()
"""
ASKS = """
a.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
for option in socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL:
    a.setsockopt(socket.IPPROTO_TCP, option, {})
"""
hung_program("keepalive", CONNECTED + ASKS.format(7200) + "ready(); a.recv(1)")
hung_program(
    "answered_keepalive", CONNECTED + ASKS.format(1) + "time.sleep(2.5); ready(); a.recv(1)"
)
DROPS = f"""
sys.path.append({str(CORPUS)!r})
from mishaps import drop_all
drop_all(b)
"""
alive_program(
    "keepalive_to_come",
    "may give up the connection",
    CONNECTED + DROPS + ASKS.format(10) + "ready(); a.recv(1)",
)
alive_program(
    "unanswered_keepalive",
    "may give up the connection",
    CONNECTED
    + DROPS
    + ASKS.format(1)
    + "a.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 100)\n"
    + "time.sleep(2.5); ready(); a.recv(1)",
)
alive_program(
    "user_timeout",
    "may give up the connection",
    CONNECTED
    + DROPS
    + "a.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100_000)\n"
    + "a.send(b'x'); ready(); a.recv(1)",
)
alive_program("accept", "connect", LISTENS)
alive_program(
    "datagrams",
    "udp",
    "a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); a.bind(('127.0.0.1', 0))\n"
    "ready(); a.recv(1)",
)
alive_program(
    "named_pipe", "openat", "os.mkfifo(f'{directory}/fifo'); ready(); open(f'{directory}/fifo')"
)
alive_program(
    "process_queue_with_a_producer",
    "child process `python",
    """
import multiprocessing
context = multiprocessing.get_context("fork")
q = context.Queue()
def produce(): time.sleep(40); q.put(1)
p = context.Process(target=produce); p.start(); ready(); q.get()
""",
)
alive_program(
    "uninterruptible",
    "uninterruptible",
    "os.mkfifo(f'{directory}/fifo'); ready()\n"
    "os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=["
    "(os.POSIX_SPAWN_OPEN, 9, f'{directory}/fifo', os.O_RDONLY, 0)])",
)
alive_program(
    "thread_that_sleeps_shortly",
    "rank 0: thread ",
    """
def beat():
    while True: time.sleep(0.2)
threading.Thread(target=beat, daemon=True).start(); ready(); threading.Event().wait()
""",
)


@hung
def pipe_between_ranks(world: World) -> World:
    """A rank reads a pipe whose other end only another rank has."""
    read, write = os.pipe()
    world.start("os.close(FD1); ready(); os.read(FD0, 1)", SLEEPS, fds=(read, write))
    os.close(read)
    os.close(write)
    return world


@alive("not part of this world")
def pipe_from_outside(world: World) -> World:
    """We could write to it."""
    read, write = os.pipe()
    world.start("ready(); os.read(FD0, 1)", fds=(read,))
    os.close(read)
    world.kept.append(write)
    return world


def _server(world: World) -> int:
    server = socket.create_server(("127.0.0.1", 0))
    world.kept.append(server)
    return int(server.getsockname()[1])


@alive("not part of this world")
def socket_from_outside(world: World) -> World:
    """We could answer."""
    connect = f"peer = socket.create_connection(('127.0.0.1', {_server(world)}))"
    return world.start(f"{connect}; ready(); peer.recv(1)")


@alive("not part of this world")
def asyncio_from_outside(world: World) -> World:
    """We could answer here, too."""
    return world.start(
        f"""
import asyncio
async def main():
    reader, _ = await asyncio.open_connection("127.0.0.1", {_server(world)})
    ready()
    await reader.read(1)
asyncio.run(main())
"""
    )


@alive("not part of this world")
def socket_that_nobody_is_seen_to_wait_for(world: World) -> World:
    """An answer could still be looked for."""
    connect = f"peer = socket.create_connection(('127.0.0.1', {_server(world)}))"
    return world.start(f"{connect}; ready(); threading.Event().wait()")


@hung
def socket_whose_other_end_is_closed(world: World) -> World:
    """The process that had it has ended, as one of multiprocessing does: nothing comes from it."""
    return world.start(
        "one, two = socket.socketpair(); two.close(); ready(); threading.Event().wait()"
    )


@alive("not part of this world")
def socket_whose_other_end_is_shut_one_way(world: World) -> World:
    """Its holder still writes to it."""
    one, two = socket.socketpair()
    one.shutdown(socket.SHUT_RD)
    world.kept += [one, two]
    return world.start("ready(); threading.Event().wait()", fds=(two.fileno(),))


@alive("whose holder is not known|held by process")
def file_lock_held_outside(world: World) -> World:
    """We could let it go."""
    import fcntl

    file = os.open(world.path / "lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    world.kept.append(file)
    take = "import fcntl; file = open(f'{directory}/lock', 'w'); ready(); fcntl.flock(file, 2)"
    return world.start(take)


@alive("whose holder is not known|held by process")
def file_lock_left_outside(world: World) -> World:
    """A rank has taken it, and closed the file that it shares with us: we could let it go."""
    file = os.open(world.path / "lock", os.O_WRONLY | os.O_CREAT)
    world.kept.append(file)
    take = "import fcntl; fcntl.flock(FD0, 2); os.close(FD0); ready(); threading.Event().wait()"
    world.start(take, fds=(file,)).await_ready()
    wait = "import fcntl; file = open(f'{directory}/lock', 'w'); ready(); fcntl.flock(file, 2)"
    return world.start(wait)


@alive("is stopped")
def stopped(world: World) -> World:
    """Somebody may continue it."""
    world.start("ready(); threading.Event().wait()")
    world.await_ready()
    world.ranks[0].send_signal(signal.SIGSTOP)
    return world


WAITS_FOR_US = "peer = socket.socket(fileno=FD0); ready(); peer.recv(1)"


def _channel(world: World) -> World:
    ours, theirs = socket.socketpair()
    world.start(WAITS_FOR_US, fds=(theirs.fileno(),))
    theirs.close()
    world.kept.append(ours)
    world.harness = HarnessProcesses(controllers=frozenset({os.getpid()}))
    return world


@alive("the process that has started the ranks")
def waits_for_the_harness(world: World) -> World:
    """A rank that waits for us, nobody knows why, goes on when we say so."""
    return _channel(world)


@hung
def waits_for_the_harness_in_an_operation(world: World) -> World:
    """Then it is known what for: the other ranks."""
    world.waits_in_operation = [0]
    return _channel(world)


ASKED = """
os.mkfifo(f"{directory}/rank-0.ask")
file = os.open(f"{directory}/rank-0.ask", os.O_RDWR)
threading.Thread(target=os.read, args=(file, 1), daemon=True).start()
ready(); threading.Event().wait()
"""


WAITS_FOR_WORD = """
import mmap, ctypes
def wait_at(word):
    ready(); ctypes.CDLL(None).syscall(FUTEX, ctypes.c_void_p(word), 0, 0, None)
def wait_in(page):
    wait_at(ctypes.addressof(ctypes.c_int.from_buffer(page)))
""".replace("FUTEX", "202" if os.uname().machine == "x86_64" else "98")
SHARES = f"{WAITS_FOR_WORD}wait_in(mmap.mmap(FD0, 4096))"
NAMED = f"""{WAITS_FOR_WORD}
name = f"{{directory}}/memory"
with open(name, "w+b") as file:
    file.truncate(4096)
    page = mmap.mmap(file.fileno(), 4096)
"""
SYSTEM_V = f"""{WAITS_FOR_WORD}
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(0, 4096, 0o1600)
word = libc.shmat(number, None, 0)
libc.shmctl(number, 0, None)  # it goes with the last who has it; until then anybody may attach it
wait_at(word)
"""

hung_program("memory_without_a_file", f"{WAITS_FOR_WORD}wait_in(mmap.mmap(-1, 4096))")
hung_program("memory_without_a_name", f"{NAMED}os.unlink(name); wait_in(page)")
alive_program("memory_with_a_name", "memory that others may share", f"{NAMED}wait_in(page)")
alive_program(
    "memory_with_another_name",
    "memory that others may share",
    f"{NAMED}os.link(name, name + '-too'); os.unlink(name); wait_in(page)",
)
alive_program("memory_with_a_number", "memory that others may share", SYSTEM_V)


@alive("memory that others may share")
def lock_in_memory_that_we_map_too(world: World) -> World:
    """We could wake it."""
    file = os.memfd_create("shared")
    os.ftruncate(file, 4096)
    world.pages.append(mmap.mmap(file, 4096))
    world.kept.append(file)
    return world.start(SHARES, fds=(file,))


@alive("memory that others may share")
def lock_in_memory_of_which_we_have_a_descriptor(world: World) -> World:
    """We could map it, and wake it."""
    file = os.memfd_create("shared")
    os.ftruncate(file, 4096)
    world.kept.append(file)
    return world.start(SHARES, fds=(file,))


@hung
def lock_in_memory_of_two_ranks(world: World) -> World:
    """Only they have it."""
    file = os.memfd_create("shared")
    os.ftruncate(file, 4096)
    world.start(SHARES, SLEEPS, fds=(file,))
    os.close(file)
    return world


@alive("eventfd ")
def eventfd_from_outside(world: World) -> World:
    """We could write to it."""
    file = os.eventfd(0)
    world.kept.append(file)
    return world.start("ready(); os.eventfd_read(FD0)", fds=(file,))


@alive("eventfd ")
def polled_eventfd_from_outside(world: World) -> World:
    """We could write to it here, too."""
    file = os.eventfd(0)
    world.kept.append(file)
    poll = "poll = select.epoll(); poll.register(FD0, select.EPOLLIN); ready(); poll.poll()"
    return world.start(f"import select; {poll}", fds=(file,))


@hung
def eventfd_between_ranks(world: World) -> World:
    """A rank reads one that only another rank has, too; we have others."""
    file, other = os.eventfd(0), os.eventfd(0)
    world.kept.append(other)
    world.start("ready(); os.eventfd_read(FD0)", SLEEPS, fds=(file,))
    os.close(file)
    return world


@hung
def pipe_to_itself_beside_a_dead_child(world: World) -> World:
    """A child that has ended and was not waited for does nothing more, and has nothing."""
    dead = "subprocess.Popen(['true'], stdin=subprocess.DEVNULL)"
    return world.start(f"{dead}; ours, theirs = socket.socketpair(); ready(); ours.recv(1)")


@hung
def lock_of_a_dead_child(world: World) -> World:
    """Nobody else has the memory that it lies in, and its file has no name any more."""
    dead = "child = context.Process(target=lock.acquire); child.start(); child.join()"
    context = "import multiprocessing; context = multiprocessing.get_context('fork')"
    return world.start(f"{context}; lock = context.Lock(); {dead}; ready(); lock.acquire()")


LIVING_CHILD = """
import multiprocessing
context = multiprocessing.get_context("fork")
lock = context.Lock(); lock.acquire()
context.Process(target=lambda: (time.sleep(30), lock.release())).start()
ready(); lock.acquire()
"""


@alive("sleep")
def lock_of_a_child_that_lives(world: World) -> World:
    """It lets go in time."""
    return world.start(LIVING_CHILD)


BESIDE_NATIVE_CODE = """
import ctypes
def run():
    while True:
        time.sleep(0.01)
threading.Thread(target=run, daemon=True).start()
ready(); time.sleep(0.1)
"""


@hung
def native_sleep_with_the_interpreter(world: World) -> World:
    """Another thread asks for its turn two hundred times a second, and gets none."""
    return world.start(f"{BESIDE_NATIVE_CODE}ctypes.PyDLL(None).sleep(600)")


@alive("main thread")
def native_sleeps_with_the_interpreter(world: World) -> World:
    """In between, others get their turn."""
    loop = "while True: ctypes.PyDLL(None).usleep(300_000); time.sleep(0.001)"
    return world.start(f"{BESIDE_NATIVE_CODE}{loop}")


@hung
def thread_of_ours(world: World) -> World:
    """The thread that answers our questions waits for nobody else."""
    world.harness = HarnessProcesses(paths=(f"{world.path}/rank-*.ask",))
    return world.start(ASKED)


@alive("fifo")
def thread_that_looks_like_ours(world: World) -> World:
    """A pipe with a name that we were not told of."""
    return world.start(ASKED)


@alive("fifo")
def named_pipe_below_a_directory_of_ours(world: World) -> World:
    """A rank's files may lie in ours; a pattern is about one name, not about all beneath it."""
    world.harness = HarnessProcesses(paths=(f"{world.path.parent}/*",))
    return world.start(ASKED)


@alive("not part of this world|the process that has started the ranks")
def socket_to_a_process_that_is_said_to_be_idle(world: World) -> World:
    """A server that a test needs may be a child of pytest, as ours is; it is no rank's parent."""
    source = LISTENS.replace("ready(", "told_at(") + "time.sleep(600)"
    source = "def told_at(port): open(f'{directory}/port-', 'w').write(port)\n" + source
    source = source.replace(
        "peer =", "os.rename(f'{directory}/port-', f'{directory}/port'); peer ="
    )
    server = subprocess.Popen([sys.executable, "-c", PRELUDE + source, str(world.path), "server"])
    world.helpers.append(server)
    world.harness = HarnessProcesses(servers=frozenset({server.pid}))
    port = "while not os.path.exists(f'{directory}/port'): time.sleep(0.02)\n"
    port += "port = int(open(f'{directory}/port').read())\n"
    connect = "peer = socket.create_connection(('127.0.0.1', port))"
    return world.start(f"{port}{connect}; ready(); peer.recv(1)")


@dataclass
class Outcome:
    """What became of a world.

    Attributes:
        is_proven: Whether it was proven to hang at any time.
        blockers: Why it was not: everything that was said, one sentence a line.
        look: The last look.
        glance: The glance before it.
    """

    is_proven: bool
    blockers: str
    look: KernelSnapshot
    glance: KernelSnapshot


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Outcome]]:
    """Start all worlds, look at them until those that hang are proven to, and end them."""
    cases = HUNG | {name: make for name, (_, make) in ALIVE.items()}
    worlds = {name: World(tmp_path_factory.mktemp(name)) for name in cases}
    try:
        for name, world in worlds.items():
            cases[name](world)
        for world in worlds.values():
            world.await_ready()
        yield observe(worlds)
    finally:
        for world in worlds.values():
            world.end()
    assert_nothing_is_left(worlds.values())


def assert_nothing_is_left(worlds: Iterable[World]) -> None:
    """Assert that nothing of any world lives; who was killed may take a moment to die."""
    leaders = [rank.pid for world in worlds for rank in world.ranks]
    deadline = time.monotonic() + 20
    while left := [each for leader in leaders for each in descendants(leader)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def asking(quiescence: Quiescence) -> AskTurns:
    """Return what asks one of these worlds, a few times, as the watchdog does."""

    def ask_turns(idle: Collection[int]) -> Mapping[int, int] | None:
        found = (quiescence.ask(idle) for _ in range(5))
        return next((each.turns for each in found if each.is_quiescent), None)

    return ask_turns


def observe(worlds: Mapping[str, World], looks: int = LOOKS) -> dict[str, Outcome]:
    """Look at all worlds until those that hang are proven to hang, at least three times."""
    deadline_s = time.monotonic() + DEADLINE_S - 10
    watches = {name: world.watch() for name, world in worlds.items()}
    still = {name: world.quiescence() for name, world in worlds.items()}
    searches = dict.fromkeys(worlds, ProofState())
    said: dict[str, list[str]] = {name: [] for name in worlds}
    proven: set[str] = set()
    found: dict[str, Outcome] = {}
    for i in range(looks):
        for name, watch in watches.items():
            glance, look = watch.shallow_snapshot(), watch.deep_snapshot()
            moment = Snapshot(look, worlds[name].operations())
            searches[name] = searches[name].after(
                moment, deadline_s=deadline_s, ask_turns=asking(still[name])
            )
            said[name] += searches[name].blockers
            proven |= {name} if searches[name].is_proof else set()
            found[name] = Outcome(name in proven, "\n".join(said[name]), look, glance)
        if i >= 5 and proven.issuperset(HUNG.keys() & worlds):
            break
        time.sleep(SHORT_S)
    return found


@pytest.mark.parametrize("name", HUNG)
def test_what_hangs_is_proven_to_hang(outcomes: Mapping[str, Outcome], name: str) -> None:
    """No wait of such a world can end before the deadline."""
    assert outcomes[name].is_proven, outcomes[name].blockers


@pytest.mark.parametrize("name", ALIVE)
def test_what_may_go_on_is_never_called_hung(outcomes: Mapping[str, Outcome], name: str) -> None:
    """And it is said why."""
    assert not outcomes[name].is_proven
    parts = ALIVE[name][0].split("|")
    assert any(part in outcomes[name].blockers for part in parts), outcomes[name].blockers


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lock_deadlock", ("BLOCKED", "a lock")),
        ("sleep", ("SLEEPING", "sleep for another 5")),
        ("select_on_nothing", ("SLEEPING", "sleep for another 5")),
        ("spin", ("RUNNING", "uses a processor")),
        ("child", ("CHILD", "wait4(child")),
        ("stopped", ("STOPPED", "stopped")),
        ("uninterruptible", ("DISK", "")),
        ("pipe_between_ranks", ("IO", "read(pipe:")),
        ("named_pipe", ("IO", "openat(/")),
        ("one_rank_is_dead", ("EXITED", "has ended")),
        ("socket_between_ranks", ("BLOCKED", "recvfrom(socket:")),
        ("asyncio", ("BLOCKED", "epoll_wait")),
        ("file_lock_held_by_a_rank", ("BLOCKED", "flock(/")),
    ],
)
def test_a_glance_says_what_rank_0_does(
    outcomes: Mapping[str, Outcome], name: str, expected: tuple[str, str]
) -> None:
    """In one word, and for the reader."""
    label, activity = main_labels(None, outcomes[name].glance)[0]
    assert label == expected[0]
    assert str(activity).startswith(expected[1])


def test_it_is_seen_who_holds_a_file_lock(outcomes: Mapping[str, Outcome]) -> None:
    """Rank 1 holds it, rank 0 waits for it."""
    assert lock_holders(outcomes["file_lock_held_by_a_rank"].look) == {
        0: FileLockHolders((1,)),
        1: FileLockHolders(),
    }


TORCH = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
store = dist.FileStore(f"{directory}/store", SIZE)
dist.init_process_group("gloo", store=store, rank=int(rank), world_size=SIZE)
x = torch.ones(3)
dist.all_reduce(x)
ready()
if rank == "0":
    time.sleep(SLEEP)
dist.all_reduce(x)
"""
JAX = """
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", DEVICES)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:PORT", 2, int(rank))
from jax.experimental.multihost_utils import process_allgather, sync_global_devices
process_allgather(jax.numpy.ones(3))
ready()
if rank == "0":
    time.sleep(SLEEP)
WAIT
"""


def fill(source: str, **values: object) -> str:
    """Put values in place of their names."""
    for name, value in values.items():
        source = source.replace(name, str(value))
    return source


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Give a world that is ended with the test."""
    world = World(tmp_path)
    yield world
    world.end()
    assert_nothing_is_left([world])


def search(world: World, *, looks: int = LOOKS) -> Outcome:
    """Look at a world until it is proven to hang, or often enough."""
    world.await_ready()
    watch, ask_turns, found = world.watch(), asking(world.quiescence()), ProofState()
    deadline_s = time.monotonic() + DEADLINE_S
    said: list[str] = []
    for _ in range(looks):
        glance, look = watch.shallow_snapshot(), watch.deep_snapshot()
        moment = Snapshot(look, world.operations())
        found = found.after(moment, deadline_s=deadline_s, ask_turns=ask_turns)
        said += found.blockers
        if found.is_proof:
            break
        time.sleep(SHORT_S)
    return Outcome(found.is_proof, "\n".join(said), look, glance)


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_torch_ranks_that_wait_for_one_that_sleeps_are_proven_to_hang(world: World) -> None:
    """Gloo's threads wake up all the time, which is their own affair."""
    require("torch")
    world.start(*[fill(TORCH, SIZE=4, SLEEP=600)] * 4)
    world.waits_in_operation = [1, 2, 3]
    world.await_ready()
    search, reader = ProofSearch(), world.watch()
    deadline_s = time.monotonic() + DEADLINE_S
    assert any(step(search, reader, world, deadline_s) for _ in range(LOOKS)), search.state.blockers
    assert search.last_deep is not None
    assert main_labels(None, search.last_deep)[0][0] == "SLEEPING"


def step(search: ProofSearch, reader: ProcReader, world: World, deadline_s: float) -> bool:
    """Have a search look at two glances as the engine does."""
    before = Snapshot(reader.shallow_snapshot(), world.operations())
    time.sleep(0.5)
    now = Snapshot(reader.shallow_snapshot(), world.operations())
    ask_turns = asking(world.quiescence())
    return search.step(before, now, reader.deep_snapshot, ask_turns, deadline_s=deadline_s)


def test_torch_ranks_that_wait_for_one_that_is_slow_are_not(world: World) -> None:
    """It sleeps for less than is left until the deadline."""
    require("torch")
    world.start(*[fill(TORCH, SIZE=4, SLEEP=40)] * 4)
    world.waits_in_operation = [1, 2, 3]
    found = search(world, looks=16)
    assert not found.is_proven
    assert "rank 0: main thread sleeps for another" in found.blockers


@pytest.mark.parametrize(
    ("devices", "wait"),
    [(1, "process_allgather(jax.numpy.ones(3))"), (2, "sync_global_devices('x')")],
)
def test_jax_ranks_that_wait_for_one_that_sleeps_are_proven_to_hang(
    world: World, devices: int, wait: str
) -> None:
    """Most of its threads have the name of the interpreter, and none runs it."""
    require("jax")
    source = fill(JAX, PORT=free_port(), DEVICES=devices, SLEEP=600, WAIT=wait)
    world.start(source, source)
    world.waits_in_operation = [1]
    found = search(world)
    assert found.is_proven, found.blockers


def test_jax_ranks_that_wait_for_one_that_is_slow_are_not(world: World) -> None:
    """It sleeps for less than is left until the deadline."""
    require("jax")
    wait = "process_allgather(jax.numpy.ones(3))"
    source = fill(JAX, PORT=free_port(), DEVICES=1, SLEEP=40, WAIT=wait)
    world.start(source, source)
    world.waits_in_operation = [1]
    found = search(world, looks=16)
    assert not found.is_proven
    assert "rank 0: main thread sleeps for another" in found.blockers


RESTORE = """
import jax, numpy
jax.config.update("jax_platforms", "cpu")
import orbax.checkpoint
saver = orbax.checkpoint.StandardCheckpointer()
saver.save(f"{directory}/step", {"x": numpy.ones((100, 100)), "y": numpy.arange(5)})
saver.wait_until_finished()
saver.restore(f"{directory}/step")
ready()
threading.Event().wait()
"""
RETRY = """
import tensorstore
spec = {"driver": "http", "base_url": "http://127.0.0.1:PORT/"}
store = tensorstore.KvStore.open(spec).result()
retries = {"max_retries": 100, "initial_delay": "20s", "max_delay": "20s"}
context = {"http_request_retries": retries}
store = tensorstore.KvStore.open({**spec, "context": context}).result()
pending = store.read("x")
ready()
pending.result()
"""


def test_idle_workers_of_a_pool_do_not_keep_a_world_from_being_proven(world: World) -> None:
    """After a restore, tensorstore's wait for more work for 20 and 60 s, and then end."""
    require("orbax.checkpoint")
    world.start(RESTORE)
    found = search(world, looks=80)
    assert found.is_proven, found.blockers


def test_a_request_that_will_be_repeated_is_waited_for(world: World) -> None:
    """Its thread waits as an idle one does, and no socket is open meanwhile."""
    require("tensorstore")
    world.start(fill(RETRY, PORT=free_port()))
    found = search(world, looks=24)
    assert not found.is_proven
    assert "waits for a lock for another " in found.blockers


def test_a_library_tells_the_names_of_its_functions() -> None:
    """By where their code is in the file; what has no table tells none."""
    tensorstore = pytest.importorskip("tensorstore")
    path = Path(tensorstore.__file__).parent / f"_tensorstore{EXTENSION_SUFFIXES[0]}"
    table = symbol_table(str(path))
    names = [table.name_at_offset(offset) for offset in range(0, path.stat().st_size, 256)]
    if len(set(names)) < 1000:  # only what it exports
        pytest.skip("this build of tensorstore has no table of its functions")
    assert any("SharedThreadPool6Worker10WorkerBody" in name for name in names)
    assert table.name_at_offset(path.stat().st_size) == table.name_at_offset(0) == ""
    for other in (__file__, "/nowhere"):
        assert symbol_table(other).name_at_offset(0) == ""


def test_both_tables_of_sockets_say_the_same() -> None:
    """The kernel's messages and its text: addresses, states, inodes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
        near.send(b"12345")
        ours = {os.fstat(each.fileno()).st_ino for each in (server, near, far)}
        told = {each.inode: each for each in inet_sockets(socket.IPPROTO_TCP)}
        read = {each.inode: each for each in inet_sockets_from(Path("/proc/net/tcp").read_text())}
        near.close()
        far.close()
    # The text has no counts of bytes.
    uncounted = {
        inode: replace(told[inode], bytes_moved=0, sent=None, received=0, has_room=False)
        for inode in ours
    }
    assert uncounted == {inode: read[inode] for inode in ours}
    assert sorted(told[inode].queues for inode in ours) == [(0, 0), (0, 0), (5, 0)]


def test_an_address_of_ipv6_is_read_in_both_of_its_forms() -> None:
    """IPv4 inside of it is told as IPv4: the other end may be of that family."""
    line = "0: {} {} 01 00000000:00000000 00:00000000 00000000 0 0 77 1"
    mapped = line.format("0000000000000000FFFF00000100007F:1F90", "0" * 24 + "01000000:0050")
    (found,) = inet_sockets_from("header\n" + mapped)
    assert (found.local, found.remote) == (
        Endpoint("127.0.0.1", 8080),
        Endpoint("::1", 80),
    )


def test_processes_that_have_left_their_rank_still_belong_to_the_world() -> None:
    """The reaper inherits them; what it has started itself and ranks of others do not count."""
    us = HarnessProcesses(reaper=50, servers=frozenset({50}), controllers=frozenset({40}))
    parents = {40: 1, 50: 40, 60: 50, 61: 60, 62: 61, 70: 50, 71: 70, 80: 1, 81: 1}
    sessions = {70: 70, 71: 70, 80: 60, 81: 81}
    stats = {
        pid: Stat("x", "S", parent, sessions.get(pid, pid), 1.0, 0)
        for pid, parent in parents.items()
    }
    assert find_family(stats, {0: 60}, lambda *_: True, us) == {
        60: (0, True),
        61: (0, False),
        62: (0, False),
        70: (None, False),
        71: (None, False),
        80: (0, False),
    }


def test_a_number_that_was_given_to_another_process_is_no_rank_any_more() -> None:
    """The rank has ended; the stranger is not looked at."""
    with subprocess.Popen(["sleep", "600"]) as stranger:
        watch = ProcReader({0: stranger.pid})
        watch._born[stranger.pid] -= 100
        try:
            assert watch.shallow_snapshot().ranks[0].is_dead
            assert watch.deep_snapshot().ranks[0].is_dead
        finally:
            stranger.kill()
