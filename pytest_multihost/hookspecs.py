"""Hooks that other plugins and conftest files implement: the extension guide.

All built-ins, and every extension in `pytest_multihost.extensions`, use the same hooks as a third
party. An extension is a pytest plugin that implements some of these hooks; it may also implement
pytest's own hooks. Import the values that the hooks exchange from this module, because the modules
that define them may change. Each value is loaded on first access.

In a run of pytest, the hooks about tests are called in this order:

1. `pytest_multihost_options`, as soon as a plugin is registered;
2. `pytest_multihost_collected`, once the list of tests is final;
3. `pytest_multihost_plan`, for each test that will run as a world;
4. `pytest_multihost_prepare` and `pytest_multihost_launch`, before a world runs;
5. `pytest_multihost_analyse`, when the world has ended and is judged;
6. `pytest_multihost_renderers`, when its files are written;
7. `pytest_multihost_explore`, after that.

This module imports pluggy, not pytest, so that plugins can be loaded without pytest.
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
    from pytest_multihost.core.fault_planner import FaultPlanner
    from pytest_multihost.core.host_kind import HostKind
    from pytest_multihost.core.launch import Launcher
    from pytest_multihost.core.launch.meeting import Meeting
    from pytest_multihost.core.model.spec import (
        Host,
        RankSpec,
        RecorderPart,
        ServicePart,
        WorldSpec,
    )
    from pytest_multihost.core.option import (
        MarkerKey,
        Option,
        Settings,
        is_count,
        must_be,
        parse_count,
    )
    from pytest_multihost.core.pytest_plugin.analysis import Analysis, PlacedWarning
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
    from pytest_multihost.core.pytest_plugin.other_machines import OtherMachines
    from pytest_multihost.core.pytest_plugin.plan import Plan
    from pytest_multihost.core.report.annotation import Annotation
    from pytest_multihost.core.report.layout import Section, Span
    from pytest_multihost.core.report.renderer import PageSection, Renderer, RowPart
    from pytest_multihost.core.services import Action, Opening, Service, ServiceKind, Turn
    from pytest_multihost.faults.kind import FaultKind, Strike

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - has no other name
    """The type that ``argparse.ArgumentParser.add_subparsers`` returns."""

__all__ = [
    "Action",
    "Analysis",
    "Annotation",
    "Backend",
    "CompletedAttempt",
    "Explainer",
    "FaultKind",
    "FaultPlanner",
    "Host",
    "HostKind",
    "JoinedScript",
    "Launcher",
    "MarkerKey",
    "Meeting",
    "Opening",
    "Option",
    "OtherMachines",
    "PageSection",
    "PlacedWarning",
    "Plan",
    "RankSpec",
    "RecorderPart",
    "Renderer",
    "RowPart",
    "Section",
    "Service",
    "ServiceKind",
    "ServicePart",
    "Settings",
    "Span",
    "Strike",
    "Turn",
    "WorldSpec",
    "hookimpl",
    "hookspec",
    "is_count",
    "must_be",
    "parse_count",
]

hookspec = pluggy.HookspecMarker("pytest")
"""Marks a function as the specification of a hook; the same as `pytest.hookspec`."""

hookimpl = pluggy.HookimplMarker("pytest")
"""Marks a function as an implementation of a hook; the same as `pytest.hookimpl`."""

_HOMES = {
    "Action": "core.services",
    "Analysis": "core.pytest_plugin.analysis",
    "Annotation": "core.report.annotation",
    "Backend": "core.backends",
    "CompletedAttempt": "core.pytest_plugin.attempt",
    "Explainer": "core.command.explainer",
    "FaultKind": "faults.kind",
    "FaultPlanner": "core.fault_planner",
    "Host": "core.model.spec",
    "HostKind": "core.host_kind",
    "JoinedScript": "core.command.joined_script",
    "Launcher": "core.launch",
    "MarkerKey": "core.option",
    "Meeting": "core.launch.meeting",
    "Opening": "core.services",
    "Option": "core.option",
    "OtherMachines": "core.pytest_plugin.other_machines",
    "PageSection": "core.report.renderer",
    "PlacedWarning": "core.pytest_plugin.analysis",
    "Plan": "core.pytest_plugin.plan",
    "RankSpec": "core.model.spec",
    "RecorderPart": "core.model.spec",
    "Renderer": "core.report.renderer",
    "RowPart": "core.report.renderer",
    "Section": "core.report.layout",
    "Service": "core.services",
    "ServiceKind": "core.services",
    "ServicePart": "core.model.spec",
    "Settings": "core.option",
    "Span": "core.report.layout",
    "Strike": "faults.kind",
    "Turn": "core.services",
    "WorldSpec": "core.model.spec",
    "is_count": "core.option",
    "must_be": "core.option",
    "parse_count": "core.option",
}
"""The values that hooks exchange, with the modules that define them."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class of any kind
    """Load a value that hooks exchange; importing all would slow down every run of pytest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"pytest_multihost.{_HOMES[name]}"), name)


# Backends, faults and options


@hookspec
def pytest_multihost_backends() -> Sequence[Backend]:  # type: ignore[empty-body]
    """Return backends for ``@pytest.mark.multihost(backend=...)``.

    Called when the first multihost test is known, in pytest's own process and in every interpreter
    that it starts. If two backends have the same name, the plugin registered last wins, so a
    project can replace a built-in backend.
    """


@hookspec
def pytest_multihost_faults() -> Sequence[FaultKind]:  # type: ignore[empty-body]
    """Return kinds of faults for ``faults.other("name", rank=..., ...)``.

    Called in pytest's own process when the first multihost test is known, and in each rank of a
    world that has faults. If two kinds have the same name, the plugin registered last wins. A fault
    registers with ``strike.healing`` how to undo its changes when the test's body is over.
    """


@hookspec(firstresult=True)
def pytest_multihost_fault_planner(kinds: Sequence[Sequence[FaultKind]]) -> FaultPlanner | None:
    """Return a planner that reads and checks the faults of tests and scripts.

    Called in pytest's own process, or by ``multihost run``, when the first world is planned.

    Args:
        kinds: The kinds that each plugin offers, the plugin registered last first.
    """


@hookspec
def pytest_multihost_recorders() -> Sequence[RecorderPart]:  # type: ignore[empty-body]
    """Return recorders of the waits of libraries in ranks.

    Called in pytest's own process, or by ``multihost run``, when the first world is planned. The
    functions that the parts name are called in each rank that imports their module, and in each
    interpreter that a rank with a role starts and that imports it.
    """


@hookspec(historic=True)
def pytest_multihost_options() -> Sequence[Option[Any]]:  # type: ignore[empty-body]
    """Return options to offer.

    An `Option` is set by the command line, the environment or the ini file; with a `MarkerKey`, the
    marker `multihost` can also set it. ``settings.get(OPTION)`` returns its value, so keep the
    object in a module from which you can import it. Called once for each plugin, when it is
    registered; a conftest file must be loaded before pytest parses the command line, as
    for `pytest_addoption`. Declare other forms of options, such as a switch without a value, with
    `pytest_addoption`.
    """


@hookspec
def pytest_multihost_run_options() -> Sequence[Option[Any]]:  # type: ignore[empty-body]
    """Return options that ``multihost run`` also takes, as ``--name``.

    These are the options that ask for services: `ServiceKind.asked_by`. Called before the command
    line is read, so import nothing large.
    """


@hookspec
def pytest_multihost_controller_only() -> Mapping[str, object]:  # type: ignore[empty-body]
    """Return pytest options that must act only in the controller.

    The keys are their ``dest``, the values switch them off. These values are set in each
    interpreter that collects the tests again to run ranks.
    """


# Before a world runs


@hookspec
def pytest_multihost_collected(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Act on the final list of tests, before the first server is started.

    Args:
        session: The session; ``session.items`` are all its tests.
        items: The tests that will run as worlds; there may be none.

    Raises:
        pytest.UsageError: The tests cannot run like this; the error ends the run.
    """


@hookspec
def pytest_multihost_plan(  # type: ignore[empty-body]
    item: pytest.Item, settings: Settings
) -> Sequence[str]:
    """Take part in planning a test that will run as a world; return every problem.

    An extension reads its own markers here, and keeps their values in ``item.stash``. All problems
    of all tests are reported together, before any test runs; each continues
    ``@pytest.mark.multihost``, or names another marker: "@pytest.mark.my_marker has no key 'x'".

    Args:
        settings: The run's settings with the test's marker applied.
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
        plan: The plan of the test; ``plan.settings`` are its settings.
        spec: The core's spec; ``yield`` returns it with the changes of other extensions.
    """


@hookspec(firstresult=True)
def pytest_multihost_launch(  # type: ignore[empty-body]
    item: pytest.Item, spec: WorldSpec, launcher: Launcher
) -> Launcher:
    """Change the launcher of a world. Implement it as a wrapper, as `pytest_multihost_prepare`."""


@hookspec(firstresult=True)
def pytest_multihost_other_machines(config: pytest.Config) -> OtherMachines | None:
    """Return the machines that start the ranks of this run; None: this machine does.

    Called once the tests are planned, before anything is started here.
    """


@hookspec
def pytest_multihost_processes(config: pytest.Config) -> Collection[int]:  # type: ignore[empty-body]
    """Return ids of processes on this machine that belong to the harness, besides pytest's own.

    A rank's wait for one of these processes does not lead outside its world.
    """


# After a world


@hookspec
def pytest_multihost_analyse(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Analyse an attempt that has ended and is judged, before its files are written.

    Called for every attempt, passed or not; ``attempt.judged.finding.status`` has its status.
    ``attempt.scratch`` still has the slot pages of the ranks. An analysis can add JSON to
    verdict.json, warn, and fail a test that has passed.
    """


@hookspec
def pytest_multihost_explore(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Run further worlds of a test, when its own attempt has ended and its files are written.

    Like `pytest_multihost_analyse`, but it may take long and be interrupted. The verdict of the
    attempt is already written, so it cannot have the analysis's record. ``attempt.analyses`` has
    the results of `pytest_multihost_analyse`.
    """


@hookspec
def pytest_multihost_renderers() -> Sequence[Renderer]:  # type: ignore[empty-body]
    """Return renderers for files of an attempt, sections of report.html, annotations of a run.

    For output that is written once at the end of a run, implement `pytest_sessionfinish` or
    `pytest_terminal_summary` instead.
    """


# Services, hosts and servers


@hookspec
def pytest_multihost_services() -> Sequence[ServiceKind]:  # type: ignore[empty-body]
    """Return services of worlds: objects that take part in a running world besides its ranks.

    Called in the controller, in pytest and in ``multihost run``. A world has the services that its
    spec names and the implied ones. If two services have the same name, the plugin registered
    last wins.
    """


@hookspec
def pytest_multihost_hosts() -> Sequence[HostKind]:  # type: ignore[empty-body]
    """Return kinds of emulated hosts, for ``hosts="name"`` and ``hosts="name:2"``.

    Called in the controller, in pytest and in ``multihost run``, before markers are read.
    """


@hookspec
def pytest_multihost_server_start(config: pytest.Config) -> None:
    """Load large modules and data once; every rank inherits them, copy-on-write.

    Called in the server, after collection and before the first rank is forked; not called if every
    rank collects by itself (launch `spawn`, `hash_seed`). The server must stay single-threaded:
    import modules and read data, but start no threads, no runtime and no parallel computation.
    """


# The console script `multihost`


@hookspec
def pytest_multihost_commands(commands: Commands, hook: pluggy.HookRelay) -> None:
    """Add subcommands to ``multihost``.

    Called before the command line is read, even for ``--help``, so import a command's modules in
    the function that runs it. Set that function with
    ``commands.add_parser("name", help=...).set_defaults(act=function)``. It takes the options and
    the hooks of all plugins, a `pluggy.HookRelay`, and returns the exit code. If it raises a
    `MultihostError`, the error is printed.

    Other packages' plugins are found as pytest finds them: conftest.py in the working directory and
    installed plugins. They are loaded only for a command that this package does not have, so
    ``multihost --help`` does not list their commands.

    Args:
        hook: The hooks of all plugins.
    """


@hookspec
def pytest_multihost_explainers() -> Sequence[Explainer]:  # type: ignore[empty-body]
    """Return explainers of other kinds of folders for ``multihost explain``.

    They are tried in turn, beginning with the plugin registered last. A folder that none of them
    knows is explained as the folder of an attempt. Only extensions of this package are called;
    other packages' plugins add their own subcommands.
    """


@hookspec(firstresult=True)
def pytest_multihost_run_joined(script: JoinedScript) -> int | None:
    """Run a script in the processes that a launcher has started, including this one.

    Called for ``multihost run`` without ``--ranks``, in each of these processes. One process calls
    ``script.run`` to run the world; the others start ranks for it until it ends.

    Returns:
        The exit code of the run, in every process.

    Raises:
        SettingError: No launcher has started this process as one of several.
    """


@hookspec(firstresult=True)
def pytest_multihost_meeting(folder: Path) -> Meeting | None:
    """Return this process's meeting with the others that its launcher has started.

    Commands use it that run on several machines at once, such as ``multihost attach``.

    Args:
        folder: A folder that the processes may share.

    Raises:
        SettingError: No launcher has started this process as one of several.
    """
