"""When a held rank may go on, from looks at a real rank that is ready or only seems to be."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.watch import WorldObserver
from pytest_multihost.extensions.faults.held_ranks import MAX_S, HeldRanks
from pytest_multihost.testing import Event, FaultChanged, Hold
from pytest_multihost.testing import now as clock

pytestmark = pytest.mark.processes

OTHER = 1
ROUNDS = 4

PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
from pytest_multihost.core.slots import SlotPage, slots_path
page = SlotPage.create(slots_path(sys.argv[1], 1))
call = page.call("all_reduce", "collective", page.group((0, 1)))
done = Path(sys.argv[1], "done")
def begin():
    return page.begin(call, time.monotonic_ns(), os.getpid(), (0, 0, 0))
def end(record):
    page.end(record, time.monotonic_ns())
def wait_for_ever():
    begin()
    os.read(os.pipe()[0], 1)
"""

Start = Callable[[str, Path], RankFacts]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program that is rank 1 of the world in a folder, and ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(source: str, folder: Path) -> RankFacts:
        program = PRELUDE + textwrap.dedent(source)
        process = subprocess.Popen([sys.executable, "-c", program, str(folder)])
        started.append(process)
        return RankFacts(OTHER, pid=process.pid)

    yield start
    for each in started:
        each.kill()
        each.wait()


def reason_to_go_on(folder: Path, other: RankFacts) -> str:
    """Return why rank 0, which is held, may go on; it is asked as often as the engine asks."""
    held = HeldRanks(WorldObserver(folder, 2))
    hold = FaultChanged(index=0, fault="hold", phase="begun", hold=Hold())
    held.note(Event(clock(), 0, hold))
    facts = [RankFacts(0), other]
    while not (due := held.due(clock(), facts, clock() + 10 * MAX_S)):
        time.sleep(held.interval_s)
    return due[0].reason


def test_a_rank_that_waits_in_an_operation_is_seen_to(tmp_path: Path, start: Start) -> None:
    """Whatever it has done before."""
    assert (
        reason_to_go_on(tmp_path, start("done.touch(); wait_for_ever()", tmp_path)) == "others wait"
    )
    assert (tmp_path / "done").exists()


LATER = {
    "is about to leave an operation": """
        record = begin()
        time.sleep(0.1)  # until it looks again whether it may go on
        end(record)
        time.sleep(0.02)
        done.touch()
        wait_for_ever()
    """,
    "runs between two operations": """
        for _ in range(100):
            end(begin())
            sum(range(20_000))
            time.sleep(0.001)
        done.touch()
        wait_for_ever()
    """,
    "hands its work to another thread": """
        record = begin()
        def work():
            sum(range(10_000_000))
            done.touch()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        end(record)
        wait_for_ever()
    """,
}


@pytest.mark.parametrize("name", LATER)
def test_a_rank_that_will_move_is_waited_for(tmp_path: Path, start: Start, name: str) -> None:
    """It looks ready each time when its page says so and it happens to be asleep."""
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert reason_to_go_on(folder, start(LATER[name], folder)) == "others wait"
        assert (folder / "done").exists()


def test_a_rank_that_looks_in_an_operation_for_what_does_not_come_waits(
    tmp_path: Path, start: Start
) -> None:
    """It has looked while nobody did anything."""
    other = start("begin()\nwhile not done.exists(): time.sleep(0.02)", tmp_path)
    assert reason_to_go_on(tmp_path, other) == "others wait"
