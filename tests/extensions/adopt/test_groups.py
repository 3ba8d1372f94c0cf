"""Processes that a test starts and joins run as ranks, and look to the test as they would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.extensions.adopt.joined import why_not_joined

Worlds = Any  # of tests/conftest.py

ARGS = ("--multihost-adopt=spawn", "-pno:randomly")

GROUP = """
import multiprocessing, os, pytest, sys, threading, time
context = multiprocessing.get_context("fork")

def run(fn, *args, timeout=None):
    processes = [context.Process(target=fn, args=(rank, *args)) for rank in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(timeout)
    return processes

def codes(fn, *args):
    return [each.exitcode for each in run(fn, *args)]
"""


@pytest.mark.program(
    GROUP
    + """
def test_queue():
    queue = context.Queue()
    assert codes(lambda rank: queue.put(rank)) == [0, 0]
    assert {queue.get(timeout=60), queue.get(timeout=60)} == {0, 1}

def test_exit():
    assert codes(lambda rank: sys.exit(7 * rank)) == [0, 7]

def test_exits_at_once():
    assert codes(lambda rank: os._exit(3)) == [3, 3]

def test_raise():
    assert codes(lambda rank: 1 // (1 - rank)) == [0, 1]

def test_signal():
    assert codes(lambda rank: rank and os.kill(os.getpid(), 9)) == [0, -9]

def test_others_go_on(tmp_path):
    def fails_or_works(rank):
        if rank:
            sys.exit(3)
        time.sleep(6)
        (tmp_path / "done").touch()
    assert codes(fails_or_works) == [0, 3]
    assert (tmp_path / "done").exists()

def test_own_class():
    class Worker(multiprocessing.get_context("fork").Process):
        def run(self):
            sys.exit(5)
    first, second = Worker(), Worker()
    first.start()
    second.start()
    first.join()
    second.join()
    assert (first.exitcode, second.exitcode) == (5, 5) and first.pid != second.pid

def test_hang_that_the_test_expects():
    barrier = threading.Barrier(2)
    first, second = run(lambda rank: rank and barrier.wait(), timeout=30)
    assert second.is_alive() and second.exitcode is None and first.exitcode == 0
    second.terminate()
    second.join()
    assert not second.is_alive() and second.exitcode == -15
""",
    *ARGS,
)
def test_a_group_looks_as_it_would(worlds: Worlds) -> None:
    """Queues, exit codes, exceptions, signals; a process that fails ends no other one."""
    worlds.run.assert_outcomes(passed=8)
    assert all(each["world_size"] == 2 for each in worlds.all_verdicts)


@pytest.mark.program(
    GROUP
    + """
def test_joins():
    barrier = threading.Barrier(2)
    run(lambda rank: rank and barrier.wait())

def test_has_a_timeout_of_its_own():
    barrier = threading.Barrier(2)
    first, second = run(lambda rank: rank and barrier.wait(), timeout=30)
    assert not second.is_alive()
""",
    *ARGS,
)
def test_a_group_that_hangs_has_a_verdict(worlds: Worlds) -> None:
    """A join without a timeout raises it; a test that has one gets it in its report."""
    worlds.run.assert_outcomes(failed=2)
    worlds.run.stdout.fnmatch_lines(
        ["*HUNG  rank 1 *", "*assert not second.is_alive()*", "*rank 1 *blocked*", "HUNG*", "HUNG*"]
    )


@pytest.mark.program(
    GROUP
    + """
def test_talks():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=lambda: queue.put(os.getpid()))
    process.start()
    assert queue.get(timeout=60) == process.pid
    process.join()

def test_looks():
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    assert process.is_alive()
    time.sleep(1)  # Python forgets a signal that comes while it forks
    process.terminate()
    process.join()
    assert process.exitcode == -15

def test_beside_a_thread():
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="of the user")
    thread.start()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=sys.exit, args=(2,))
    process.start()
    process.join()
    over.set()
    assert process.exitcode == 2
""",
    *ARGS,
)
def test_a_group_that_is_not_joined_at_once_starts_as_before(worlds: Worlds) -> None:
    """The reason is on the terminal at once, and a warning of the test."""
    worlds.run.assert_outcomes(passed=3, warnings=3)
    worlds.run.stdout.fnmatch_lines(
        [
            "multihost: *::test_talks: *wait for them: queue.get(timeout=60)*--multihost-watch*",
            "multihost: *::test_beside_a_thread: *runs in pytest's process: of the user*",
            "*PytestMultihostWarning: *the wait for them: process.is_alive()*",
        ]
    )


JOINED = {
    "loops": "for p in ps:\n    p.start()  # here\nfor p in ps:\n    p.join()",
    "one loop that appends": (
        "for r in range(2):\n    p = Process(target=f)\n    p.start()  # here\n    ps.append(p)\n"
        "for p in ps:\n    p.join(timeout=5)"
    ),
    "comprehensions": "[p.start() for p in ps]  # here\n[p.join() for p in ps]",
    "a try": "try:\n    p.start()  # here\n    p.join()\nfinally:\n    clean()",
}
NOT_JOINED = {
    "a queue": "p.start()  # here\nq.get()\np.join()",
    "a loop": "for p in ps:\n    wait_for(port)\n    p.start()  # here\np.join()",
    "a context": "with server():\n    p.start()  # here\np.join()",
    "no join": "p.start()  # here",
    "a text": "p.start()  # here\nx = sep.join(names)\np.join()",
    "a return": "p.start()  # here\nreturn p",
}


def _lines(body: str) -> tuple[str, int]:
    lines = ["def test():", *(f"    {line}" for line in body.splitlines())]
    return "\n".join(lines), 1 + next(i for i, line in enumerate(lines) if "# here" in line)


@pytest.mark.unit
@pytest.mark.parametrize("body", JOINED.values(), ids=JOINED)
def test_a_start_is_joined_if_nothing_comes_between(body: str, tmp_path: Path) -> None:
    """In the shapes that suites have."""
    text, line = _lines(body)
    (tmp_path / "test_it.py").write_text(text)
    assert why_not_joined(str(tmp_path / "test_it.py"), line) == ""


@pytest.mark.unit
@pytest.mark.parametrize("body", NOT_JOINED.values(), ids=NOT_JOINED)
def test_a_start_is_not_joined_if_something_comes_between(body: str, tmp_path: Path) -> None:
    """What the test may want of processes that run; and what cannot be read."""
    text, line = _lines(body)
    (tmp_path / "test_it.py").write_text(text)
    assert why_not_joined(str(tmp_path / "test_it.py"), line)
    assert why_not_joined(str(tmp_path / "none.py"), 1)
