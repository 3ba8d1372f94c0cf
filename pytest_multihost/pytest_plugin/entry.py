"""The plugin's hooks. Each says when; what is done lives in the rooms beside it.

Imported in every run of pytest, so it imports nothing heavy: what only worlds need is imported
when there are some.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_multihost import hookspecs
from pytest_multihost.pytest_plugin import xdist_hooks as interop
from pytest_multihost.pytest_plugin.attach.options import (
    ATTACHED_PLUGIN,
    add_attach_option,
    is_attached,
)
from pytest_multihost.pytest_plugin.fixtures import (
    asks_for_store,
    object_store,
    shared_tmp_path,
    world,
)
from pytest_multihost.pytest_plugin.marks import (
    EXPECT_SIGNATURE,
    NO_SIGNATURE,
    SIGNATURE,
    is_multihost,
    parametrize,
)
from pytest_multihost.pytest_plugin.name_conflict import check_package
from pytest_multihost.pytest_plugin.options import add_options, read_settings
from pytest_multihost.pytest_plugin.process_role import errand
from pytest_multihost.pytest_plugin.results.tally import TALLY, Tally, require_worlds, summarize

if TYPE_CHECKING:
    from pytest_multihost.backends.backend import Backend
    from pytest_multihost.nemesis.kind import FaultKind

# pytest finds fixtures in the plugin's namespace.
__all__ = ["object_store", "shared_tmp_path", "world"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini values."""
    check_package()
    add_options(parser)
    add_attach_option(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that others can implement."""
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the backend of a rank that is an interpreter of its own."""
    if (task := errand()) is not None:
        from pytest_multihost.pytest_plugin.launching.fresh_interpreter import start_early

        start_early(task, early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Calm down an interpreter that works for a controller."""
    if (task := errand()) is not None:
        from pytest_multihost.pytest_plugin.launching.fresh_interpreter import calm_down

        calm_down(task, config)
    elif is_attached(config):
        from pytest_multihost.pytest_plugin.attach.plugin import read_role

        read_role(config)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings and declare the markers."""
    config.pluginmanager.register(interop, "multihost_xdist")
    config.addinivalue_line("markers", SIGNATURE)
    config.addinivalue_line("markers", NO_SIGNATURE)
    config.addinivalue_line("markers", EXPECT_SIGNATURE)
    config.stash[TALLY] = Tally(read_settings(config))
    if is_attached(config):
        from pytest_multihost.pytest_plugin.attach.plugin import attach

        attach(config)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Add the axes with several values behind the test's own parameters."""
    parametrize(metafunc, metafunc.config.stash[TALLY].settings)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Remember what could not be collected, in an interpreter that works for a controller."""
    if (task := errand()) is not None and report.failed:
        task.problems.append(report.longreprtext)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None]:
    """Take over the multihost items when everybody else has seen the final list."""
    yield
    if (task := errand()) is not None:
        from pytest_multihost.pytest_plugin.launching.fresh_interpreter import serve_or_live

        serve_or_live(task, session)
    settings = session.config.stash[TALLY].settings
    chosen = [item for item in session.items if is_multihost(item, settings)]
    if (attached := session.config.pluginmanager.get_plugin(ATTACHED_PLUGIN)) is not None:
        attached.take_part(session, chosen)  # returns in rank 0's process alone
    if any(map(asks_for_store, session.items)):
        from pytest_multihost.pytest_plugin.object_store import start_store

        start_store(session.config)
    if chosen:
        from pytest_multihost.pytest_plugin.world_hooks import start_worlds

        start_worlds(session, chosen)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say loudly when worlds were asked for and none ran."""
    if (task := errand()) is not None:
        from pytest_multihost.pytest_plugin.launching.fresh_interpreter import give_up

        give_up(task)
    tally = session.config.stash[TALLY]
    require_worlds(tally, session)
    if tally.ran:
        from pytest_multihost.pytest_plugin.results.pages import report_on_run

        report_on_run(session.config, tally)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Give a hang a letter of its own; it counts as a failure."""
    if report.failed and getattr(report, "is_multihost_hang", False):
        return "failed", "H", ("HUNG", {"red": True})
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why the run fails although no test did, and tell a workflow which of them failed."""
    tally = terminalreporter.config.stash[TALLY]
    summarize(terminalreporter, tally)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from pytest_multihost.pytest_plugin.results.github_actions import tell_workflow

        tell_workflow(terminalreporter, tally)


@pytest.hookimpl(trylast=True)
def pytest_multihost_backends() -> Sequence[Backend]:
    """Offer the built-in backends."""
    from pytest_multihost.backends.registry import BUILT_IN

    return BUILT_IN


@pytest.hookimpl(trylast=True)
def pytest_multihost_faults() -> Sequence[FaultKind]:
    """Offer the built-in faults."""
    from pytest_multihost.nemesis.registry import BUILT_IN

    return BUILT_IN
