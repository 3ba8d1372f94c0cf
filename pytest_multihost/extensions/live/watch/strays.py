"""Finds processes that a watched run has left behind: their parents have ended, as a daemon's.

They are not below the watcher any more. One of them may go on as a rank that seems to have ended.
"""

from __future__ import annotations

import os

from pytest_multihost.core.procfs import process_ids
from pytest_multihost.core.watch.kernel import read_stat
from pytest_multihost.extensions.live.parents import ancestors, is_manager, is_watcher
from pytest_multihost.extensions.live.processes import command_words, environment_of
from pytest_multihost.extensions.live.watch.option import FOLDER


def strays_of(child: int, folder: str) -> tuple[int, ...]:
    """Return the processes that the child of this watcher, or a descendant of it, left behind.

    Each has the variable of this watcher, or is in the session of the child, or is a copy of it.

    Args:
        folder: The watcher's folder.
    """
    top = read_stat(f"/proc/{child}")
    if top is None:
        return ()
    reapers = {1, *ancestors(os.getpid())}
    spared = {os.getpid(), child, *reapers}
    words = command_words(child)
    found = []
    for pid in process_ids():
        stat = read_stat(f"/proc/{pid}") if pid not in spared else None
        if stat is None or stat.parent not in reapers or stat.started_s < top.started_s:
            continue
        is_ours = (
            stat.session == top.session or _is_marked(pid, folder) or command_words(pid) == words
        )
        if stat.state != "Z" and is_ours and not (is_watcher(pid) or is_manager(stat.name)):
            found.append(pid)
    return tuple(found)


def _is_marked(pid: int, folder: str) -> bool:
    """Return whether a process was started below the watcher with a folder."""
    try:
        return environment_of(pid).get(FOLDER) == folder
    except OSError:  # it is gone, or another user's
        return False
