"""What the library of the clock takes of a launch, and of the machine."""

from __future__ import annotations

import pytest

from pytest_multihost.core.preload import PreloadedLibrary
from pytest_multihost.core.services import Preload
from pytest_multihost.extensions.clock.page import LIBRARY
from pytest_multihost.testing import LaunchError

pytestmark = pytest.mark.unit

PRELOAD = Preload(library=LIBRARY, setting="clock='jump'", instead="clock='real'")


def test_a_machine_without_the_library_of_the_clock_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names what is missing and says that a real clock needs nothing."""
    monkeypatch.setattr(PreloadedLibrary, "why_missing", lambda _: "there is no C compiler")
    with pytest.raises(LaunchError) as found:
        PRELOAD.require()
    assert found.value.seen == "There is no C compiler."
    assert "clock='real'" in found.value.remedy
    monkeypatch.setattr(PreloadedLibrary, "why_missing", lambda _: "")
    PRELOAD.require()


def test_what_cannot_have_a_clock_that_jumps_is_refused() -> None:
    """With the reason and what to do."""
    [problem] = PRELOAD.problems("fork")
    assert problem.startswith("clock='jump'")
    assert "leave out --multihost-launch=fork" in problem


@pytest.mark.parametrize("launch", ["auto", "server", "spawn"])
def test_a_clock_may_jump_wherever_an_interpreter_is_started(launch: str) -> None:
    """The library of the clock is loaded when the interpreter starts."""
    assert PRELOAD.problems(launch) == []
