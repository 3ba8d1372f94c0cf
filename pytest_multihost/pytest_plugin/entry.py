"""The plugin's hooks. Each says when; what is done lives in the rooms beside it."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

from pytest_multihost import hookspecs
from pytest_multihost.backends.backend import Backend
from pytest_multihost.backends.registry import BUILT_IN
from pytest_multihost.pytest_plugin import interop
from pytest_multihost.pytest_plugin.fixtures import shared_tmp_path, world
from pytest_multihost.pytest_plugin.item import finish_report
from pytest_multihost.pytest_plugin.marks import NO_SIGNATURE, SIGNATURE, parametrize
from pytest_multihost.pytest_plugin.namesake import check_package
from pytest_multihost.pytest_plugin.options import add_options, read_defaults
from pytest_multihost.pytest_plugin.remote import (
    calm_down,
    errand,
    give_up,
    serve_or_live,
    start_early,
)
from pytest_multihost.pytest_plugin.run import RUN, Run
from pytest_multihost.pytest_plugin.session import (
    require_worlds,
    start_worlds,
    summarize,
)

__all__ = ["shared_tmp_path", "world"]  # pytest finds fixtures in the plugin's namespace


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini values."""
    check_package()
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that others can implement."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings and declare the markers."""
    config.pluginmanager.register(interop, "multihost_interop")
    config.addinivalue_line("markers", SIGNATURE)
    config.addinivalue_line("markers", NO_SIGNATURE)
    config.stash[RUN] = Run(config, read_defaults(config))


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Add the axes with several values behind the test's own parameters."""
    parametrize(metafunc, metafunc.config.stash[RUN].defaults)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Remember what could not be collected, in an interpreter that works for a controller."""
    if (task := errand()) is not None and report.failed:
        task.problems.append(report.longreprtext)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Generator[None]:
    """Take over the multihost items when everybody else has seen the final list."""
    yield
    if (task := errand()) is not None:
        serve_or_live(task, session)
    start_worlds(session.config.stash[RUN], session)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the backend of a rank that is an interpreter of its own."""
    if (task := errand()) is not None:
        start_early(task, early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Calm down an interpreter that works for a controller."""
    if (task := errand()) is not None:
        calm_down(task, config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have the last word on the reports of our items."""
    report = yield
    finish_report(item, call, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say loudly when worlds were asked for and none ran."""
    if (task := errand()) is not None:
        give_up(task)
    require_worlds(session.config.stash[RUN], session)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the artifacts are, if something is to be read there."""
    summarize(terminalreporter, terminalreporter.config.stash[RUN])


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server."""
    if RUN in config.stash:
        config.stash[RUN].close()


@pytest.hookimpl(trylast=True)
def pytest_multihost_backends() -> Sequence[Backend]:
    """Offer the built-in backends."""
    return BUILT_IN
