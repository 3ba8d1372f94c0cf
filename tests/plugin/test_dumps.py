"""What is seen of ranks when a world is ended, whatever state they are in."""

from __future__ import annotations

import subprocess

import pytest

from pytest_multihost.core.slots import dump_signal, py_spy_command

HEAD = """
import asyncio, ctypes, os, pytest, signal, sys, threading, time

@pytest.mark.multihost(ranks=2, timeout={timeout})
def test_it(world):
    if world.rank == 0:
{body}
    world.barrier()
"""

BODIES = {
    "120 threads": (
        60,
        """
        for _ in range(120):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        threading.Event().wait()  # here
        """,
        "threading.Event().wait()  # here",
    ),
    "the interpreter held": (
        60,
        """
        ctypes.PyDLL(None).sleep(600)  # here
        """,
        "ctypes.PyDLL(None).sleep(600)  # here",
    ),
    "the middle of an import": (
        60,
        """
        sys.path.insert(0, os.getcwd())
        import endless  # here
        """,
        "threading.Event().wait()  # in the import",
    ),
    "stopped": (
        60,
        """
        os.kill(os.getpid(), signal.SIGSTOP)  # here
        """,
        "os.kill(os.getpid(), signal.SIGSTOP)  # here",
    ),
    "spinning": (
        4,
        """
        while True: sum(range(100))  # here
        """,
        "while True: sum(range(100))  # here",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_rank_shows_its_line_in(run_worlds, pytester: pytest.Pytester, name: str) -> None:
    """It is the culprit in every case, and the others wait for it."""
    pytester.makepyfile(endless="import threading\nthreading.Event().wait()  # in the import\n")
    timeout, body, line = BODIES[name]
    worlds = run_worlds(HEAD.format(timeout=timeout, body=body))
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["culprits"], diagnosis["waiting"]) == ([0], [1])
    assert diagnosis["where"]["source"] == line


RESETS = {
    "by signal": """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        """,
    "as Lightning does": """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            handler = signal.getsignal(number)
            if handler is not None:
                signal.signal(number, handler)
        """,
    "by faulthandler": """
        import faulthandler
        faulthandler.disable()
        for number in (signal.SIGURG, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
            faulthandler.unregister(number)
        """,
    "by handlers of its own": """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, lambda *_: None)
        """,
    "by ignoring": """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        """,
    "by blocking": """
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        """,
    "by another program": """
        code = "import time\\nwhile True: time.sleep(600)  # here"
        open("program.py", "w").write(code)
        os.set_inheritable(3, True)
        os.execv(sys.executable, [sys.executable, "program.py"])
        """,
}


@pytest.mark.skipif(not py_spy_command(), reason="reads stacks by py-spy")
@pytest.mark.parametrize("how", RESETS)
def test_a_rank_that_has_lost_its_handlers_shows_its_line(run_worlds, how: str) -> None:
    """It is asked for nothing that would end it, and its stack is read from outside."""
    body = RESETS[how] + "threading.Event().wait()  # here\n"
    worlds = run_worlds(HEAD.format(timeout=5, body=body))
    verdict = worlds.verdicts["test_it"]
    assert verdict["outcome"] == "hung"
    assert verdict["diagnosis"]["culprits"] == [0]
    assert verdict["diagnosis"]["where"]["source"].endswith("# here")


def test_a_rank_that_has_become_another_program_is_the_culprit_without_a_line(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """Nothing can read Python's stacks in it; why not is in its file."""
    become = """        os.set_inheritable(3, True)
        os.execv("/bin/sleep", ["sleep", "600"])
    """
    worlds = run_worlds(HEAD.format(timeout=60, body=become))
    verdict = worlds.verdicts["test_it"]
    assert (verdict["outcome"], verdict["diagnosis"]["culprits"]) == ("hung", [0])
    assert next(pytester.path.glob("**/rank-0.stacks")).read_text()


def test_the_signal_for_stacks_ends_nobody_who_does_not_handle_it() -> None:
    """A rank may reset its handler between the look at it and the signal."""
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        sleeper.send_signal(dump_signal("threads"))
        with pytest.raises(subprocess.TimeoutExpired):
            sleeper.wait(0.5)
        sleeper.kill()


@pytest.mark.program(
    """
    import asyncio, pytest

    async def load(queue):
        return await queue.get()

    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(load(asyncio.Queue()), name="reader")

    @pytest.mark.multihost(ranks=2, timeout=60)
    def test_it(world):
        if world.rank == 0:
            asyncio.run(main())
        world.barrier()
    """
)
def test_tasks_of_asyncio_are_told_with_what_they_await(worlds) -> None:
    """On the stack there is only the event loop."""
    assert "task of rank 0: reader: load test_worlds.py:4 → Queue.get" in worlds.stdout


@pytest.mark.program(
    """
    import asyncio, pytest

    async def outputs():
        raise IndexError("no such request")

    async def handle(arrived):
        await arrived.wait()  # here

    async def main():
        output = asyncio.create_task(outputs(), name="outputs")
        handler = asyncio.create_task(handle(asyncio.Event()), name="handler")
        await asyncio.wait([handler])

    @pytest.mark.multihost(ranks=2, timeout=60)
    def test_it(world):
        if world.rank == 0:
            asyncio.run(main())
        world.barrier()
    """
)
def test_the_line_of_the_task_that_waits_is_shown_and_a_task_that_failed(worlds) -> None:
    """Not the line that runs the event loop; nobody has fetched the exception."""
    found = worlds.verdicts["test_it"]["diagnosis"]
    assert found["where"]["source"] == "await arrived.wait()  # here"
    failed = "task outputs ended with IndexError: no such request, and no code has retrieved it"
    assert f"rank 0: {failed}" in found["notes"]


@pytest.mark.program(
    """
    import os, pytest, threading

    @pytest.mark.multihost(ranks=3, timeout=60)
    def test_it(world):
        if world.rank == 1:
            os._exit(4)
        threading.Event().wait()
    """
)
def test_a_dead_rank_is_no_reason_to_wait(worlds) -> None:
    """Its stack is gone; those of the others are there."""
    verdict = worlds.verdicts["test_it"]
    assert (verdict["outcome"], verdict["diagnosis"]["culprits"]) == ("crashed", [1])
    assert [group["ranks"] for group in verdict["diagnosis"]["groups"]] == [[0, 2]]
