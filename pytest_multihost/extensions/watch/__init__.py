"""Watches plain tests that start their own ranks, and says which rank the others wait for.

* `option` is `--multihost-watch`.
* `ancestor` puts a process above pytest, which passes on signals and the exit status.
* `watcher` is what this process does: it looks at what runs below it, and judges it.
* `tree` reads what runs below a process, and how much it works.
* `exchange` has the files with which pytest tells the watcher its test, and the watcher answers.
* `in_pytest` has the hooks in pytest's own process, or in a worker of xdist.
* `command` is ``multihost watch``.
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
    from pytest_multihost.extensions.watch.option import WATCH

    return [WATCH]


@hookimpl
def pytest_multihost_commands(commands: Commands) -> None:
    """Add ``multihost watch``."""
    from pytest_multihost.extensions.watch.option import add_watch

    add_watch(commands)


@hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Put the watcher above pytest, before anything else of it has begun."""
    from pytest_multihost.extensions.watch.option import is_asked

    if is_asked(early_config):
        from pytest_multihost.extensions.watch.ancestor import watch_this_process

        watch_this_process()
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Tell the watcher about each test, if there is one above this process."""
    from pytest_multihost.extensions.watch.option import FOLDER

    if folder := os.environ.get(FOLDER):
        from pytest_multihost.extensions.watch.in_pytest import Watched

        config.pluginmanager.register(Watched.of(folder), "multihost_watched")
