"""Errors of the system while processes are started: each has a remedy that fits it."""

from __future__ import annotations

import errno
import os

import pytest

from pytest_multihost.core.launch.refusals import refusals
from pytest_multihost.testing import LaunchError


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
