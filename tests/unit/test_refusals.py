"""Errors of the system while processes are started: each has a remedy that fits it."""

from __future__ import annotations

import errno
import os

import pytest

from pytest_multihost.core.launch.interface import refusals
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.preload import PreloadedLibrary
from pytest_multihost.core.services import Preload
from pytest_multihost.extensions.clock.page import LIBRARY


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EAGAIN, "ulimit -u"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENOMEM, "--memory"),
        (errno.ENOSPC, "see df"),
        (errno.EACCES, ""),
    ],
)
def test_an_error_of_the_system_has_its_remedy(number: int, words: str) -> None:
    """What happened, what the system says, and what to do, if anything is known."""
    with pytest.raises(LaunchError) as found, refusals("a rank could not be started"):
        raise OSError(number, os.strerror(number))
    error = found.value
    assert error.happened == "a rank could not be started"
    assert os.strerror(number) in error.seen
    assert words in error.remedy
    assert bool(words) == bool(error.remedy)


def test_a_machine_without_the_library_of_the_clock_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is missing, and that a real clock needs nothing; one that has it is told nothing."""
    preload = Preload(library=LIBRARY, setting="clock='jump'", instead="clock='real'")
    monkeypatch.setattr(PreloadedLibrary, "why_missing", lambda _: "there is no C compiler")
    with pytest.raises(LaunchError) as found:
        preload.require()
    assert found.value.seen == "There is no C compiler."
    assert "clock='real'" in found.value.remedy
    monkeypatch.setattr(PreloadedLibrary, "why_missing", lambda _: "")
    preload.require()
