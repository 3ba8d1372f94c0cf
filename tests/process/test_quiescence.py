"""Is a world of real processes quiescent at a moment? Real threads, children, sockets and files."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from runs import await_that

from pytest_multihost.core.watch.kernel import Quiescence, Stillness, inet_sockets

ASKED = 150
PATIENCE_S = 20.0

PRELUDE = """
import os, signal, socket, subprocess, sys, threading, time
def ready():
    print("ready", flush=True)
"""
BURNS = "ready()\nwhile True: pass"
SLEEPS = "ready(); time.sleep(600)"


@dataclass
class Programs:
    """Programs that run until the test is over.

    Attributes:
        path: Their directory.
        stack: Ends them.
        ranks: Those of the world, by rank.
    """

    path: Path
    stack: ExitStack
    ranks: dict[int, int] = field(default_factory=dict)

    def start(self, source: str, fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        """Start a program beside the world; return when it is ready."""
        names = "".join(f"FD{i} = {fd}\n" for i, fd in enumerate(fds))
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + names + textwrap.dedent(source)],
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=fds,
            start_new_session=True,
        )
        self.stack.callback(_end, process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def rank(self, source: str, fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        """Start one more rank."""
        process = self.start(source, fds)
        self.ranks[len(self.ranks)] = process.pid
        return process

    def burn(self, cpu: int | None = None) -> None:
        """Keep both cores, or one, busy with processes that are not the world's."""
        for number in range(2):
            process = self.start(BURNS)
            os.sched_setaffinity(process.pid, {number if cpu is None else cpu})


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Programs that end with the test."""
    with ExitStack() as stack:
        yield Programs(tmp_path, stack)


def until_quiescent(found: Quiescence) -> Stillness:
    """Ask until the world is quiescent."""
    deadline = time.monotonic() + PATIENCE_S
    while not (last := found.ask()).is_quiescent:
        assert time.monotonic() < deadline, last
        time.sleep(0.002)
    return last


def until_still_but_for(found: Quiescence, cause: str) -> None:
    """Ask until there is nothing else that moves."""
    deadline = time.monotonic() + PATIENCE_S
    while causes(found) != {cause}:
        assert time.monotonic() < deadline, found.ask()
        time.sleep(0.002)


def causes(found: Quiescence) -> set[str]:
    """Return why the world is not quiescent, asked again while that is a process that has begun.

    It may be anybody's, and may have ended before its parent could be read.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (last := set(found.ask().causes)) == {"begins"}:
        assert time.monotonic() < deadline, last
    return last


# Worlds that are still

STILL = {
    "threads": "for _ in range(20): threading.Thread(target=threading.Event().wait).start()",
    "sleep": "",
    "pipe": "r, w = os.pipe(); threading.Thread(target=os.read, args=(r, 1)).start()",
    "child": "subprocess.Popen(['sleep', '600'])",
    "grandchild": "subprocess.Popen(['sh', '-c', 'sleep 600 & wait'])",
    "orphan": "subprocess.run(['sh', '-c', 'sleep 600 &'])",
    "zombie": "os.fork() or os._exit(0); time.sleep(0.1)",
    "blocked signal": """
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR1)
    """,
    "unread data": """
        server = socket.create_server(("127.0.0.1", 0))
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        one.sendall(b"unread")
    """,
    "full socket": """
        server = socket.create_server(("127.0.0.1", 0))
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        threading.Thread(target=one.sendall, args=(bytes(1 << 26),)).start()
    """,
}


@pytest.mark.parametrize("is_loaded", [False, True], ids=["idle", "loaded"])
@pytest.mark.parametrize("name", STILL)
def test_a_world_that_waits_is_quiescent(programs: Programs, name: str, is_loaded: bool) -> None:
    """Whatever it waits in, and whoever else computes."""
    for _ in range(2):
        programs.rank(textwrap.dedent(STILL[name]) + "\n" + SLEEPS)
    if is_loaded:
        programs.burn()
    found = Quiescence(programs.ranks)
    assert set(programs.ranks.values()) <= until_quiescent(found).turns.keys()


def test_a_world_whose_ranks_have_ended_is_quiescent(programs: Programs) -> None:
    """Nothing of it can run."""
    rank = programs.rank(SLEEPS)
    found = Quiescence(programs.ranks)
    found.ask()
    rank.kill()
    rank.wait()
    assert until_quiescent(found).turns == {}


# Worlds that never are: one part of them always has something to do

RING = """
        def pass_on(take, give):
            while True:
                take(); give()
"""
NEVER = {
    "computing": BURNS,
    "computing beside": "threading.Thread(target=threading.Event().wait).start()\n" + BURNS,
    "pipes": RING
    + """        a, b, c, d = *os.pipe(), *os.pipe()
        if os.fork() == 0:
            pass_on(lambda: os.read(a, 1), lambda: os.write(d, b"x"))
        os.write(b, b"x"); ready()
        pass_on(lambda: os.read(c, 1), lambda: os.write(b, b"x"))
    """,
    "unix sockets": RING
    + """        one, other = socket.socketpair()
        mine = other if os.fork() == 0 else one
        if mine is one: one.send(b"x"); ready()
        pass_on(lambda: mine.recv(1), lambda: mine.send(b"x"))
    """,
    "tcp": RING
    + """        server = socket.create_server(("127.0.0.1", 0))
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        mine = other if os.fork() == 0 else one
        if mine is one: one.send(b"x"); ready()
        pass_on(lambda: mine.recv(1), lambda: mine.send(b"x"))
    """,
    "eventfd": RING
    + """        a, b = os.eventfd(1), os.eventfd(0)
        if os.fork() == 0:
            pass_on(lambda: os.eventfd_read(a), lambda: os.eventfd_write(b, 1))
        ready()
        pass_on(lambda: os.eventfd_read(b), lambda: os.eventfd_write(a, 1))
    """,
    "locks": RING
    + """        a, b = threading.Semaphore(1), threading.Semaphore(0)
        threading.Thread(target=pass_on, args=(a.acquire, b.release)).start()
        ready()
        pass_on(b.acquire, a.release)
    """,
    "signals": """
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        one = os.getpid()
        other = os.fork()
        if other: os.kill(one, signal.SIGUSR1); ready()
        while True:
            signal.sigwait([signal.SIGUSR1])
            os.kill(other or one, signal.SIGUSR1)
    """,
    "children": "ready()\nwhile True: subprocess.run(['true'])",
    "forks": """
        ready()
        while True:
            if os.fork() == 0: os._exit(0)
            os.wait()
    """,
    "chain of daemons": """
        until_s = time.monotonic() + 100  # nobody could end it if this test were killed
        if os.fork() == 0:
            while time.monotonic() < until_s:
                if os.fork(): os._exit(0)
            os._exit(0)
        os.wait(); ready(); time.sleep(600)
    """,
    "threads": """
        ready()
        while True:
            each = threading.Thread(target=int); each.start(); each.join()
    """,
    "disk": """
        file = os.open("file", os.O_RDWR | os.O_CREAT)
        ready()
        while True:
            os.pwrite(file, bytes(1 << 16), 0); os.fsync(file)
    """,
    "lazy allocation": """
        import mmap
        ready()
        while True:
            page = mmap.mmap(-1, 1 << 26)
            for at in range(0, 1 << 26, 4096): page[at] = 1
    """,
    "pages of a file": """
        import mmap
        file = os.open("pages", os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, 1 << 24)
        page = mmap.mmap(file, 1 << 24)
        ready()
        while True:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            for at in range(0, 1 << 24, 4096): page[at] = 1
            page.madvise(mmap.MADV_DONTNEED)
    """,
}


@pytest.mark.parametrize("is_loaded", [False, True], ids=["idle", "loaded"])
@pytest.mark.parametrize("name", NEVER)
def test_a_world_at_work_is_never_quiescent(programs: Programs, name: str, is_loaded: bool) -> None:
    """However short the moments are between one part's work and the next one's."""
    programs.rank(SLEEPS)
    programs.rank(textwrap.dedent(NEVER[name]))
    if is_loaded:
        programs.burn()
    found = Quiescence(programs.ranks)
    for _ in range(ASKED):
        assert not found.ask().is_quiescent


# Who has been woken, and starves

WAKERS = {
    "pipe": "os.read(FD0, 1)",
    "signal": "signal.signal(signal.SIGUSR1, lambda *_: None); signal.pause()",
    "end of a child": "subprocess.run(['head', '-c', '1'], stdin=FD0)",
}
TIMERS = {
    "alarm": "os.read(FD0, 1); signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5); signal.pause()",
    "timer": "os.read(FD0, 1); time.sleep(0.5)",
}
"""What follows once the test has written a byte: a sleep of its own, which the kernel counts."""


def state_of(pid: int) -> str:
    """Return the state that the kernel gives to a process: R if it has a processor or wants one."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def sleeps_of(pid: int) -> int:
    """Return how many times a process has gone to sleep."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(each.split()[1]) for each in lines if each.startswith("voluntary_ctxt"))


@pytest.mark.parametrize("name", [*WAKERS, *TIMERS])
def test_who_is_woken_and_gets_no_processor_is_seen(programs: Programs, name: str) -> None:
    """From the moment it is woken, although it uses no processor time."""
    ends = os.pipe()
    for end in ends:
        programs.stack.callback(os.close, end)
    source = {**WAKERS, **TIMERS}[name]
    handler = "signal.signal(signal.SIGALRM, lambda *_: None)\n"
    pid = programs.rank(handler + f"ready(); {source}\n" + BURNS, fds=ends[:1]).pid
    found = Quiescence(programs.ranks)
    os.sched_setaffinity(pid, {0})
    programs.burn(cpu=0)
    until_quiescent(found)
    if name in TIMERS:
        sleeps = sleeps_of(pid)
        os.write(ends[1], b"x")
        await_that(lambda: sleeps_of(pid) > sleeps, PATIENCE_S)
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        until_quiescent(found)
        os.kill(pid, signal.SIGUSR1) if name == "signal" else os.write(ends[1], b"x")
    await_that(lambda: state_of(pid) == "R", PATIENCE_S)
    for _ in range(ASKED):
        assert causes(found) == {"runs"}


# What the scheduler does not know


def test_a_parent_between_vfork_and_exec_is_seen(programs: Programs) -> None:
    """Its child cannot be told from it yet."""
    os.mkfifo(programs.path / "fifo")
    programs.rank("""
        def later():
            time.sleep(0.5)
            actions = [(os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)]
            os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ, file_actions=actions)
        threading.Thread(target=later).start()
        ready(); time.sleep(600)
    """)
    found = Quiescence(programs.ranks)
    until_quiescent(found)
    time.sleep(1)
    assert causes(found) == {"device"}
    (programs.path / "fifo").write_bytes(b"")
    until_quiescent(found)


def test_a_child_that_has_just_begun_is_seen(programs: Programs) -> None:
    """Even if it waits already: what it did meanwhile is not known."""
    rank = programs.rank("""
        signal.signal(signal.SIGUSR1, lambda *_: subprocess.Popen(["sleep", "600"]))
        ready()
        while True: time.sleep(600)
    """)
    found = Quiescence(programs.ranks)
    until_quiescent(found)
    os.kill(rank.pid, signal.SIGUSR1)
    time.sleep(0.5)
    assert found.ask().causes == ("begins",)
    assert len(until_quiescent(found).turns) == 2


def test_threads_of_a_process_whose_main_thread_has_ended_are_seen(programs: Programs) -> None:
    """The kernel calls such a process a zombie."""
    rank = programs.rank("""
        import ctypes
        def work():
            signal.sigwait([signal.SIGUSR1])
            while True: pass
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        threading.Thread(target=work).start()
        ready()
        ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
    """)
    found = Quiescence(programs.ranks)
    assert len(until_quiescent(found).turns) == 1
    os.kill(rank.pid, signal.SIGUSR1)
    time.sleep(0.2)
    assert causes(found) == {"runs"}


def test_a_stopped_process_is_told_apart(programs: Programs) -> None:
    """Stopped and continued in turn it is never quiescent while it is stopped."""
    rank = programs.rank(SLEEPS)
    found = Quiescence(programs.ranks)
    for _ in range(20):
        until_quiescent(found)
        os.kill(rank.pid, signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        assert causes(found) == {"stopped"}
        os.kill(rank.pid, signal.SIGCONT)


def test_a_poller_has_had_its_turn(programs: Programs) -> None:
    """What moves in turns of its own shows between two quiescent moments, and nobody else does."""
    programs.rank(SLEEPS)
    programs.rank("ready()\nwhile True: time.sleep(0.05)")
    found = Quiescence(programs.ranks)
    first = until_quiescent(found)
    time.sleep(0.5)
    last = until_quiescent(found)
    ran = {tid for tid, runs in last.turns.items() if runs != first.turns[tid]}
    assert ran == {programs.ranks[1]}


def test_known_pollers_may_run_while_they_are_asked_for(programs: Programs) -> None:
    """They are seen asleep one after the other, even if their process runs all the time."""
    programs.rank("""
        def poll():
            while True: time.sleep(0.0002)
        threading.Thread(target=poll).start()
        for _ in range(40): threading.Thread(target=threading.Event().wait).start()
        ready(); time.sleep(600)
    """)
    pid = programs.ranks[0]
    poller = min(int(tid) for tid in os.listdir(f"/proc/{pid}/task") if int(tid) != pid)
    found = Quiescence(programs.ranks)
    others = sum(found.ask().is_quiescent for _ in range(ASKED))
    known = sum(found.ask({poller}).is_quiescent for _ in range(ASKED))
    assert others < known
    assert known > 0


def test_turns_are_counted_while_any_thread_may_run(programs: Programs) -> None:
    """That shows who polls all the time, and who has not run at all."""
    programs.rank("""
        def poll():
            while True: time.sleep(0.0002)
        threading.Thread(target=poll).start()
        ready(); time.sleep(600)
    """)
    found = Quiescence(programs.ranks)

    def turns() -> Mapping[int, int]:
        deadline = time.monotonic() + PATIENCE_S
        while not (last := found.ask(None)).is_quiescent:
            assert time.monotonic() < deadline, last
        return last.turns

    first = turns()
    time.sleep(0.2)
    ran = {tid: runs - first[tid] for tid, runs in turns().items()}
    assert ran.pop(programs.ranks[0]) == 0
    assert all(each > 1 for each in ran.values())


def test_a_world_that_works_need_not_be_asked(programs: Programs) -> None:
    """The clocks of its processes say how much it has run."""
    programs.rank(SLEEPS)
    found = Quiescence(programs.ranks)
    found.busiest_share()
    time.sleep(0.3)
    assert found.busiest_share() < 0.05
    programs.rank(BURNS)
    found = Quiescence(programs.ranks)
    found.busiest_share()
    time.sleep(0.3)
    assert found.busiest_share() > 0.05


# The network


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        yield one, other


def test_data_that_were_lost_are_in_flight_until_they_are_sent_again(
    programs: Programs, connection: tuple[socket.socket, socket.socket]
) -> None:
    """A filter drops everything that arrives; nobody runs, and yet the reader will."""
    one, other = connection
    programs.rank("ready(); socket.socket(fileno=FD0).recv(1); time.sleep(600)", (other.fileno(),))
    found = Quiescence(programs.ranks)
    until_quiescent(found)
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))  # BPF: return 0
    other.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(program)))
    one.send(b"x")
    for _ in range(ASKED):  # processes outside the world may begin meanwhile
        assert causes(found) in ({"data"}, {"begins"})
    other.setsockopt(socket.SOL_SOCKET, 27, 0)
    until_quiescent(found)
    assert other.fileno() > 0
    assert select.select([other], [], [], 0)[0] == []  # the rank has read it


def test_data_that_have_arrived_are_not_in_flight_before_they_are_acknowledged(
    programs: Programs, connection: tuple[socket.socket, socket.socket]
) -> None:
    """A rank talks to itself; its kernel delays the last acknowledgement, for nobody waits."""
    one, other = connection
    for _ in range(20):  # from the first answer on, acknowledgements go with what is sent next
        one.send(b"?")
        other.recv(1)
        other.send(b"!")
        one.recv(1)
    programs.rank(SLEEPS, (one.fileno(), other.fileno()))
    found = Quiescence(programs.ranks)

    def seen() -> bool:
        """Whether an answer was unacknowledged before and after the world was seen quiescent."""
        one.send(b"?")
        other.recv(1)
        other.send(b"!")
        one.recv(1)
        is_quiescent = found.ask().is_quiescent
        inode = os.fstat(other.fileno()).st_ino
        return is_quiescent and any(e.inode == inode and e.queues[1] for e in inet_sockets(6))

    assert any(seen() for _ in range(ASKED))


def test_data_for_whose_acknowledgement_a_sender_waits_are_in_flight(
    programs: Programs, connection: tuple[socket.socket, socket.socket]
) -> None:
    """Its buffer is nearly full: once the kernel says that they have arrived, it goes on."""
    one, other = connection
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
    one.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(program)))
    one.send(bytes(4000))
    while len(other.recv(4096, socket.MSG_PEEK)) < 4000:
        time.sleep(0.001)
    other.recv(4096)  # and the acknowledgement is lost
    programs.rank(SLEEPS, (one.fileno(), other.fileno()))
    until_still_but_for(Quiescence(programs.ranks), "data")


def test_a_connection_that_is_being_opened_is_in_flight(programs: Programs) -> None:
    """The server has no room for it, and the client's kernel asks again and again."""
    with socket.socket() as server, ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        programs.rank(SLEEPS, (client.fileno(),))
        until_still_but_for(Quiescence(programs.ranks), "data")


def test_data_in_flight_between_others_do_not_matter(
    programs: Programs, connection: tuple[socket.socket, socket.socket]
) -> None:
    """They are of another world."""
    one, other = connection
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
    other.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(program)))
    one.send(b"x")
    programs.rank(SLEEPS)
    until_quiescent(Quiescence(programs.ranks))


def test_data_in_flight_are_seen_whichever_family_the_ends_are_of(programs: Programs) -> None:
    """IPv6, and IPv4 at one end inside IPv6 at the other, as where a store listens for both."""
    for family, host in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")):
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
            one = socket.socket(family)
            one.connect((host, server.getsockname()[1]))
            other, _ = server.accept()
            with one, other:
                program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
                other.setsockopt(
                    socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(program))
                )
                one.send(b"x")
                programs.ranks.clear()
                programs.rank(SLEEPS, (other.fileno(),))
                until_still_but_for(Quiescence(programs.ranks), "data")


# Files of a server in user space


def _serve_file(device: int, answer: threading.Event) -> None:
    """Be the server of a file system that is one file, whose reads wait for `answer`."""
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:
            return
        _, opcode, unique = struct.unpack_from("=IIQ", request)
        attributes = struct.pack("=QQQQQQIIIIIIIIII", 1, 9, 1, *[0] * 6, 0o100644, 1, *[0] * 5)
        if opcode == 26:  # FUSE_INIT
            body = struct.pack("=IIIIHHIII", 7, 31, 4096, 0, 1, 1, 4096, 1, 0) + bytes(28)
        elif opcode == 3:  # FUSE_GETATTR
            body = struct.pack("=QII", 0, 0, 0) + attributes
        elif opcode == 14:  # FUSE_OPEN: direct I/O, so that reads are waited for as reads
            body = struct.pack("=QII", 0, 1, 0)
        elif opcode == 15:  # FUSE_READ
            answer.wait()
            body = b"x"
        else:
            body = b""
        with suppress(OSError):
            os.write(device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)


@pytest.fixture
def slow_file(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A file whose reads take until it is told to answer."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = tmp_path / "slow"
    path.touch()
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pytest.skip("there is no /dev/fuse")
    options = f"fd={device},rootmode=100644,user_id=0,group_id=0".encode()
    if libc.mount(b"slow", os.fsencode(path), b"fuse", 0, options):
        os.close(device)
        pytest.skip("may not mount a file system")
    answer = threading.Event()
    server = threading.Thread(target=_serve_file, args=(device, answer))
    server.start()
    try:
        yield path, answer.set
    finally:
        answer.set()
        libc.umount2(os.fsencode(path), 2)
        server.join()
        os.close(device)


def test_a_read_from_a_slow_file_system_is_seen(
    slow_file: tuple[Path, Callable[[], None]], programs: Programs
) -> None:
    """Its server runs outside the world, and the reader sleeps like any other."""
    path, answer = slow_file
    programs.rank(f"file = os.open({str(path)!r}, 0); ready(); os.read(file, 1); time.sleep(600)")
    found = Quiescence(programs.ranks)
    until_still_but_for(found, "kernel")
    for _ in range(ASKED):
        assert causes(found) == {"kernel"}
    answer()
    until_quiescent(found)
