"""Hooks that other plugins and conftest files implement: the extension guide.

Everything built in, and every extension in `pytest_multihost.extensions`, uses the same hooks as a
third party. An extension is a plugin of pytest with implementations of some of these hooks; it may
implement any hook of pytest itself, too. Import the values that the hooks exchange from this module
as well: where they are defined may change. Each is loaded when it is first asked for.

In a run of pytest the hooks about tests are called in this order:

1. `pytest_multihost_options`, as soon as a plugin is registered;
2. `pytest_multihost_collected`, once the list of tests is final;
3. `pytest_multihost_plan`, for each test that will run as a world;
4. `pytest_multihost_prepare` and `pytest_multihost_launch`, before a world runs;
5. `pytest_multihost_analyse`, when it is over and judged;
6. `pytest_multihost_renderers`, when its files are written;
7. `pytest_multihost_explore`, after that.

This module imports pluggy, not pytest, so that plugins can be loaded where pytest is not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    import pytest

    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.command.explainer import Explainer
    from pytest_multihost.core.command.joined_script import JoinedScript
    from pytest_multihost.core.host_kind import HostKind
    from pytest_multihost.core.launch import Launcher
    from pytest_multihost.core.launch.meeting import Meeting
    from pytest_multihost.core.model.spec import Host, RankSpec, ServicePart, WorldSpec
    from pytest_multihost.core.nemesis import FaultKind, Strike
    from pytest_multihost.core.option import MarkerKey, Option, Settings
    from pytest_multihost.core.pytest_plugin.analysis import Analysis, PlacedWarning
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
    from pytest_multihost.core.pytest_plugin.plan import Plan
    from pytest_multihost.core.report.annotation import Annotation
    from pytest_multihost.core.report.renderer import PageSection, Renderer, RowPart
    from pytest_multihost.core.services import Action, Opening, Service, ServiceKind, Turn

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - has no other name
    """What ``argparse.ArgumentParser.add_subparsers`` returns."""

__all__ = [
    "Action",
    "Analysis",
    "Annotation",
    "Backend",
    "CompletedAttempt",
    "Explainer",
    "FaultKind",
    "Host",
    "HostKind",
    "JoinedScript",
    "Launcher",
    "MarkerKey",
    "Meeting",
    "Opening",
    "Option",
    "PageSection",
    "PlacedWarning",
    "Plan",
    "RankSpec",
    "Renderer",
    "RowPart",
    "Service",
    "ServiceKind",
    "ServicePart",
    "Settings",
    "Strike",
    "Turn",
    "WorldSpec",
    "hookimpl",
    "hookspec",
]

hookspec = pluggy.HookspecMarker("pytest")
"""Marks a function as the specification of a hook. pytest's own marker, without pytest."""

hookimpl = pluggy.HookimplMarker("pytest")
"""Marks a function as an implementation of a hook: `pytest.hookimpl`, without pytest."""

_HOMES = {
    "Action": "core.services",
    "Analysis": "core.pytest_plugin.analysis",
    "Annotation": "core.report.annotation",
    "Backend": "core.backends",
    "CompletedAttempt": "core.pytest_plugin.attempt",
    "Explainer": "core.command.explainer",
    "FaultKind": "core.nemesis",
    "Host": "core.model.spec",
    "HostKind": "core.host_kind",
    "JoinedScript": "core.command.joined_script",
    "Launcher": "core.launch",
    "MarkerKey": "core.option",
    "Meeting": "core.launch.meeting",
    "Opening": "core.services",
    "Option": "core.option",
    "PageSection": "core.report.renderer",
    "PlacedWarning": "core.pytest_plugin.analysis",
    "Plan": "core.pytest_plugin.plan",
    "RankSpec": "core.model.spec",
    "Renderer": "core.report.renderer",
    "RowPart": "core.report.renderer",
    "Service": "core.services",
    "ServiceKind": "core.services",
    "ServicePart": "core.model.spec",
    "Settings": "core.option",
    "Strike": "core.nemesis",
    "Turn": "core.services",
    "WorldSpec": "core.model.spec",
}
"""The values that hooks exchange, with the modules that define them."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class of any kind
    """Load a value that hooks exchange: an import of all would cost every run of pytest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"pytest_multihost.{_HOMES[name]}"), name)


# What tests can name


@hookspec
def pytest_multihost_backends() -> Sequence[Backend]:  # type: ignore[empty-body]
    """Return backends to offer under ``@pytest.mark.multihost(backend=...)``.

    Called when the first multihost test is known, in pytest's own process and in every interpreter
    that it starts. If two have the same name, the plugin registered last wins, so a project can
    replace a built-in backend.
    """


@hookspec
def pytest_multihost_faults() -> Sequence[FaultKind]:  # type: ignore[empty-body]
    """Return kinds of faults to offer as ``faults.other("name", rank=..., ...)``.

    Called in pytest's own process when the first multihost test is known, and in each rank of a
    world that has faults. If two have the same name, the plugin registered last wins. A fault
    registers with ``strike.healing`` how to undo its changes when the test's body is over.
    """


@hookspec(historic=True)
def pytest_multihost_options() -> Sequence[Option[Any]]:  # type: ignore[empty-body]
    """Return options to offer.

    An `Option` is set by the command line, the environment or the ini file; with a `MarkerKey` by
    the marker `multihost`, too. ``settings.get(OPTION)`` returns its value: keep the object in a
    module of its own. Called once for each plugin, when it is registered; a conftest file must be
    one that pytest loads before it parses the command line, as for `pytest_addoption`. An option of
    another form - a switch without a value, say - is declared with `pytest_addoption`.
    """


@hookspec
def pytest_multihost_run_options() -> Sequence[Option[Any]]:  # type: ignore[empty-body]
    """Return options that ``multihost run`` takes as well, as ``--name``.

    They are those by which services are asked for: `ServiceKind.asked_by`. Called before the
    command line is read, so import nothing large.
    """


@hookspec
def pytest_multihost_controller_only() -> Mapping[str, object]:  # type: ignore[empty-body]
    """Return options of pytest that must act in the controller alone.

    By their ``dest``, with the values that switch them off. They are set in each interpreter that
    collects the tests again to run ranks.
    """


# Before a world runs


@hookspec
def pytest_multihost_collected(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Act on the final list of tests, before the first server is started.

    Args:
        session: The session; ``session.items`` are all its tests.
        items: Those that will run as worlds; there may be none.

    Raises:
        pytest.UsageError: The tests cannot run like this; ends the run.
    """


@hookspec
def pytest_multihost_plan(  # type: ignore[empty-body]
    item: pytest.Item, settings: Settings
) -> Sequence[str]:
    """Take part in planning a test that will run as a world; return every problem.

    For markers of an extension: read them here, and keep what they say in ``item.stash``. All
    problems of all tests are reported together, before any test runs; each is a phrase that follows
    upon ``@pytest.mark.multihost``, as "(my_marker) has no key 'x'".

    Args:
        settings: Its settings: the run's, with its marker applied.
    """


@hookspec(firstresult=True)
def pytest_multihost_prepare(  # type: ignore[empty-body]
    item: pytest.Item, plan: Plan, spec: WorldSpec
) -> WorldSpec:
    """Change the spec of a world that is about to run.

    Implement it as a wrapper, so that several extensions can change the same spec::

        @pytest.hookimpl(wrapper=True)
        def pytest_multihost_prepare(plan, spec):
            spec = yield
            return dataclasses.replace(spec, keeps_operations=True)

    Args:
        plan: How it is to run; ``plan.settings`` are its settings.
        spec: The spec as the core has made it; what ``yield`` returns has other changes as well.
    """


@hookspec(firstresult=True)
def pytest_multihost_launch(  # type: ignore[empty-body]
    item: pytest.Item, spec: WorldSpec, launcher: Launcher
) -> Launcher:
    """Change what starts the ranks of a world. Implement it as a wrapper, as the hook before."""


@hookspec
def pytest_multihost_processes(config: pytest.Config) -> Collection[int]:  # type: ignore[empty-body]
    """Return ids of processes on this machine that belong to the harness, beside pytest's own.

    A rank that waits for one of them waits for nobody outside of its world.
    """


# After a world


@hookspec
def pytest_multihost_analyse(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Analyse an attempt that is over and judged, before its files are written.

    Called for every attempt, also for those that did not pass; ``attempt.judged.finding.status``
    says what became of it. ``attempt.scratch`` still has the slot pages of the ranks. An analysis
    can add JSON to verdict.json, warn, and fail a test that has passed.
    """


@hookspec
def pytest_multihost_explore(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Run a test further, when its own attempt is over and its files are written.

    As `pytest_multihost_analyse`, but it may take long and be interrupted: the verdict of the
    attempt is safe already, and cannot have the analysis's record. ``attempt.analyses`` has what
    `pytest_multihost_analyse` has returned.
    """


@hookspec
def pytest_multihost_renderers() -> Sequence[Renderer]:  # type: ignore[empty-body]
    """Return renderers: files of an attempt, sections of report.html, annotations of a run.

    What is to be written once at the end of a run is better written by `pytest_sessionfinish` or
    `pytest_terminal_summary`.
    """


# Elsewhere


@hookspec
def pytest_multihost_services() -> Sequence[ServiceKind]:  # type: ignore[empty-body]
    """Return services of worlds: what takes part in a world while it runs, beside its ranks.

    Called in the controller, in pytest and in ``multihost run``. A world has those that its spec
    names and those that are implied. If two have the same name, the plugin registered last wins.
    """


@hookspec
def pytest_multihost_hosts() -> Sequence[HostKind]:  # type: ignore[empty-body]
    """Return kinds of emulated hosts, for ``hosts="name"`` and ``hosts="name:2"``.

    Called in the controller, in pytest and in ``multihost run``, before markers are read.
    """


@hookspec
def pytest_multihost_server_start(config: pytest.Config) -> None:
    """Load large modules and data once; every rank inherits them, copy-on-write.

    Runs in the server, after collection and before the first rank is forked; it does not run if
    every rank collects by itself (launch `spawn`, `hash_seed`). The server must stay
    single-threaded: import modules and read data, but start no threads, no runtime and no parallel
    computation.
    """


# The console script `multihost`


@hookspec
def pytest_multihost_commands(commands: Commands) -> None:
    """Add subcommands to ``multihost``.

    Called before the command line is read, also for ``--help``: import what a command needs in the
    function that runs it. ``commands.add_parser("name", help=...).set_defaults(act=function)`` says
    which one that is. It is called with the options and with the hooks of all plugins, a
    `pluggy.HookRelay`, and returns the exit code; a `MultihostError` that it raises is shown.

    Plugins of others are found as pytest finds them: conftest.py in the working directory and
    installed plugins. They are loaded only for a command that this package does not have, so
    ``multihost --help`` does not list theirs.
    """


@hookspec
def pytest_multihost_explainers() -> Sequence[Explainer]:  # type: ignore[empty-body]
    """Return what explains folders of other kinds for ``multihost explain``.

    They are asked in turn, those of the plugin registered last first. A folder that none of them
    knows is explained as that of an attempt. Extensions of this package alone are asked: a plugin
    of others has a subcommand of its own.
    """


@hookspec(firstresult=True)
def pytest_multihost_run_joined(script: JoinedScript) -> int | None:
    """Run a script in ranks of the processes that a launcher has started, this one among them.

    Called for ``multihost run`` without ``--ranks``, in each of these processes. The one that runs
    the world calls ``script.run``; the others start ranks for it until it ends.

    Returns:
        The exit code of the run, in every process.

    Raises:
        SettingError: No launcher has started this process as one of several.
    """


@hookspec(firstresult=True)
def pytest_multihost_meeting(folder: Path) -> Meeting | None:
    """Return how this process meets the others that its launcher has started with it.

    For commands that run on several machines at once, as ``multihost attach``.

    Args:
        folder: A folder that the processes may share.

    Raises:
        SettingError: No launcher has started this process as one of several.
    """
