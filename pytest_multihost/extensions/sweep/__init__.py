"""Sweeps: run a passing test again and again, each time with one disturbance.

`marker`, `options` and `hookspecs` are what users and other extensions say, `result` has the
values. `families` lists what a sweep can do to a rank. `run` sweeps tests, in the processes of
`lanes`. `report`, `words` and `html` show sweeps, `record` writes and reads sweep.json; the names
of files are `file_names`. `annotations` and `summary` are for a forge, `renderer` offers them.
A sweep calls, in this order, what follows; all of it is pure:

* `plan` makes the plan from the points of the undisturbed run: `classes` finds points that are
  alike, and ranks that pass the same points, `sharing` files that several ranks use, what certainly
  comes after what, and what whoever holds a lock does. From these the families make `choices`.
* `judge` says what a disturbance has brought about. `rest` skips what would only show again what is
  known.
* `weaknesses` reduces the runs to what they show, and says what to repeat; `acceptances` marks what
  the project accepts. `mendings` are the patterns that remove weaknesses.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.core.option import Option, Settings
    from pytest_multihost.core.pytest_plugin.analysis import Analysis
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
    from pytest_multihost.core.report.renderer import Renderer

SIGNATURE = (
    "multihost_sweep(families=None, *, budget=None, decisions=(), values=(), batches=()): run this"
    " multihost test again and again, each time with one disturbance, to find the hang that it"
    " hides. `families`: some of {families}; `budget`: seconds; `decisions`,"
    " `values`: functions, as 'module:function', that return another truth value or NaN on one"
    " rank; `batches`: data loaders, as 'module:name', whose data end early on one rank."
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook of sweeps."""
    from pytest_multihost.extensions.sweep import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer `--multihost-sweep` and `--multihost-sweep-budget`."""
    from pytest_multihost.extensions.sweep.options import BUDGET, SWEEP

    return [SWEEP, BUDGET]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--multihost-sweep-continue`."""
    group = parser.getgroup("multihost", "worlds of ranks")
    text = "Go on with sweeps that were interrupted or had no time left"
    group.addoption("--multihost-sweep-continue", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    from pytest_multihost.extensions.sweep.families import FAMILIES

    config.addinivalue_line("markers", SIGNATURE.format(families=", ".join(FAMILIES)))


@hookimpl(tryfirst=True)  # before other processes are waited for
def pytest_multihost_collected(session: pytest.Session) -> None:
    """Check that what is marked to be swept runs as a world."""
    marked = [item for item in session.items if item.get_closest_marker("multihost_sweep")]
    if marked:
        from pytest_multihost.extensions.sweep.marker import check_markers

        check_markers(marked)


@hookimpl
def pytest_multihost_plan(item: pytest.Item, settings: Settings) -> Sequence[str]:
    """Read the marker of a test."""
    from pytest_multihost.extensions.sweep.marker import plan_sweep_of

    return plan_sweep_of(item, settings)


@hookimpl(wrapper=True)
def pytest_multihost_prepare(item: pytest.Item) -> Generator[None, WorldSpec, WorldSpec]:
    """Begin to start the lanes, and have the undisturbed run record its points."""
    from pytest_multihost.extensions.sweep.marker import REQUEST

    request, spec = item.stash.get(REQUEST, None), (yield)
    if request is None:
        return spec
    from pytest_multihost.extensions.sweep.run import sweeps_of

    sweeps_of(item.config).prepare()
    return replace(
        spec,
        tells_points=True,
        told_calls=(*spec.told_calls, *request.decisions, *request.values),
        told_batches=(*spec.told_batches, *request.batches),
    )


@hookimpl
def pytest_multihost_explore(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Sweep a test whose undisturbed run is over."""
    from pytest_multihost.extensions.sweep.marker import REQUEST

    request = item.stash.get(REQUEST, None)
    if request is None:
        return None
    from pytest_multihost.extensions.sweep.run import sweeps_of

    return sweeps_of(item.config).explore(request, attempt)


@hookimpl
def pytest_multihost_renderers() -> Sequence[Renderer]:
    """Show sweeps in pages, annotations and summaries."""
    from pytest_multihost.extensions.sweep.renderer import RENDERER

    return [RENDERER]
