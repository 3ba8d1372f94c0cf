"""Calls of the C library."""

from __future__ import annotations

import subprocess
import sys

from pytest_multihost.testing import IN_TURNS


def test_a_thread_gets_its_name_back() -> None:
    """What the kernel shows is the marker only during a turn."""
    source = """
from pytest_multihost.core.launch.libc import rename_thread
old = rename_thread("waits in turns")
print(open("/proc/self/comm").read(), end="")
rename_thread(old)
print(open("/proc/self/comm").read() == old + "\\n")
"""
    command = [sys.executable, "-c", source]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"{IN_TURNS}\nTrue\n"
