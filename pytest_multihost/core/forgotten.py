"""Removes variables with secrets from this process, before it starts ranks."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path

from pytest_multihost.core.procfs import stat_words

SECRET = "PYTEST_MULTIHOST_SECRET"  # noqa: S105 - its name
"""The variable with the secret of an attached run. Ranks, nodes and servers never have it."""

_ENV_START = 50 - 3


def forget_secret() -> None:
    """Remove the secret of an attached run, which is set in the environment of other runs, too."""
    if SECRET in os.environ:
        forget((SECRET,))


def forget(names: Iterable[str]) -> None:
    """Remove variables of this process.

    unsetenv(3) only removes the C library's pointer to a text. The text of the secret stays in the
    memory that /proc/PID/environ shows, see proc(5), and ranks of the same user can read that. So
    it is overwritten there.
    """
    for name in names:
        os.environ.pop(name, None)
    start = int(stat_words(os.getpid())[_ENV_START])
    block = Path("/proc/self/environ").read_bytes()
    for found in re.finditer(rb"(?:^|\0)" + SECRET.encode() + rb"=([^\0]*)", block):
        if start:  # 0 if the kernel hides it
            ctypes.memset(start + found.start(1), ord("x"), len(found[1]))
