"""Sets up pytest's items and configuration in a server, in whichever process the server runs.

A server is either a fork of the controller or a new interpreter (`main`). The interpreter gets the
controller's own command line, so it has the same configuration, and collects only the files of the
selected tests. The classes here are plugins of that interpreter's pytest, which serves or runs one
rank; a controller never has them. Actions that must not happen twice are switched off: writing
report files, clearing the cache, starting more processes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import socket
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_multihost.core.backends import Backend, find_backend, offered_backends
from pytest_multihost.core.launch.job_spec import (
    PytestRun,
    RankJob,
    ServerJob,
    open_channel,
    open_control,
    take_job,
)
from pytest_multihost.core.launch.server import prepare_and_serve, serve_with_libraries
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.errors import CollectedDifferentlyError
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.pytest_plugin.options import ONE_PROCESS_ALONE, switch_off
from pytest_multihost.core.pytest_plugin.shared_fixtures import share_fixtures, shared_fixtures
from pytest_multihost.core.pytest_private import redirect_terminal
from pytest_multihost.core.rank import foreign_variables, prepare_recording, thread_variables
from pytest_multihost.core.rank.agent import (
    FindItem,
    prepare_pytest,
    run_rank,
    run_test_and_exit,
    send_interrupted,
    start_backend,
    start_rank,
)
from pytest_multihost.core.standard_streams import drop_what_does_not_fit

ORIGINAL = pytest.StashKey[tuple[type[pytest.Item], Callable[..., object] | None]]()
"""The original class of an item, and its test function if that was replaced."""


CODE = "from pytest_multihost.core.pytest_plugin.server_process import main; main()"

ONLY_SERVES: Mapping[str, object] = {
    **ONE_PROCESS_ALONE,
    "collectonly": False,
    "distload": False,  # xdist
    "failedfirst": False,
    "lf": False,
    "looponfail": False,
    "newfirst": False,
    "stepwise": False,
}
"""Options that must not act here, because only the controller's selection is collected."""


def plain_nodeid(item: pytest.Item) -> str:
    """Return an item's node id without the suffix of xdist.

    xdist's ``--dist loadgroup`` appends the group's name, but only in its workers.
    """
    group = item.get_closest_marker("xdist_group")
    name = (group.args or (group.kwargs.get("name", "default"),))[0] if group else None
    return item.nodeid.removesuffix(f"@{name}") if name else item.nodeid


def find_item_in(items: Iterable[pytest.Item], problems: Sequence[str] = ()) -> FindItem:
    """Return a function that finds an item by node id and restores it as pytest collected it.

    Args:
        problems: The collection errors, which are reported if an item is missing.
    """
    found = {plain_nodeid(item): item for item in items}

    def find_item(nodeid: str) -> pytest.Item:
        if nodeid not in found and problems:
            happened = "the rank could not collect the test"
            raise CollectedDifferentlyError(happened, seen="\n".join(problems))
        if nodeid not in found:
            raise CollectedDifferentlyError(
                "the rank did not collect the test that the controller has collected",
                seen=f"There is no {nodeid} here.",
                remedy=(
                    "Make collection depend on nothing that differs between processes: random"
                    " values, the time, process ids, or an object's repr in a parameter's id."
                ),
            )
        item = found[nodeid]
        # Revert `item.convert`: in a rank, the item is as pytest collected it.
        item.__class__, function = item.stash.get(ORIGINAL, (type(item), None))
        if isinstance(item, pytest.Function) and function is not None:
            item.obj = function
        return item

    return find_item


def prepare_server(
    config: pytest.Config, items: Sequence[pytest.Item], backends: Iterable[Backend]
) -> Callable[[], None]:
    """Do in the server once the work that each forked rank would repeat.

    Returns a function that the server must call when it ends.

    All ranks share a page of memory that is written here; a page written in a rank is copied, and
    such copies are most of a rank's cost. Libraries get one thread, because a process must have
    only one when it forks: the child has no other threads, and locks that they held stay taken.

    Args:
        backends: The backends of the tests to run.
    """
    import threadpoolctl

    variables = thread_variables(os.environ)
    os.environ.update(variables)
    for backend in backends:
        backend.preload()
    config.hook.pytest_multihost_server_start(config=config)
    prepare_recording()
    prepare_pytest(config)
    re.sub(r"[\W]", "_", "")  # compiles and caches tmp_path's pattern for the name of a test
    foreign_variables(os.environ)  # computed and cached, as is the next
    for item in items:
        _ = item.location
    if variables:  # the user has not set them
        # N ranks, each with a pool of all cores, would compete for the machine. A library reads
        # OMP_NUM_THREADS and similar variables when it is loaded, which for a forked rank was
        # before its fork. The server therefore limits the loaded libraries, and ranks inherit that.
        threadpoolctl.threadpool_limits(1)
    return share_fixtures(shared_fixtures(config), items)


def main() -> NoReturn:
    """Run pytest with the controller's command line, as a server or as one rank."""
    drop_what_does_not_fit()
    job: ServerJob | RankJob = take_job(ServerJob | RankJob)
    run = job.run
    assert isinstance(run, PytestRun)  # noqa: S101 - for the type checker
    os.chdir(run.cwd)
    sys.path[:] = run.path
    sys.argv[:] = ["pytest", *run.args]
    if isinstance(job, RankJob):
        _collect_and_run(job.spec, open_channel(job), run=run)
    collecting, control = _Collecting(run.files), open_control(job)
    plugin = (
        _Libraries(control, job, run) if job.libraries else _ServerPlugin(collecting, control, job)
    )
    sys.exit(pytest.main(list(run.args), plugins=[collecting, plugin]))


def _collect_and_run(spec: RankSpec, channel: Channel, *, run: PytestRun) -> NoReturn:
    """Run a rank in a new pytest. Never returns."""
    collecting = _Collecting(run.files_of(spec.world.nodeid))
    # Before pytest is configured, so that the rank can already be asked for its stacks.
    start_rank(spec, channel)
    plugin = _Rank(collecting, spec, channel)
    os._exit(pytest.main(list(run.args), plugins=[collecting, plugin]))


@dataclass(slots=True, eq=False)  # pluggy keeps its plugins in sets
class _Collecting:
    """A plugin that makes pytest collect the needed files, and do nothing else.

    Attributes:
        files: The files to collect, instead of those on the command line.
    """

    files: Sequence[str]
    problems: list[str] = field(default_factory=list)

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, object, object]:
        """Switch off options that must not act twice, before any other plugin reads them."""
        for options in (ONLY_SERVES, *config.hook.pytest_multihost_controller_only()):
            switch_off(config, options)
        if config.pluginmanager.has_plugin("rerunfailures"):  # it starts a thread
            config.pluginmanager.unregister(name="rerunfailures")
            config.addinivalue_line("markers", "flaky(...): see pytest-rerunfailures")
        config.args = list(self.files)
        return (yield)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep collection errors for the message about a missing test."""
        if report.failed:
            self.problems.append(report.longreprtext)


@dataclass(slots=True, eq=False)  # pluggy keeps its plugins in sets
class _ServerPlugin:
    """A plugin that serves by forking ranks, as soon as the tests are collected."""

    collecting: _Collecting
    control: socket.socket
    job: ServerJob

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> NoReturn:
        """Serve, after every other plugin has seen the final list of tests."""
        config, items = session.config, session.items
        offered = offered_backends(config.hook)
        backends = {name: find_backend(name, offered) for name in self.job.backends}
        find_item = find_item_in(items, self.collecting.problems)
        run = partial(run_rank, find_item=find_item, backends=backends)
        prepare = partial(prepare_server, config, items, backends.values())
        prepare_and_serve(self.control, run, prepare, controller=self.job.controller)


@dataclass(slots=True, eq=False)  # pluggy keeps its plugins in sets
class _Libraries:
    """A plugin that imports the libraries of the tests' modules, and serves; the ranks collect."""

    control: socket.socket
    job: ServerJob
    run: PytestRun

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self) -> Generator[None, object, object]:
        """Serve before any of the user's modules is imported, and before other plugins act.

        pytest's plugins have been imported by then: pytest rewrites their assertions on import.
        """
        for name in self.job.libraries:
            with contextlib.suppress(Exception, SystemExit):  # the test will raise it again
                importlib.import_module(name)
        serve_with_libraries(self.control, partial(_collect_and_run, run=self.run), self.job)
        return (yield)


@dataclass(slots=True, eq=False)  # pluggy keeps its plugins in sets
class _Rank:
    """A plugin that runs the one test of this rank as soon as the tests are collected."""

    collecting: _Collecting
    spec: RankSpec
    channel: Channel
    _started: Backend | None = field(default=None, init=False)
    _printed: io.StringIO = field(default_factory=io.StringIO, init=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Start the backend before any of the user's modules is imported.

        jax must be initialised before the first array exists, and a module-level `jnp.ones(3)`
        makes one during collection. A conftest's backend is still unknown here, so it is started
        after the collection.
        """
        offered = {each.name: each for each in offered_backends(early_config.hook)}
        self._started = offered.get(self.spec.backend)
        if self._started is not None:
            start_backend(self.spec, self.channel, self._started)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep pytest's header out of the rank's log, which has the output of the test."""
        redirect_terminal(session.config, self._printed)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> NoReturn:
        """Run the test and exit, after every other plugin has seen the final list of tests."""
        if self._started is None:
            offered = offered_backends(session.config.hook)
            self._started = find_backend(self.spec.backend, offered)
            start_backend(self.spec, self.channel, self._started)
        find_item = find_item_in(session.items, self.collecting.problems)
        run_test_and_exit(self.spec, self.channel, find_item=find_item, backend=self._started)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        """Report that pytest ended before the rank could run its test."""
        sys.stdout.write(self._printed.getvalue())
        error = CollectedDifferentlyError(
            "the rank could not collect the test",
            seen="pytest ended before that; the rank's log says why.",
        )
        send_interrupted(self.channel, error, root=str(Path.cwd()))
        yield
