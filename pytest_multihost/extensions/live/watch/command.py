"""Runs ``multihost watch -- COMMAND``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.extensions.live.watch.ancestor import watch_this_process

_NOT_FOUND = 127


def watch(words: Sequence[str], mode: str) -> int:
    """Become the parent of a command; its exit status is this process's.

    Args:
        mode: `option.REPORT` or `option.END`.

    Raises:
        MultihostError: There is no command, or no watcher can be started.
    """
    program = list(words[1:] if words[:1] == ["--"] else words)
    if not program:
        raise MultihostError(
            "multihost watch needs a command", remedy="multihost watch -- make test"
        )
    watch_this_process(mode)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"multihost watch: {program[0]}: {error.strerror}\n")
    return _NOT_FOUND
