"""What a rank records of its calls and of its clocks."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.slots import SlotPage
from pytest_multihost.extensions.sweep.local_decisions.facts import (
    RECORD_NAME,
    SeenByRank,
    SeenCall,
)
from pytest_multihost.extensions.sweep.local_decisions.in_rank import Watch
from pytest_multihost.extensions.sweep.local_decisions.service import read_records

SOURCE = """
from __future__ import annotations
import math, os, random, time
from time import monotonic

LIMIT_S, LOSSES, OTHERS = 30.0, [0.5, 0.25], [1.5]

def is_worse():
    return LOSSES[-1] > LOSSES[-2]

def find(key) -> int | None:
    return None

def draws(chance):
    return chance.random() < 0.5

def fails():
    raise OSError("gone")

def is_debugging():
    return os.environ.get("DEBUGGING") == "1"

def is_lucky():
    return random.random() < 0.5

def is_there(path):
    return os.path.exists(path)

def is_late(begun):
    return time.monotonic() - begun > LIMIT_S

def meets(recorder):
    recorder.notify("all_reduce", "collective")

def rows():
    yield 1

class Stopper:
    def __init__(self, loss):
        self.loss, self.rank = loss, 0

    def is_primary(self):
        return self.rank == 0

    def should_stop(self):
        return self.loss > 3

def measures():
    begun = monotonic()
    if time.perf_counter() - begun > 5:
        return
    elapsed = time.time() - begun
    assert elapsed > 0
    assert not is_late(begun)
"""

Recorded = Callable[..., SeenByRank]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's."""
    (tmp_path / "code_of_the_user.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("code_of_the_user")
    del sys.modules["code_of_the_user"]


@pytest.fixture
def recorder() -> Recorder:
    """The recorder of operations of a rank."""
    return Recorder(SlotPage(), rank=0, size=2)


@pytest.fixture
def recorded(tmp_path: Path, recorder: Recorder, user: ModuleType) -> Recorded:
    """Return what is recorded while a function runs, which gets the user's module."""

    def record(run: Callable[[ModuleType], object]) -> SeenByRank:
        watch = Watch(str(tmp_path), tmp_path / f"{RECORD_NAME}-0", lambda: recorder)
        watch.begin()
        try:
            run(user)
        finally:
            watch.end()
        return read_records(tmp_path, [0])[0]

    return record


def call_of(record: SeenByRank) -> SeenCall:
    """Return the only call of a user's function."""
    [found] = [each for each in record.calls if each.target.startswith("code_of_the_user")]
    return found


def test_a_call_has_the_values_that_its_code_names(user: ModuleType, recorded: Recorded) -> None:
    """Global variables, and attributes of arguments; others decide nothing."""
    seen = call_of(recorded(lambda user: user.is_worse()))
    assert (seen.target, seen.nth) == ("code_of_the_user:is_worse", 1)
    assert (seen.result.sort, seen.result.text) == ("truth", "False")
    assert [(each.sort, each.is_measured) for each in seen.inputs] == [("list", True)]
    stopper = user.Stopper(0.5)
    [seen] = call_of(recorded(lambda _: stopper.should_stop())).inputs
    assert (seen.text, seen.is_measured) == ("0.5", True)
    [seen] = call_of(recorded(lambda _: stopper.is_primary())).inputs
    assert (seen.text, seen.is_measured) == ("0", False)
    [seen] = call_of(recorded(lambda user: user.draws(random.Random(1)))).inputs
    assert seen.sort == "generator"


def test_a_call_has_its_line(user: ModuleType, recorded: Recorded) -> None:
    """The user's innermost one."""
    seen = call_of(recorded(lambda user: user.find("key")))
    assert seen.at is not None
    assert seen.at.source == 'seen = call_of(recorded(lambda user: user.find("key")))'
    assert seen.result.sort == "none"
    assert seen.may_be_none


def test_a_call_has_what_it_reads(
    user: ModuleType, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that are no launcher's, random numbers, files, clocks."""
    assert call_of(recorded(lambda user: user.is_debugging())).reads == {"environment"}
    drawn = call_of(recorded(lambda user: user.is_lucky()))
    assert drawn.reads == {"random"}
    assert drawn.drawn
    file = str(tmp_path / "stop")
    asked = call_of(recorded(lambda user: user.is_there(file)))
    assert (asked.reads, asked.asked) == ({"file"}, (file,))
    assert call_of(recorded(lambda user: user.is_late(0.0))).reads == {"clock"}
    monkeypatch.setenv("RANK", "0")
    assert user.os.environ["RANK"] == "0"


def test_operations_within_a_call_are_counted(
    user: ModuleType, recorded: Recorded, recorder: Recorder
) -> None:
    """A function that performs some agrees with other ranks."""
    assert call_of(recorded(lambda user: user.meets(recorder))).performed == 1
    assert recorder.on_begin == []


def test_a_call_that_raises_counts_and_has_no_result(user: ModuleType, recorded: Recorded) -> None:
    """As at a point at a call."""

    def run(user: ModuleType) -> None:
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                user.fails()

    assert recorded(run).calls == ()


def test_of_many_calls_the_first_are_recorded_and_then_ever_fewer(
    user: ModuleType, recorded: Recorded
) -> None:
    """A function that is called again and again costs little."""

    def run(user: ModuleType) -> None:
        for _ in range(1_000):
            user.is_worse()

    numbers = [each.nth for each in recorded(run).calls]
    assert numbers == [*range(1, 25), 32, 64, 128, 256, 512]


def test_everything_is_put_back(user: ModuleType, recorded: Recorded) -> None:
    """Functions, clocks, random numbers, also where they were imported by name."""
    before = {name: vars(user)[name] for name in ("is_worse", "monotonic")}
    clocks, draws = vars(user.time).copy(), user.random.random
    method = user.Stopper.should_stop
    recorded(lambda user: user.is_worse())
    assert {name: vars(user)[name] for name in before} == before
    assert (vars(user.time), user.random.random) == (clocks, draws)
    assert user.Stopper.should_stop is method
    assert next(user.rows()) == 1


def test_lines_that_read_clocks_are_recorded_except_for_assertions(
    user: ModuleType, recorded: Recorded
) -> None:
    """Whether the time is asserted at once, by name, or by what a function returns."""
    reads = recorded(lambda user: user.measures()).clock_reads
    assert [(each.at.source, each.first, each.last) for each in reads] == [
        ("begun = monotonic()", 1, 1),
        ("if time.perf_counter() - begun > 5:", 2, 2),
    ]


def test_a_rank_that_has_written_no_record_has_seen_nothing(tmp_path: Path) -> None:
    """As one that has failed, or whose file was cut off."""
    (tmp_path / f"{RECORD_NAME}-1").write_text('{"calls": [')
    assert read_records(tmp_path, range(2)) == {}
