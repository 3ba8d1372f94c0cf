"""What a thread does, in one word and for the reader, from hand-made facts."""

from __future__ import annotations

from functools import partial

import builders
import pytest

from pytest_multihost.core.proof.system_calls import CALLS, SystemCall
from pytest_multihost.core.proof.threads import label, main_labels
from pytest_multihost.testing import Activity, KernelSnapshot, Process, Thread

thread = partial(builders.thread, tid=7, args=(0,) * 6)
"""A thread that waits without a limit."""


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (None, ("EXITED", "has ended")),
        (thread(state="Z"), ("EXITED", "has ended")),
        (thread(state="T"), ("STOPPED", "stopped")),
        (thread(state="t"), ("STOPPED", "held by a tracer")),
        (thread("vfork", state="D"), ("DISK", "vfork")),
        (thread("", state="D", wchan="io_schedule"), ("DISK", "io_schedule")),
        (thread(state="R"), ("RUNNING", "uses a processor")),
        (thread("running"), ("RUNNING", "uses a processor")),
        (thread(), ("BLOCKED", "a lock")),
        (thread(ends_s=160.0), ("BLOCKED", "a lock for another 60.0 s")),
        (thread("clock_nanosleep", ends_s=700.0), ("SLEEPING", "sleep for another 600.0 s")),
        (thread("pselect6", fds=(), ends_s=101.0), ("SLEEPING", "sleep for another 1.0 s")),
        (thread("read", target="/data/ckpt"), ("IO", "read(/data/ckpt)")),
        (thread("openat", target="/a", ends_s=None), ("IO", "openat(/a) for some time")),
        (thread("write", target="pipe:[5]"), ("IO", "write(pipe:[5])")),
        (thread("fsync", target="/data/ckpt"), ("IO", "fsync(/data/ckpt)")),
        (thread("wait4", target="child 4711: sleep"), ("CHILD", "wait4(child 4711: sleep)")),
        (thread("", ends_s=None, wchan="do_wait"), ("BLOCKED", "do_wait for some time")),
    ],
)  # fmt: skip
def test_a_thread_is_labelled(now: Thread | None, expected: tuple[str, str]) -> None:
    """One word, and a phrase."""
    word, activity = label(None, now, at_s=100.0)
    assert (word, str(activity)) == expected


@pytest.mark.parametrize("target", ["socket:[5]", "anon_inode:[eventfd]"])
def test_a_read_that_touches_no_file_is_a_wait(target: str) -> None:
    """It looks like a file access, and is a message from another thread or process."""
    assert label(None, thread("read", target=target), at_s=0)[0] == "BLOCKED"


def test_a_poll_of_something_with_a_limit_is_no_sleep() -> None:
    """It looks like one, and waits for what it polls."""
    assert label(None, thread("poll", fds=(3,), ends_s=101.0), at_s=100.0)[0] == "BLOCKED"


@pytest.mark.parametrize(
    ("used_s", "tid", "expected"), [(0.6, 7, "RUNNING"), (0.4, 7, "BLOCKED"), (0.6, 8, "BLOCKED")]
)
def test_a_thread_that_mostly_runs_is_running(used_s: float, tid: int, expected: str) -> None:
    """Even where it waits for a moment; but not for what another thread of that number used."""
    before = thread(tid=tid, cpu_ns=1)
    now = thread(cpu_ns=1 + int(used_s * 1e9))
    assert label(before, now, at_s=0, elapsed_s=1.0)[0] == expected


def test_main_threads_are_labelled_by_rank() -> None:
    """Threads beside them, and children, do not count."""
    child = Process(pid=9, rank=1, is_rank=False, threads=(thread(state="R"),))
    ranks = [Process(pid=rank, rank=rank, threads=(thread(),)) for rank in (0, 1)]
    found = main_labels(None, KernelSnapshot(at_s=0, processes=(*ranks, child)))
    assert found == dict.fromkeys((0, 1), ("BLOCKED", Activity("futex")))


@pytest.mark.parametrize(
    ("call", "args", "expected"),
    [
        ("futex", (1, 0x189, 0, 0), ("none", None, 0)),
        ("futex", (1, 0x189, 0, 50), ("realtime", None, 50)),
        ("futex", (1, 0x89, 0, 50), ("monotonic", None, 50)),
        ("futex", (1, 0x80, 0, 50), ("relative", None, 50)),
        ("futex", (1, 0x86, 0, 50), ("realtime", None, 50)),  # a lock with priority inheritance
        ("futex", (1, 0x81, 0, 50), ("unknown", None, 0)),  # a wake does not wait
        ("poll", (1, 1, 600_000), ("relative", 600_000, 0)),
        ("poll", (1, 1, 0xFFFFFFFF), ("none", None, 0)),
        ("poll", (1, 1, 0xFFFFFFFFFFFFFFFF), ("none", None, 0)),
        ("epoll_wait", (3, 1, 1, 0xFFFFFFFF), ("none", None, 0)),
        ("epoll_pwait2", (3, 1, 1, 0), ("none", None, 0)),
        ("clock_nanosleep", (1, 1, 50), ("monotonic", None, 50)),
        ("clock_nanosleep", (0, 0, 50), ("relative", None, 50)),
        ("clock_nanosleep", (2, 1, 50), ("unknown", None, 0)),  # of a process's own time
        ("nanosleep", (50,), ("relative", None, 50)),
        ("pselect6", (0, 0, 0, 0, 50), ("relative", None, 50)),
        ("read", (3,), ("none", None, 0)),
        ("restart_syscall", (), ("unknown", None, 0)),
        ("call 999", (), ("unknown", None, 0)),
    ],
)  # fmt: skip
def test_the_limit_of_a_wait_is_found_in_its_arguments(
    call: str, args: tuple[int, ...], expected: tuple[str, int | None, int]
) -> None:
    """Or it is said that it is not known."""
    found = SystemCall(call, (*args, 0, 0, 0, 0, 0, 0)[:6]).timeout
    assert (found.kind, found.milliseconds, found.address) == expected


def test_a_call_without_its_arguments_has_an_unknown_limit() -> None:
    """They can be unreadable while the name is not."""
    assert SystemCall("futex", ()).timeout.kind == "unknown"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_wait_that_matters_has_a_number(machine: str) -> None:
    """A name that is misspelled would make such waits unknown for ever."""
    names = set(CALLS[machine].values())
    assert names >= {"futex", "clock_nanosleep", "read", "epoll_pwait", "wait4", "ppoll", "flock"}
    assert names <= set(CALLS["x86_64"].values())


def test_main_threads_are_labelled_by_what_they_did_since_the_last_snapshot() -> None:
    """How much they ran in that time, and when their waits end after the second."""
    used = thread(cpu_ns=600_000_000)
    asleep = thread("clock_nanosleep", ends_s=105.0)
    was, now = (
        KernelSnapshot(
            at_s=at_s,
            processes=tuple(
                Process(pid=rank, rank=rank, threads=each and (each,))
                for rank, each in enumerate(mains)
            ),
        )
        for at_s, mains in ((100.0, (thread(), asleep)), (101.0, (used, asleep, used, ())))
    )
    assert main_labels(was, now) == {
        0: ("RUNNING", Activity("uses a processor")),
        1: ("SLEEPING", Activity("sleep", ends_in_s=4.0)),
        2: ("BLOCKED", Activity("futex")),  # it was not there before
        3: ("EXITED", Activity("has ended")),
    }


def test_a_thread_of_which_nothing_is_known_waits() -> None:
    """A wait of unknown length that has ended meanwhile has no time left."""
    assert str(label(None, thread(""), at_s=100.0)[1]) == "waits"
    late = label(None, thread("pause", ends_s=99.0), at_s=100.0)[1]
    assert str(late) == "pause for another 0.0 s"
