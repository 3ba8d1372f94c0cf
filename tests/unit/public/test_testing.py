"""The fakes that we offer: their example, and what the tests of the engine rely on."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from pytest_multihost import testing
from pytest_multihost.core.launch import WireFrame
from pytest_multihost.testing import Frame as StackFrame
from pytest_multihost.testing import ManualClock, Release, ScriptedLauncher, Step, exited, make_spec

NOWHERE = Path("/nonexistent")


def started(*script: Step, size: int = 2, at_s: float = 100.0) -> ScriptedLauncher:
    """Return a scripted world that has been started."""
    launcher = ScriptedLauncher(ManualClock(at_s), script)
    return launcher.start(make_spec(size), directory=NOWHERE, scratch=NOWHERE)


def test_the_example_works() -> None:
    """What the docstring shows is what happens."""
    results = doctest.testmod(testing)
    assert results.attempted > 5
    assert results.failed == 0


def test_time_passes_only_up_to_the_next_event() -> None:
    """As in a real world, a waiter is woken when something happens."""
    world = started(Step(0, "ready", after_s=0.5), Step(1, "ready", after_s=0.5))
    assert [event.at_s for event in world.wait(10.0)] == [100.5, 100.5]
    assert world.clock.now() == 100.5


def test_time_passes_only_up_to_the_timeout() -> None:
    """And then nothing has happened."""
    world = started(Step(0, "ready", after_s=0.5))
    assert world.wait(0.25) == []
    assert world.clock.now() == 100.25


def test_a_rank_does_what_it_does_on_being_told() -> None:
    """Nothing before, and nothing when another rank is told."""
    world = started(Step(0, "parked", after_s=1.0, on="go"))
    world.send(1, WireFrame(Release("go")))
    assert world.wait(5.0) == []
    world.send(0, WireFrame(Release("go")))
    assert [event.at_s for event in world.wait(5.0)] == [106.0]


def test_a_rank_that_has_exited_does_nothing_more() -> None:
    """Not even what was under way."""
    world = started(Step(0, "exited", exited(signal=9)), Step(0, "report", after_s=1.0))
    assert [event.kind for event in world.wait(5.0)] == ["exited"]
    assert world.wait(5.0) == []


def test_ending_finds_every_rank_that_is_left() -> None:
    """Each once, and none when it is ended again."""
    world = started(Step(0, "exited", exited()))
    world.wait(1.0)
    ending = world.end(grace_s=0.5)
    assert [
        (event.rank, event.record(origin_s=0.0)["detail"]["signal"]) for event in ending.events
    ] == [(1, 15)]
    assert world.end(grace_s=0.5).events == ()
    assert world.ended == [0.5, 0.5]


def test_an_error_comes_after_what_had_happened_before() -> None:
    """It hides no event."""
    launcher = ScriptedLauncher(ManualClock(), [Step(0, "ready")], OSError("x"), error_at_s=0.5)
    world = launcher.start(make_spec(1), directory=NOWHERE, scratch=NOWHERE)
    assert len(world.wait(1.0)) == 1
    with pytest.raises(OSError, match="x"):
        world.wait(1.0)
    assert world.clock.now() == 0.5


def test_a_dump_is_made_from_places() -> None:
    """File names may hold colons and blanks."""
    dump = testing.make_dump(3, "C:/my dir/a.py:17 read", "<string>:1 <module>")
    assert dump.rank == 3
    assert dump.main is not None
    assert dump.main.frames == (
        StackFrame("C:/my dir/a.py", 17, "read"),
        StackFrame("<string>", 1, "<module>"),
    )
