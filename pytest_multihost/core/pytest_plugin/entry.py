"""The plugin's hooks, in the order in which pytest calls them: the map of this package.

Imported in every run of pytest, so nothing heavy is imported here: what only worlds need is
imported by the hook that finds some.

Two more sets of hooks are registered when they are needed: those of a run with worlds (`run`), and
those of an interpreter that was started by a controller (`server_process`). Inside a rank
`rank.agent` has hooks of its own. The extensions are plugins of their own (`core.registry`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
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
    parametrize,
)
from pytest_multihost.core.pytest_plugin.options import (
    CORE_OPTIONS,
    OFFERED,
    OfferedOptions,
    add_options,
    offered_options,
    read_settings,
    with_host_kinds,
)
from pytest_multihost.core.pytest_plugin.tally import TALLY, Tally, end_run, summarize
from pytest_multihost.core.registry import register_extensions

if TYPE_CHECKING:
    from pytest_multihost.core.launch import Launcher
    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.option import Option, Settings
import pytest_multihost

# pytest finds fixtures in the plugin's namespace.
__all__ = ["shared_tmp_path", "world"]


# Every run, in the order in which pytest calls them.


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare options and ini values, those of plugins to come as well."""
    _check_package()
    offered = OfferedOptions(parser)
    pluginmanager.register(offered, OFFERED)
    pluginmanager.hook.pytest_multihost_options.call_historic(
        result_callback=offered.add, kwargs={}
    )
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that others can implement, and register what is built in."""
    pluginmanager.add_hookspecs(hookspecs)
    pluginmanager.register(built_in, "multihost_built_in")
    register_extensions(pluginmanager)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings and declare the markers."""
    for signature in (SIGNATURE, NO_SIGNATURE, EXPECT_SIGNATURE):
        config.addinivalue_line("markers", signature)
    options = with_host_kinds(offered_options(config), offered_host_kinds(config.hook))
    config.stash[TALLY] = Tally(read_settings(config, options))


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize over several world sizes or backends, behind the test's own parameters."""
    parametrize(metafunc, metafunc.config.stash[TALLY].settings)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None]:
    """Make the multihost tests run as worlds.

    Here and not in an earlier hook: only now is the list of tests final - deselected, reordered
    and distributed - and every other plugin has seen the items as pytest collected them. Servers
    are started for the tests that are left, and what is imported for worlds is imported only if
    there are some.
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
    """Whether a test has a marker of ours, or of an extension."""
    return any(mark.name.startswith("multihost") for mark in item.iter_markers())


def _make_worlds(session: pytest.Session, settings: Settings) -> None:
    """Plan the multihost tests of a session, and start what they need.

    Raises:
        pytest.UsageError: A marker or an option is wrong, or a server cannot be started.
    """
    chosen = [item for item in session.items if is_multihost(item, settings)]
    session.config.hook.pytest_multihost_collected(session=session, items=chosen)
    if chosen:
        from pytest_multihost.core.pytest_plugin.run import start_run

        start_run(session, chosen)  # registers the hooks of a run with worlds


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Give a hang a letter of its own; it counts as a failure."""
    if report.failed and getattr(report, "is_multihost_hang", False):
        return "failed", "H", ("HUNG", {"red": True})
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Warn, or fail the run, if worlds were asked for and none ran; write the run's page."""
    end_run(session.config.stash[TALLY], session)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the lines that were kept for the end, and why the run fails although no test did."""
    if not hasattr(terminalreporter.config, "workerinput"):  # xdist's controller does it for all
        summarize(terminalreporter, terminalreporter.config.stash[TALLY])


# Runs with pytest-xdist, in its controller.


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - xdist's WorkerController
    """Tell an xdist worker which run it belongs to and how pytest was called."""
    from pytest_multihost.core.report.artifacts import new_run_id

    tally = node.config.stash[TALLY]
    tally.run_id = tally.run_id or new_run_id()
    node.workerinput["multihost_run_id"] = tally.run_id
    node.workerinput["multihost_args"] = [str(arg) for arg in node.config.invocation_params.args]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ANN401, ARG001
    """Add up what the workers have selected and run, and what they could not write."""
    tally = node.config.stash[TALLY]
    for name, value in getattr(node, "workeroutput", {}).get("multihost", {}).items():
        setattr(tally, name, getattr(tally, name) + value)


# Our own hooks, as far as they are about pytest. `core.built_in` has the others.


@pytest.hookimpl(tryfirst=True)  # first in the help
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer the core's options."""
    return CORE_OPTIONS


@pytest.hookimpl(trylast=True)
def pytest_multihost_prepare(spec: WorldSpec) -> WorldSpec:
    """Return the spec that extensions change."""
    return spec


@pytest.hookimpl(trylast=True)
def pytest_multihost_launch(launcher: Launcher) -> Launcher:
    """Return the launcher that extensions change."""
    return launcher


def _check_package() -> None:
    """Check that `pytest_multihost` is this package, and not FreeIPA's pytest-multihost.

    pip installs both without a warning. The one installed last owns the `__init__`, and
    uninstalling it deletes that file; our other modules stay, and half of them work.

    Raises:
        pytest.UsageError: Its `__init__` is another package's or deleted; says how to repair it.
    """
    if hasattr(pytest_multihost, "WorldBrokenError"):
        return
    where = getattr(pytest_multihost, "__file__", None) or "deleted"
    raise pytest.UsageError(
        "the package pytest_multihost is not what pytest-multihost-hangs has installed.\n"
        f"Its __init__.py is not ours ({where}): FreeIPA's pytest-multihost has the same import"
        " name, and the two cannot be installed together.\n"
        "Run: pip uninstall pytest-multihost && pip install --force-reinstall --no-deps"
        " pytest-multihost-hangs"
    )
