"""Reading native frames of real ranks: right, harmless, and never the cause of a hang."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from runtimes import needs

from pytest_multihost.core.blame import operation_of
from pytest_multihost.core.watch.probes import NativeReader, native_frames, native_threads
from pytest_multihost.testing import Operation

pytest.importorskip("pystack")

PROGRAM = Path(__file__).parents[2] / "unit" / "blame" / "frames" / "hanging_rank.py"
BUDGET_S = 15.0  # the machine may be very busy

Ranks = list["subprocess.Popen[str]"]
Start = Callable[..., Ranks]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start ranks that are about to wait for rank 0; at the end all are killed."""
    started: Ranks = []

    def start(operation: str, size: int, local_devices: int = 1) -> Ranks:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(size):
            place = [str(number) for number in (rank, size, local_devices, port)]
            started.append(_popen([str(PROGRAM), operation, *place]))
        for rank in started:
            assert "ready\n" in iter(lambda rank=rank: rank.stdout.readline(), "")
        return started

    yield start
    for rank in started:
        rank.kill()
        rank.communicate()


def _popen(argv: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _pids(ranks: Ranks) -> dict[int, int]:
    return {rank: process.pid for rank, process in enumerate(ranks)}


def _operations(ranks: Ranks) -> list[Operation | None]:
    look = native_threads(_pids(ranks), budget_s=BUDGET_S)
    assert look.unobserved == ()
    group = tuple(range(len(ranks)))
    return [operation_of(look.threads[rank], group=group, at_s=0) for rank in group]


def _names(ranks: Ranks) -> list[str | None]:
    return [each and each.name for each in _operations(ranks)]


def _await_names(ranks: Ranks, expected: list[str | None]) -> None:
    """Look until the ranks are where they should be: they have said that they are on their way."""
    deadline = time.monotonic() + 60
    while (found := _names(ranks)) != expected:
        assert time.monotonic() < deadline, f"found {found}, expected {expected}"


@pytest.mark.parametrize(
    ("operation", "size", "local_devices", "name"),
    [
        ("psum", 2, 1, "all_reduce"),
        ("psum", 2, 2, "all_reduce"),
        ("psum", 4, 1, "all_reduce"),
        ("psum", 4, 2, "all_reduce"),
        pytest.param("torch_all_reduce", 3, 1, "all_reduce", marks=needs("torch")),
    ],
)
def test_who_waits_for_a_sleeping_rank_is_found_in_the_collective(
    start: Start, operation: str, size: int, local_devices: int, name: str
) -> None:
    """And the one that sleeps is found in none."""
    ranks = start(operation, size, local_devices)
    _await_names(ranks, [None, *[name] * (size - 1)])


def test_ranks_that_compute_are_found_in_nothing(start: Start) -> None:
    """All their threads are at work, and main waits for them."""
    assert _names(start("matmul", 2, 2)) == [None, None]


@pytest.mark.parametrize(
    ("operation", "local_devices"),
    [("psum", 1), ("psum", 2), pytest.param("torch_all_reduce", 1, marks=needs("torch"))],
)
def test_a_world_that_was_read_five_times_goes_on(
    start: Start, operation: str, local_devices: int
) -> None:
    """In the middle of a collective: it ends with the right result in every rank."""
    ranks = start(operation, 2, local_devices)
    for _ in range(5):
        assert len(native_threads(_pids(ranks), budget_s=BUDGET_S).threads) == 2
    results = _let_go(ranks)
    assert len(set(results)) == 1
    expected = {"psum": sum(range(8 * local_devices)), "torch_all_reduce": 6}[operation]
    assert float(results[0]) == expected


def _let_go(ranks: Ranks) -> list[str]:
    """Let rank 0 do its part, and return what each rank has got."""
    assert ranks[0].stdin is not None
    ranks[0].stdin.write("\n")
    ranks[0].stdin.flush()
    lines = [rank.stdout.readline() for rank in ranks if rank.stdout is not None]
    found = [re.match(r"result (\S+) standstill", line) for line in lines]
    assert all(found), lines
    return [match[1] for match in found if match is not None]


SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    """A process of Python that sleeps."""
    with _popen(["-c", SLEEPER]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def _state(pid: int) -> str:
    return str(psutil.Process(pid).status())


def test_a_stopped_rank_is_left_stopped(sleeper: subprocess.Popen[str]) -> None:
    """It is said, and the others are read."""
    with _popen(["-c", SLEEPER]) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        sleeper.send_signal(signal.SIGSTOP)
        while _state(sleeper.pid) != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        look = native_threads({0: other.pid, 1: sleeper.pid}, budget_s=BUDGET_S)
        other.kill()
    assert list(look.threads) == [0]
    assert look.unobserved == ("no native frames of rank 1: stopped",)
    assert _state(sleeper.pid) == psutil.STATUS_STOPPED


def test_a_dead_rank_is_said_to_be_dead(sleeper: subprocess.Popen[str]) -> None:
    """Before anybody has reaped it, and afterwards."""
    sleeper.kill()
    while _state(sleeper.pid) != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    for _ in range(2):
        look = native_threads({3: sleeper.pid, 4: sleeper.pid}, budget_s=BUDGET_S)
        assert look.threads == {}
        assert look.unobserved == ("no native frames of ranks 3,4: already ended",)
        sleeper.wait()


def test_a_rank_in_uninterruptible_sleep_is_left_alone() -> None:
    """Whoever attaches to it waits with it. The parent of a vfork that does not exec is in it."""
    code = (
        f"import ctypes; libc = ctypes.CDLL(None); libc.vfork() or libc.sleep(600) # {os.getpid()}"
    )
    with _popen(["-c", code]) as parent:
        while not (children := psutil.Process(parent.pid).children()):
            time.sleep(0.01)
        began = time.monotonic()
        look = native_threads({0: parent.pid}, budget_s=BUDGET_S)
        children[0].kill()
        parent.kill()
    assert look.unobserved == ("no native frames of rank 0: in uninterruptible sleep",)
    assert time.monotonic() - began < BUDGET_S


@pytest.mark.parametrize("when_s", [0.0, 0.1, 0.2, 0.4])
def test_a_rank_whose_reader_is_killed_runs_on(start: Start, when_s: float) -> None:
    """Whatever the reader has stopped by then; and no reader is left."""
    ranks = start("psum", 2, 2)
    look = native_threads(_pids(ranks), budget_s=when_s / 2)
    assert all("took too long" in text for text in look.unobserved)
    unread = {int(each) for text in look.unobserved for each in re.findall(r"\d", text)}
    assert sorted([*look.threads, *unread]) == [0, 1]
    assert len(set(_let_go(ranks))) == 1
    readers = [each for each in psutil.Process().children() if "native_reader" in str(_argv(each))]
    assert readers == []


def _argv(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_where_nothing_can_read_the_page_says_what_to_install(
    sleeper: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tools are optional."""
    monkeypatch.setattr(native_frames.importlib.util, "find_spec", lambda _: None)
    look = native_threads({0: sleeper.pid})
    assert look.threads == {}
    assert any("pip install pytest-multihost-hangs[stacks]" in text for text in look.unobserved)


def test_a_process_that_is_not_python_is_no_error() -> None:
    """A rank may have become another program, and a pid may be another's by now."""
    with subprocess.Popen(["sleep", "600"]) as process:
        look = native_threads({0: process.pid}, budget_s=BUDGET_S)
        process.kill()
    assert look.unobserved == ()
    assert operation_of(look.threads[0], group=(0,), at_s=0) is None


def test_the_frames_of_an_interpreter_are_read_from_the_innermost_outwards(
    sleeper: subprocess.Popen[str],
) -> None:
    """As far as the function that has started it; both have names where all others are stripped."""
    deadline = time.monotonic() + 60
    while "nanosleep" not in " ".join(symbols := _main_symbols(sleeper.pid)):
        assert time.monotonic() < deadline, symbols  # it has said that it would be
    innermost = next(i for i, each in enumerate(symbols) if "nanosleep" in each)
    assert innermost < symbols.index("Py_BytesMain")


def _main_symbols(pid: int) -> tuple[str, ...]:
    threads = native_threads({0: pid}, budget_s=BUDGET_S).threads[0]
    return next(each.symbols for each in threads if each.thread == pid)


def test_a_reader_that_was_started_before_reads_as_well(start: Start) -> None:
    """It stands by with the symbols of its likely processes, and is used once."""
    ranks = start("psum", 2, 2)
    pids = _pids(ranks)
    reader = NativeReader()
    reader.start(pids.values())
    before = native_threads(pids, budget_s=BUDGET_S, reader=reader)
    again = native_threads(pids, budget_s=BUDGET_S, reader=reader)
    assert before.threads.keys() == again.threads.keys() == pids.keys()


def test_a_reader_that_nobody_asks_is_ended() -> None:
    """Nothing is left of it."""
    others = set(psutil.Process().children())
    reader = NativeReader()
    reader.start()
    children = set(psutil.Process().children()) - others
    reader.close()
    assert children
    assert not children & set(psutil.Process().children())
