"""What is seen of ranks when a world is ended, whatever state they are in."""

from __future__ import annotations

import pytest

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


def test_tasks_of_asyncio_are_told_with_what_they_await(run_worlds) -> None:
    """On the stack there is only the event loop."""
    worlds = run_worlds(
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
    assert "task of rank 0: reader: load test_worlds.py:4 → Queue.get" in worlds.stdout


def test_a_dead_rank_is_no_reason_to_wait(run_worlds) -> None:
    """Its stack is gone; those of the others are there."""
    worlds = run_worlds(
        """
        import os, pytest, threading

        @pytest.mark.multihost(ranks=3, timeout=60)
        def test_it(world):
            if world.rank == 1:
                os._exit(4)
            threading.Event().wait()
        """
    )
    verdict = worlds.verdicts["test_it"]
    assert (verdict["outcome"], verdict["diagnosis"]["culprits"]) == ("crashed", [1])
    assert [group["ranks"] for group in verdict["diagnosis"]["groups"]] == [[0, 2]]
