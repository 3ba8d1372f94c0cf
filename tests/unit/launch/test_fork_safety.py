"""Which threads forbid a fork for a call."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
from types import FrameType, ModuleType

import pytest

from pytest_multihost.core.launch.server.fork_safety import (
    call_fork_problems,
    is_idle_neighbour,
)

pytestmark = pytest.mark.unit


def frame(module: str, function: str) -> FrameType:
    """Return a frame of a function of a module."""
    home = ModuleType(module)
    exec(  # noqa: S102 - a frame has the names of its code
        f"import sys\ndef {function}(): return sys._getframe()", vars(home)
    )
    found: FrameType = vars(home)[function]()
    return found


ACCEPTS = [frame("socket", "accept"), frame("pytest_rerunfailures", "run_server")]
RUN = frame("threading", "run")


def test_a_plugins_thread_that_accepts_is_harmless() -> None:
    """pytest-rerunfailures beside xdist; execnet's receiver; a timer of pytest-timeout."""
    assert is_idle_neighbour(threading.Thread(), [*ACCEPTS, RUN])
    assert is_idle_neighbour(None, [frame("execnet.gateway_base", "read")])
    timer = threading.Timer(1, frame)  # of this module
    assert not is_idle_neighbour(timer, [frame("threading", "wait"), RUN])


@pytest.mark.parametrize(
    "frames",
    [
        [frame("socket", "accept"), frame("my_server", "run_server"), RUN],
        [*ACCEPTS, frame("my_plugin", "run"), RUN],
        [frame("pytest_rerunfailures", "run_server"), RUN],
        [frame("socket", "accept"), RUN],
        [],
    ],
    ids=["another's", "called by another", "works", "nobody's", "unknown"],
)
def test_any_other_thread_is_not(frames: list[FrameType]) -> None:
    """It must wait, and be a known plugin's alone."""
    assert not is_idle_neighbour(threading.Thread(), frames)


def test_a_problem_names_the_thread_and_its_place() -> None:
    """The user can find it."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="of the user")
    thread.start()
    [problem] = call_fork_problems()
    over.set()
    thread.join()
    assert "of the user, in " in problem
    assert "threading.py:" in problem


FORKS = """
import ctypes, os, threading, time
from pytest_multihost.core.launch.server.fork_safety import clear_stacks

def remains(ident):
    page = ident // 4096 * 4096
    return any(ctypes.string_at(page - 4 * 4096, 4 * 4096))

threads = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(3)]
for each in threads:
    each.start()
idents = [each.ident for each in threads]
for each in threads:
    each.join()
assert all(map(remains, idents)), "nothing to clear"
pid = os.fork()
if pid == 0:
    clear_stacks([])
    is_clear = not any(map(remains, idents))
    again = threading.Thread(target=int)
    again.start()
    again.join()
    os._exit(is_clear)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="ended threads are not found there")
def test_a_forked_child_gets_no_remains_of_ended_threads() -> None:
    """Its next threads get their stacks, as after the dumps of a hang, and run as usual."""
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "1"
