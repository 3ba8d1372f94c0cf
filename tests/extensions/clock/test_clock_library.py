"""The library of a clock that jumps, in real processes: this test plays the controller."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_multihost.core.preload import PreloadedLibrary, preload_variables
from pytest_multihost.extensions.clock.page import (
    PAGE_VARIABLE,
    ClockPage,
    ClockWait,
    find_clock_library,
    why_clock_missing,
)

pytestmark = pytest.mark.skipif(find_clock_library() is None, reason=why_clock_missing())

STUCK_S = 60.0
"""Real time in which every program here has long ended."""

PRELUDE = """
import asyncio, ctypes, errno, faulthandler, json, multiprocessing, os, queue, select, signal
import socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
class timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
MINUTES = ctypes.byref(timespec(600, 0))
class itimerspec(ctypes.Structure):
    _fields_ = [("interval", timespec), ("value", timespec)]
def until(clock, seconds):
    at = time.clock_gettime(clock) + seconds
    return ctypes.byref(timespec(int(at), int(at % 1 * 1e9)))
class Ends(Exception):
    pass
def ends(*_):
    raise Ends
began, wall = time.monotonic(), time.time()
"""
CODA = """
print(json.dumps([time.monotonic() - began, time.time() - wall, locals().get("found")]))
"""


def is_alive(wait: ClockWait) -> bool:
    """Return whether the thread that waits still exists, or the process that has a timer."""
    tid = wait.pid if wait.kind == "timer" else wait.tid
    return Path(f"/proc/{wait.pid}/task/{tid}").exists()


def turns_of(pid: int) -> dict[str, str]:
    """Return how often each thread of a process and of its children has run, or is ready to."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            is_ready = " R " in (task / "stat").read_text()
            found[task.name] = str(time.monotonic()) * is_ready + (task / "schedstat").read_text()
            for child in (task / "children").read_text().split():
                found |= turns_of(int(child))
    return found


Lives = Callable[[str], tuple[float, float, object]]


@pytest.fixture
def page(tmp_path: Path) -> ClockPage:
    """Return the page of a clock."""
    return ClockPage.create(tmp_path / "clock")


@pytest.fixture
def live(tmp_path: Path, page: ClockPage) -> Lives:
    """Run a program, and let the clock jump whenever all its timed waits have begun.

    Returns its seconds on both clocks, and what it has left in `found`.
    """

    def live(program: str) -> tuple[float, float, object]:
        path = tmp_path / "program.py"
        path.write_text(PRELUDE + program + CODA)
        library = preload_variables(os.environ, [find_clock_library()])
        process = subprocess.Popen(
            [sys.executable, str(path)],
            env={**os.environ, **library, PAGE_VARIABLE: str(tmp_path / "clock")},
            stdout=subprocess.PIPE,
            text=True,
        )
        before, stuck_s = None, time.monotonic() + STUCK_S
        while process.poll() is None and time.monotonic() < stuck_s:
            time.sleep(0.005)
            waits = [e for e in page.waits() if is_alive(e)]
            if any(each.due_s <= page.now() for each in waits):
                page.wake()
                continue
            seen = [(each.tid, each.serial) for each in waits], turns_of(process.pid)
            if waits and seen == before:
                page.jump(min(each.due_s for each in waits))
            before = seen
        process.kill()
        output, _ = process.communicate()
        monotonic_s, wall_s, found = json.loads(output.splitlines()[-1])
        return monotonic_s, wall_s, found

    return live


@pytest.mark.parametrize(
    ("program", "seconds"),
    [
        ("time.sleep(600)", 600),
        ("select.select([], [], [], 600)", 600),
        ("found = select.poll().poll(600_000)", 600),
        ("found = select.epoll().poll(600)", 600),
        ("libc.ppoll(None, 0, MINUTES, None)", 600),
        ("libc.usleep(900_000)", 0.9),
        ("libc.sleep(600)", 600),
        ("lock = threading.Lock(); lock.acquire(); found = lock.acquire(timeout=600)", 600),
        ("it = threading.Condition(); it.acquire(); found = it.wait(600)", 600),
        ("found = threading.Event().wait(600)", 600),
        ("found = multiprocessing.Semaphore(0).acquire(timeout=600)", 600),
        ("asyncio.run(asyncio.sleep(3600))", 3600),
        ("found = signal.sigtimedwait([signal.SIGUSR1], 600)", 600),
        ("subprocess.run(['sleep', '600'], check=True)", 600),
        ("os.waitpid(os.fork() or time.sleep(600) or os._exit(0), 0)", 600),
        ("word = ctypes.c_int(7); libc.syscall(202, ctypes.byref(word), 0, 7, MINUTES)", 600),
        ("libc.nanosleep(MINUTES, None)", 600),
        ("libc.clock_nanosleep(0, 1, until(0, 600), None)", 600),
        ("libc.pselect(0, None, None, None, MINUTES, None)", 600),
        ("it = select.epoll(); libc.epoll_pwait2(it.fileno(), bytes(12), 1, MINUTES, None)", 600),
        ("libc.sem_timedwait(ctypes.create_string_buffer(32), until(0, 600))", 600),
        (
            (
                "signal.signal(signal.SIGALRM, lambda *_: None); signal.alarm(600); signal.pause()"
                "; found = signal.alarm(0)"
            ),
            600,
        ),
        (
            (
                "signal.signal(signal.SIGALRM, ends); signal.setitimer(signal.ITIMER_REAL, 600)"
                "\ntry: threading.Event().wait()\nexcept Ends: pass"
            ),
            600,
        ),
        (
            (
                "fd = libc.timerfd_create(1, 0)"
                "; libc.timerfd_settime(fd, 0, ctypes.byref(itimerspec(value=timespec(600))), None)"
                "; os.read(fd, 8)"
            ),
            600,
        ),
        (
            (
                "fd = libc.timerfd_create(0, 0); at = timespec(int(time.time()) + 601)"
                "; libc.timerfd_settime(fd, 1, ctypes.byref(itimerspec(value=at)), None)"
                "; select.select([fd], [], [])"
            ),
            600,
        ),
        (
            (
                "it = ctypes.c_void_p(); signal.signal(signal.SIGALRM, lambda *_: None)"
                "; libc.timer_create(1, None, ctypes.byref(it))"
                "; libc.timer_settime(it, 0, ctypes.byref(itimerspec(value=timespec(600))), None)"
                "; signal.pause(); found = libc.timer_delete(it)"
            ),
            600,
        ),
        (
            (
                "lock = ctypes.create_string_buffer(40); libc.pthread_mutex_lock(lock)"
                "; found = libc.pthread_mutex_timedlock(lock, until(0, 600)) - errno.ETIMEDOUT"
            ),
            600,
        ),
        (
            (
                "lock = ctypes.create_string_buffer(56); libc.pthread_rwlock_wrlock(lock)"
                "\ndef reads(): libc.pthread_rwlock_timedrdlock(lock, until(0, 600))"
                "\nreader = threading.Thread(target=reads); reader.start(); reader.join()"
            ),
            600,
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_wait_ends_when_the_clock_has_jumped(live: Lives, program: str, seconds: float) -> None:
    """As by its timeout, on the very second, on both clocks, and ten minutes take none."""
    monotonic_s, wall_s, found = live(program)
    assert seconds <= monotonic_s < seconds + 5
    assert abs(wall_s - monotonic_s) < 0.1
    assert not found


TIMED_SOCKET = """
a, b = socket.socketpair()
minutes = (600).to_bytes(8, "little") + bytes(8)
a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, minutes)
a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, minutes)
def error_of(call, *given):
    try:
        return call(*given)
    except OSError as error:
        return error.errno
"""


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("a.recv, 1", errno.EAGAIN),
        ("a.recvfrom, 1", errno.EAGAIN),
        ("a.recvmsg, 1", errno.EAGAIN),
        ("os.read, a.fileno(), 1", errno.EAGAIN),
        ("os.read, os.dup(a.fileno()), 1", errno.EAGAIN),
    ],
)
def test_a_socket_with_a_timeout_of_the_kernels(live: Lives, call: str, error: int) -> None:
    """SO_RCVTIMEO counts in the world's time, also by a duplicate of the descriptor."""
    monotonic_s, _, found = live(f"{TIMED_SOCKET}\nfound = error_of({call})")
    assert found == error
    assert 600 <= monotonic_s < 605


def test_a_socket_with_a_timeout_sends_what_it_can(live: Lives) -> None:
    """SO_SNDTIMEO: a call returns how much it has sent in time, the next one that it is over."""
    monotonic_s, _, found = live(
        TIMED_SOCKET
        + """
sent = a.send(bytes(10_000_000))
found = [0 < sent < 10_000_000, error_of(a.send, b"x")]
"""
    )
    assert found == [True, errno.EAGAIN]
    assert 1200 <= monotonic_s < 1205


def test_a_socket_with_a_timeout_waits_for_its_peer(live: Lives) -> None:
    """What comes in time is received, and all is sent if it is read."""
    monotonic_s, _, found = live(
        TIMED_SOCKET
        + """
def peer():
    time.sleep(100)
    b.send(b"hello")
    time.sleep(100)
    rest = 10_000_000
    while rest:
        rest -= len(b.recv(100_000))
threading.Thread(target=peer).start()
found = [a.recv(10) == b"hello", a.send(bytes(10_000_000))]
"""
    )
    assert found == [True, 10_000_000]
    assert 200 <= monotonic_s < 210


def test_connections_with_a_timeout(live: Lives) -> None:
    """An accept times out, and what connects in time is accepted and has the timeout, too."""
    monotonic_s, _, found = live(
        TIMED_SOCKET
        + """
server = socket.create_server(("127.0.0.1", 0))
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, minutes)
found = [error_of(server.accept)]
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, minutes)
client.connect(server.getsockname())
client.send(b"hello")
accepted, _ = server.accept()
found += [accepted.recv(10) == b"hello", error_of(accepted.recv, 10)]
"""
    )
    assert found == [errno.EAGAIN, True, errno.EAGAIN]
    assert 1200 <= monotonic_s < 1210


def test_a_timer_that_repeats_does_so_in_the_worlds_time(live: Lives) -> None:
    """An alarm each minute interrupts ten of them, and says how long it has left."""
    monotonic_s, _, found = live(
        """
left = []
signal.signal(signal.SIGALRM, lambda *_: left.append(signal.getitimer(signal.ITIMER_REAL)))
signal.setitimer(signal.ITIMER_REAL, 100, 60)
while len(left) < 10:
    signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
found = [len(left), all(50 < rest <= 60 and each == 60 for rest, each in left)]
"""
    )
    assert found == [10, True]
    assert 640 <= monotonic_s < 660


def test_a_timer_that_is_stopped_or_late_does_not_strike_early(live: Lives) -> None:
    """What has been cancelled never comes, and a jump to an earlier timer moves no later one."""
    monotonic_s, _, found = live(
        """
found = []
signal.signal(signal.SIGALRM, lambda *_: found.append(round(time.monotonic() - began)))
signal.alarm(100)
signal.alarm(0)
time.sleep(200)
signal.alarm(300)
threading.Thread(target=time.sleep, args=(100,)).start()
signal.pause()
"""
    )
    assert found == [500]
    assert 500 <= monotonic_s < 505


def test_an_alarm_survives_an_exec(live: Lives) -> None:
    """As POSIX has it; the timer is the same program's."""
    monotonic_s, _, _ = live(
        """
if len(sys.argv) == 1:
    signal.alarm(600)
    os.environ["BEGAN"] = str(began)
    os.execv(sys.executable, [sys.executable, __file__, "again"])
began = float(os.environ["BEGAN"])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
signal.sigwait([signal.SIGALRM])
"""
    )
    assert 600 <= monotonic_s < 605


def test_a_signal_of_the_programs_own_interrupts_a_wait(live: Lives) -> None:
    """EINTR is hidden only where it comes from the clock alone."""
    monotonic_s, _, found = live(
        """
signal.signal(signal.SIGUSR1, ends)
main = threading.get_ident()
def interrupt():
    time.sleep(100)
    signal.pthread_kill(main, signal.SIGUSR1)
threading.Thread(target=interrupt).start()
try:
    time.sleep(600)
except Ends:
    found = True
"""
    )
    assert found is True
    assert 100 <= monotonic_s < 105


def test_nobody_is_late_or_hangs_under_many_jumps(live: Lives) -> None:
    """32 threads of mixed waits, each as long as it was to be; the clock only goes forward."""
    monotonic_s, _, found = live(
        """
import random
found = {"late": [], "waits": 0, "back": 0}
def lives(seed):
    chance, last = random.Random(seed), time.monotonic()
    condition, end = threading.Condition(), None
    pipe, _ = os.pipe(), None
    for _ in range(12):
        seconds = chance.uniform(1, 300)
        until = time.monotonic() + seconds
        match seed % 6:
            case 0: time.sleep(seconds)
            case 1: select.select([pipe[0]], [], [], seconds)
            case 2: threading.Event().wait(seconds)
            case 3:
                at = timespec(int(until), int(until % 1 * 1e9))
                memory, mutex = ctypes.create_string_buffer(48), ctypes.create_string_buffer(40)
                libc.pthread_mutex_lock(mutex)
                while not libc.pthread_cond_clockwait(memory, mutex, 1, ctypes.byref(at)):
                    pass
                libc.pthread_cond_destroy(memory)
            case 4: select.epoll().poll(seconds)
            case 5: libc.usleep(int(seconds * 1e6))
        now = time.monotonic()
        found["waits"] += 1
        found["back"] += now < last
        if not until - 0.002 <= now < until + 20:
            found["late"].append([seed % 6, now - until])
        last = now
threads = [threading.Thread(target=lives, args=(each,)) for each in range(32)]
[each.start() for each in threads]
[each.join() for each in threads]
"""
    )
    assert found == {"late": [], "waits": 384, "back": 0}
    assert monotonic_s < 12 * 300 + 100


def test_a_process_forked_while_others_wait_has_waits_of_its_own(live: Lives) -> None:
    """Without the thread for condition variables, which is started anew, and without alarms."""
    monotonic_s, _, found = live(
        """
signal.alarm(5000)
def waits(seconds):
    memory, mutex = ctypes.create_string_buffer(48), ctypes.create_string_buffer(40)
    at = time.monotonic() + seconds
    while libc.pthread_cond_clockwait(memory, mutex, 1, until(1, at - time.monotonic())) == 0:
        pass
waits(100)
child = os.fork()
if not child:
    found = signal.alarm(0)
    waits(300)
    os._exit(found)
found = os.waitpid(child, 0)[1] or signal.alarm(0) > 4700
"""
    )
    assert found is False
    assert 400 <= monotonic_s < 410


def test_short_waits_of_the_interpreter_for_its_lock_are_no_timers(page: ClockPage) -> None:
    """Two threads that compute pass the lock of the interpreter on every 5 ms."""
    library = preload_variables(os.environ, [find_clock_library()])
    code = """
import threading, time
until = time.monotonic() + 1
def computes():
    while time.monotonic() < until: pass
threading.Thread(target=computes).start()
computes()
"""
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **library})
    seen = set()
    while process.poll() is None:
        seen |= {each.kind for each in page.waits()}
        time.sleep(0.001)
    assert "condition" not in seen


def test_slots_of_threads_that_are_gone_are_used_again(live: Lives, page: ClockPage) -> None:
    """Threads come and go without end, but the page has room for 8192."""
    live("""
for _ in range(100):
    threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
time.sleep(1)
""")
    assert page._header.used < 20
    assert page.doubts() == ()


@pytest.mark.parametrize(
    ("count", "size"), [(3, 8), (64, 8), (65, 16), (128, 16), (1000, 128)], ids=str
)
def test_a_set_of_descriptors_ends_where_its_count_does(live: Lives, count: int, size: int) -> None:
    """OpenSSH allocates no more than that, so what lies behind the set is not part of it."""
    _, _, found = live(f"""
found = []
for call, time_of in (("select", timespec(600, 0)), ("pselect", timespec(600, 0))):
    sets = [(ctypes.c_ubyte * 256)(*bytes({size}), *b"\\xaa" * (256 - {size})) for _ in range(3)]
    more = [None] if call == "pselect" else []
    ended = getattr(libc, call)({count}, *map(ctypes.byref, sets), ctypes.byref(time_of), *more)
    behind = {{bytes(each)[{size}:] for each in sets}}
    found.append([ended, behind == {{b"\\xaa" * (256 - {size})}}])
""")
    assert found == [[0, True], [0, True]]


def test_the_errors_of_timeouts_are_as_ever(live: Lives) -> None:
    """Nobody sees EINTR."""
    _, _, found = live(
        """
a, b = socket.socketpair()
a.settimeout(600)
found = []
try:
    a.recv(1)
except TimeoutError as error:
    found.append(str(error))
try:
    queue.Queue().get(timeout=600)
except queue.Empty:
    found.append("empty")
async def wait():
    await asyncio.wait_for(asyncio.sleep(3600), 600)
try:
    asyncio.run(wait())
except TimeoutError:
    found.append("asyncio")
"""
    )
    assert found == ["timed out", "empty", "asyncio"]


def test_only_the_wait_that_is_due_ends(live: Lives) -> None:
    """And each at its own time."""
    _, _, found = live(
        """
found, threads = [], []
def nap(seconds):
    time.sleep(seconds)
    found.append(round(time.monotonic() - began))
threads = [threading.Thread(target=nap, args=(each,)) for each in (300, 100, 200)]
[each.start() for each in threads]
[each.join() for each in threads]
"""
    )
    assert found == [100, 200, 300]


def test_what_happens_ends_a_wait_early(live: Lives) -> None:
    """A byte that arrives after 100 s ends a poll of 600 s."""
    monotonic_s, _, found = live(
        """
r, w = os.pipe()
threading.Thread(target=lambda: (time.sleep(100), os.write(w, b"x"))).start()
found = select.select([r], [], [], 600)[0] == [r]
"""
    )
    assert found is True
    assert 100 <= monotonic_s < 105


def test_condition_variables_may_be_destroyed_after_their_wait(live: Lives) -> None:
    """The thread that wakes their waiters never touches one that is gone."""
    monotonic_s, _, found = live(
        """
found = 0
def waits():
    global found
    for _ in range(100):
        memory = ctypes.create_string_buffer(48)
        mutex = ctypes.create_string_buffer(40)
        libc.pthread_mutex_lock(mutex)
        at = time.time() + 10
        until = timespec(int(at), int(at % 1 * 1e9))
        while libc.pthread_cond_timedwait(memory, mutex, ctypes.byref(until)) != errno.ETIMEDOUT:
            pass
        libc.pthread_cond_destroy(memory)
        ctypes.memset(memory, 0xFF, 48)
        found += 1
threads = [threading.Thread(target=waits) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
"""
    )
    assert found == 400
    assert 1000 <= monotonic_s < 1100


STRESS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
struct both { pthread_cond_t condition; pthread_mutex_t mutex; };
static _Atomic int timeouts;
static void *waits(void *unused) {
  for (int i = 0; i < 125; i++) {
    struct both *it = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 10 - until.tv_sec % 10;  /* all threads' waits are due at once */
    pthread_mutex_init(&it->mutex, NULL);
    pthread_cond_init(&it->condition, NULL);
    pthread_mutex_lock(&it->mutex);
    while (pthread_cond_clockwait(&it->condition, &it->mutex, CLOCK_MONOTONIC, &until) == 0) {}
    timeouts++;
    pthread_mutex_unlock(&it->mutex);
    pthread_cond_destroy(&it->condition);
    munmap(it, 4096);
  }
  return unused;
}
int stress(void) {
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, waits, NULL);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  return timeouts;
}
"""


def test_the_memory_of_a_condition_variable_may_be_gone_after_its_wait(
    live: Lives, tmp_path: Path
) -> None:
    """A thousand waits, eight of them due at each jump, and whoever came too late would crash."""
    (tmp_path / "stress.c").write_text(STRESS)
    library = tmp_path / "stress.so"
    assert PreloadedLibrary(tmp_path / "stress.c").build(library) == ""
    _, _, found = live(f"found = ctypes.CDLL({str(library)!r}).stress()")
    assert found == 1000


def test_without_a_page_the_clock_is_the_machines() -> None:
    """The library passes every call on."""
    library = preload_variables(os.environ, [find_clock_library()])
    code = "import time; a = time.monotonic(); time.sleep(0.01); print(time.monotonic() - a)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **library}, capture_output=True, check=True
    )
    assert float(done.stdout) >= 0.01


def test_a_file_that_is_no_page_is_refused(tmp_path: Path) -> None:
    """It may be of another version."""
    (tmp_path / "clock").write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a page of a clock"):
        ClockPage.open(tmp_path / "clock")
