"""Diagnoses running jobs that do not use this plugin, from outside and without disturbing them.

* `machine` finds the worlds on this machine by the environment of their processes, and selects the
  user's world.
* `processes` maps processes to ranks, and explains which right is missing to read a process.
  `numbering` finds the numbers of ranks that `spawn` or `multiprocessing` has started;
  `set_variables` reads a variable that they have set.
* `reader` reads a job's ranks on this machine, `joined` those on several machines. `coroutines`
  reads the awaits of asyncio's tasks from the memory of a process, `stack_words` the names of the
  functions on the stacks of threads.
* `parents` knows the processes around the ranks, `remains` the rest of old frames on stacks that
  threads of torch have taken over from a parent's.
* `as_user` lets root look at another user's job with that user's rights, and `user_reader` reads
  such a job that is judged together with the ranks of other machines.
* `waits` derives the operation that a thread is in from its frames, `mpi` an operation of MPI,
  `barriers` the id of a barrier of jax's coordination service.
* `batons` finds files that a killed build of torch has left, and for which ranks wait.
* `groups` separates operations that cannot be one; `gloo_groups` finds the members of a group by
  its connections.
* `look` compares two snapshots of a job, and explains why a rank may still move.
* `seen_world` judges the job, repeatedly until it stops moving if the user asks for that.
* `shown` is the output of a look: page, verdict, and a page for a browser. `native_sections` shows
  native frames on the page.
* `parser` and `command` are ``multihost attach``.
* `watch` is ``pytest --multihost-watch`` and ``multihost watch``.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.option import Option
    from pytest_multihost.hookspecs import Commands


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer `--multihost-watch`."""
    from pytest_multihost.extensions.live.watch.option import WATCH

    return [WATCH]


@hookimpl
def pytest_multihost_commands(commands: Commands) -> None:
    """Add ``multihost attach`` and ``multihost watch``."""
    from pytest_multihost.extensions.live.parser import add_attach
    from pytest_multihost.extensions.live.watch.parser import add_watch

    add_attach(commands)
    add_watch(commands)


@hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Put the watcher above pytest, before anything else of it has begun."""
    from pytest_multihost.extensions.live.watch.option import OFF, early_mode

    if (mode := early_mode(early_config)) != OFF:
        from pytest_multihost.extensions.live.watch.ancestor import watch_this_process

        watch_this_process(mode)
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Tell the watcher about each test, if there is one above this process."""
    from pytest_multihost.extensions.live.watch.option import FOLDER

    if folder := os.environ.get(FOLDER):
        from pytest_multihost.extensions.live.watch.in_pytest import WatchedTests

        config.pluginmanager.register(WatchedTests.of(folder), "multihost_watched")
