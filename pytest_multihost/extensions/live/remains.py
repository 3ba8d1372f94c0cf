"""Recognizes old return addresses on the stacks of threads that are none of Python's.

A process that forks has the stacks of its parent's threads, and libc gives them to the threads that
begin later. So a thread of torch in a forked rank may have return addresses of the interpreter on
its stack, and looks as if it might run the test's code. But a thread inside of the interpreter has
a state there, and the stacks that py-spy reads are those of all states.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.model.process import KernelSnapshot, Thread
from pytest_multihost.core.proof import is_interpreter
from pytest_multihost.core.watch.probes.py_spy import SpiedThread

_EXTENSIONS = re.compile(r"/lib-dynload/")
"""Modules of the standard library, which only the interpreter calls."""

States = Mapping[int, frozenset[int]]
"""By process, the ids of the threads that have a state in the interpreter."""


def states_of(pids: Mapping[int, int], threads: Mapping[int, Sequence[SpiedThread]]) -> States:
    """Return the states of processes whose stacks could be read, if the id of each is known.

    Args:
        pids: The process ids by the keys of `threads`.
    """
    return {
        pids[key]: frozenset(each.tid for each in found)
        for key, found in threads.items()
        if key in pids and found and all(each.tid for each in found)
    }


def without_remains(now: KernelSnapshot, states: States) -> KernelSnapshot:
    """Return a snapshot in which threads without a state have no code of the interpreter."""
    if not states:
        return now
    return replace(
        now,
        processes=tuple(
            replace(
                process,
                threads=tuple(_without(each, states[process.pid]) for each in process.threads),
            )
            if process.pid in states
            else process
            for process in now.processes
        ),
    )


def _without(thread: Thread, states: Collection[int]) -> Thread:
    if thread.tid in states or not thread.code:
        return thread
    kept = tuple(e for e in thread.code if not (is_interpreter(e) or _EXTENSIONS.search(e)))
    return thread if kept == thread.code else replace(thread, code=kept)
