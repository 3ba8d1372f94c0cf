"""The plugin's hooks, in the order in which pytest calls them.

Every run of pytest imports this module, so it imports nothing heavy. The hook that finds worlds
imports their modules.

Two more sets of hooks are registered when they are needed: those of a run with worlds (`run`), and
those of an interpreter that a controller has started (`server_process`). Inside a rank,
`rank.agent` has its own hooks. Each extension is a plugin of its own (`core.registry`).
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from copy import copy
from typing import TYPE_CHECKING, Any

import pytest

from pytest_multihost import hookspecs
from pytest_multihost.core import built_in
from pytest_multihost.core.host_kind import offered_host_kinds
from pytest_multihost.core.pytest_plugin.fixtures import shared_tmp_path, world
from pytest_multihost.core.pytest_plugin.marks import (
    EXPECT_SIGNATURE,
    NO_SIGNATURE,
    SIGNATURE,
    is_multihost,
    misplaced_markers,
    parametrize,
)
from pytest_multihost.core.pytest_plugin.options import (
    OFFERED,
    OfferedOptions,
    add_options,
    bare_options_given,
    offered_options,
    read_settings,
    with_host_kinds,
)
from pytest_multihost.core.pytest_plugin.tally import RUNNING, TALLY, Tally, end_run, summarize
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.core.registry import register_extensions

if TYPE_CHECKING:
    from pytest_multihost.core.launch import Launcher
    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.option import Settings
import pytest_multihost

# pytest finds fixtures in the plugin's namespace.
__all__ = ["shared_tmp_path", "world"]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare options and ini values, including those of plugins that are registered later."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from pytest_multihost.core.standard_streams import open_closed_streams

        open_closed_streams()  # before the first socket, which would get such a stream's descriptor
    _check_package()
    offered = OfferedOptions(parser)
    pluginmanager.register(offered, OFFERED)
    pluginmanager.hook.pytest_multihost_options.call_historic(
        result_callback=offered.add, kwargs={}
    )
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that others can implement, and register built-ins and extensions."""
    pluginmanager.add_hookspecs(hookspecs)
    pluginmanager.register(built_in, "multihost_built_in")
    register_extensions(pluginmanager)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """Keep options that may stand without a value from taking a test file for one.

    pytest has parsed the command line once to find the first conftest files, so it parses again.
    """
    given = bare_options_given(args, offered_options(early_config))
    if given != args:
        args[:] = given
        early_config.known_args_namespace = parser.parse_known_args(
            args, namespace=copy(early_config.option)
        )
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings and declare the markers."""
    for signature in (SIGNATURE, NO_SIGNATURE, EXPECT_SIGNATURE):
        config.addinivalue_line("markers", signature)
    options = with_host_kinds(offered_options(config), offered_host_kinds(config.hook))
    config.stash[TALLY] = Tally(read_settings(config, options))


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize over several world sizes or backends, after the test's own parameters."""
    tally = metafunc.config.stash[TALLY]
    if (axes := parametrize(metafunc, tally.settings)) is not None:
        tally.axes[metafunc.definition.nodeid] = axes


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Add a hint to the error for a test id with a part for the size or the backend."""
    try:
        return (yield)
    except pytest.UsageError as error:
        from pytest_multihost.core.backends import offered_backends
        from pytest_multihost.core.pytest_plugin.id_hints import hint_of_id

        config = session.config
        names = {each.name for each in offered_backends(config.hook)}
        hint = hint_of_id(config.args, config.stash[TALLY].axes, names)
        if not hint:
            raise
        raise usage_error("\n".join([*map(str, error.args), hint])) from None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None]:
    """Make the multihost tests run as worlds.

    This is the first hook where the list of tests is final (deselected, reordered and distributed)
    and every other plugin has seen the items as pytest collected them. Servers are started only for
    the remaining tests, and modules for worlds are imported only if there are some.
    """
    yield
    settings = session.config.stash[TALLY].settings
    try:
        _make_worlds(session, settings)
    except pytest.UsageError as error:
        if not hasattr(session.config, "workerinput"):
            raise
        # xdist ends with an internal error when a worker does not run its tests.
        from pytest_multihost.core.pytest_plugin.item import fail_items

        marked = [item for item in session.items if _has_marker(item)]
        chosen = [item for item in session.items if is_multihost(item, settings)]
        fail_items({*marked, *chosen}, str(error))


def _has_marker(item: pytest.Item) -> bool:
    """Return whether a test has a marker of this plugin or of an extension."""
    return any(mark.name.startswith("multihost") for mark in item.iter_markers())


def _make_worlds(session: pytest.Session, settings: Settings) -> None:
    """Plan the multihost tests of a session, and start their servers.

    Raises:
        pytest.UsageError: A marker or an option is wrong, or a server cannot be started.
    """
    chosen = [item for item in session.items if is_multihost(item, settings)]
    problems = misplaced_markers("multihost_expect", session.items, settings)
    try:
        session.config.hook.pytest_multihost_collected(session=session, items=chosen)
    except pytest.UsageError as error:
        problems += map(str, error.args)
    if chosen:
        from pytest_multihost.core.pytest_plugin.run import start_run

        start_run(session, chosen, problems)  # also registers the hooks of a run with worlds
    elif problems:
        raise usage_error("\n".join(problems))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the test that runs, for `pytest_multihost.spawn`."""
    RUNNING.append(item)
    try:
        return (yield)
    finally:
        RUNNING.remove(item)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Give a hang its own letter; it counts as a failure."""
    if report.failed and getattr(report, "is_multihost_hang", False):
        return "failed", "H", ("HUNG", {"red": True})
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the run's page; warn, or fail the run, if worlds were requested and none ran."""
    end_run(session.config.stash[TALLY], session)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the run's final lines, and why the run fails although no test did."""
    if not hasattr(terminalreporter.config, "workerinput"):  # xdist's controller writes for all
        summarize(terminalreporter, terminalreporter.config.stash[TALLY])


# Hooks in the controller of pytest-xdist


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - xdist's WorkerController
    """Send an xdist worker the id of the run and pytest's arguments."""
    from pytest_multihost.core.report.artifacts import new_run_id

    tally = node.config.stash[TALLY]
    tally.run_id = tally.run_id or new_run_id()
    node.workerinput["multihost_run_id"] = tally.run_id
    node.workerinput["multihost_args"] = [str(arg) for arg in node.config.invocation_params.args]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ANN401, ARG001
    """Add a worker's counts and lines to the run's."""
    tally = node.config.stash[TALLY]
    for name, value in getattr(node, "workeroutput", {}).get("multihost", {}).items():
        setattr(tally, name, getattr(tally, name) + value)


# This plugin's own hooks about pytest; `core.built_in` implements the others


@pytest.hookimpl(trylast=True)
def pytest_multihost_prepare(spec: WorldSpec) -> WorldSpec:
    """Return the spec; extensions wrap this hook to change it."""
    return spec


@pytest.hookimpl(trylast=True)
def pytest_multihost_launch(launcher: Launcher) -> Launcher:
    """Return the launcher; extensions wrap this hook to change it."""
    return launcher


def _check_package() -> None:
    """Check that `pytest_multihost` is this package, and not FreeIPA's pytest-multihost.

    pip installs both without a warning. The package installed last owns `__init__.py`, and
    uninstalling it deletes that file. This package's other modules stay, and half of them work.

    Raises:
        pytest.UsageError: `__init__.py` is missing or from the other package; has the remedy.
    """
    if hasattr(pytest_multihost, "WorldBrokenError"):
        return
    where = getattr(pytest_multihost, "__file__", None) or "deleted"
    raise usage_error(
        "the package pytest_multihost is not the one that pytest-multihost-hangs has installed.\n"
        f"Its __init__.py is not ours ({where}): FreeIPA's pytest-multihost has the same import"
        " name, and the two cannot be installed together.\n"
        "Run: pip uninstall pytest-multihost && pip install --force-reinstall --no-deps"
        " pytest-multihost-hangs"
    )
