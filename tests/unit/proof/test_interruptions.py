"""What a wait is after a stop, and which waits end if their thread is stopped or signalled."""

from __future__ import annotations

from functools import partial

import builders
import pytest

from pytest_multihost.core.proof.runtime_threads import (
    caller_of,
    has_gloo_timeout,
    is_ended_by_signal,
    is_ended_by_stop,
    is_runtime_thread,
    profiler_of,
)
from pytest_multihost.core.proof.system_calls import SystemCall, restarted_call
from pytest_multihost.core.torch_private import PROFILERS

thread = partial(builders.thread, tid=7, args=(0,) * 6)
TORCH = "/site-packages/torch/lib/libtorch_cpu.so"
LIBC = "/usr/lib/libc.so.6"
CTYPES = "/usr/lib/libffi.so.8"


@pytest.mark.parametrize(
    ("wchan", "first", "name"),
    [
        ("futex_do_wait", 0x7F00, "futex"),
        ("futex_wait_queue_me", 0x7F00, "futex"),
        ("poll_schedule_timeout.constprop.0", 0x7F00, "poll"),
        ("hrtimer_nanosleep", 1, "clock_nanosleep"),
        ("do_nanosleep", 0x7F00_0000, "nanosleep"),
        ("0", 1, "restart_syscall"),
        ("", 1, "restart_syscall"),
    ],
)
def test_a_restarted_call_is_known_by_the_kernels_function(
    wchan: str, first: int, name: str
) -> None:
    """If the kernel does not show it, the call stays unknown."""
    assert restarted_call(wchan, (first, 0, 0, 0, 0, 0)) == name


def test_a_restarted_wait_keeps_its_absolute_end() -> None:
    """The registers still point to it."""
    call = SystemCall("futex", (0x7F00, 0x189, 0, 0x7F10, 0, 0xFFFFFFFF), is_restarted=True)
    assert (call.timeout.kind, call.timeout.address) == ("realtime", 0x7F10)


@pytest.mark.parametrize("call", ["epoll_wait", "semop", "clock_nanosleep", "pselect6", "msgrcv"])
def test_native_code_does_not_wait_again(call: str) -> None:
    """A signal ends its wait, so its stacks are taken without one."""
    assert is_ended_by_signal(thread(call, caller=CTYPES))
    assert is_ended_by_signal(thread(call))  # whose it is, is not known


@pytest.mark.parametrize(
    "caller",
    [
        "/usr/bin/python3.11",
        "/usr/lib/python3.11/lib-dynload/select.cpython-311-x86_64-linux-gnu.so",
        "/site-packages/uvloop/loop.cpython-311-x86_64-linux-gnu.so",
        TORCH,
    ],
)
def test_python_and_the_runtimes_wait_again(caller: str) -> None:
    """They look like native code that would go on, and are asked as always."""
    assert not is_ended_by_signal(thread("epoll_wait", caller=caller))


def test_a_stop_ends_fewer_waits_than_a_signal() -> None:
    """A timer and select(2) go on after a stop."""
    assert is_ended_by_stop(thread("semop", caller=CTYPES))
    assert not is_ended_by_stop(thread("clock_nanosleep", caller=CTYPES))
    assert not is_ended_by_signal(thread("futex", caller=CTYPES))


def test_the_caller_is_behind_the_c_library() -> None:
    """The innermost file that is no library of the system."""
    assert caller_of([(LIBC, 5), (CTYPES, 6), ("/usr/bin/python3", 7)]) == CTYPES
    assert caller_of([(LIBC, 5)]) == ""


def test_a_thread_of_the_profiler_is_not_gloos() -> None:
    """It waits with a timeout in torch's library, as a thread of gloo's does."""
    gloos = thread(code=(TORCH, LIBC), ends_s=130.0)
    assert has_gloo_timeout(gloos)
    profilers = thread(code=(TORCH, LIBC), ends_s=130.0, function=PROFILERS[0])
    assert not has_gloo_timeout(profilers)


def test_a_remain_of_python_does_not_make_the_profilers_thread_one_of_python() -> None:
    """The function in which it waits says whose it is; a thread of Python waits in none of them."""
    code = (LIBC, "/usr/lib/libpython3.11.so.1.0", TORCH)
    assert is_runtime_thread(thread(code=code, ends_s=130.0, function=PROFILERS[0]))
    assert not is_runtime_thread(thread(code=code, ends_s=130.0))


def test_the_profiler_is_known_by_the_innermost_function_of_torch() -> None:
    """Words further out may be remains of ended frames."""

    def exported(path: str, _name: str) -> range:
        return range(100, 200) if path == TORCH else range(0)

    assert profiler_of([(LIBC, 5), (TORCH, 150)], exported) == PROFILERS[0]
    assert profiler_of([(LIBC, 5), (TORCH, 50), (TORCH, 150)], exported) == ""
    assert profiler_of([("/usr/bin/python3", 150), (TORCH, 150)], exported) == ""
