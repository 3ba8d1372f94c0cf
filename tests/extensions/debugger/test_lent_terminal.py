"""The settings of a terminal that ranks have borrowed, after the controller was killed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from pytest_multihost.extensions.debugger.lent_terminal import LentTerminal

pytestmark = pytest.mark.unit

_ECHO = 3
"""Place of the local modes in a terminal's settings."""

HAS_IT = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def terminal() -> Iterator[int]:
    """Return the descriptor of a terminal that nobody uses."""
    master, slave = pty.openpty()
    yield slave
    os.close(master)
    os.close(slave)


def without_echo(terminal: int) -> list[object]:
    """Switch the echo off, as a debugger does; return the settings."""
    attributes = termios.tcgetattr(terminal)
    attributes[_ECHO] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    return termios.tcgetattr(terminal)


def test_the_echo_of_a_killed_controller_comes_back(terminal: int) -> None:
    """Nobody else restores it."""
    before = termios.tcgetattr(terminal)
    saved = LentTerminal.saved(os.ttyname(terminal), os.getpid())
    assert saved is not None
    without_echo(terminal)
    saved.restore()
    assert termios.tcgetattr(terminal) == before


@pytest.mark.parametrize("is_controllers", [True, False])
def test_a_terminal_that_somebody_else_has_by_now_is_left_alone(
    terminal: int, *, is_controllers: bool
) -> None:
    """A shell has restored it, and reads its next line with settings of its own."""
    before = termios.tcgetattr(terminal)
    command = [sys.executable, "-c", HAS_IT]
    with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        lender = shell.pid if is_controllers else os.getpid()
        saved = LentTerminal.saved(os.ttyname(terminal), lender)
        assert saved is not None
        changed = without_echo(terminal)
        saved.restore()
        expected = before if is_controllers else changed
        assert termios.tcgetattr(terminal) == expected
        shell.kill()


def test_a_terminal_that_is_none_is_not_restored() -> None:
    """Its device file may be gone."""
    assert LentTerminal.saved("/dev/null", os.getpid()) is None
    assert LentTerminal.saved("/nowhere", os.getpid()) is None
