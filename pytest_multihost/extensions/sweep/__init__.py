"""Sweeps: run a passing test again and again, each time with one disturbance.

`marker` and `options` are the interface for users, and `result` has the values. `families` lists
the kinds of disturbances. `run` sweeps tests in the processes of `lanes`. `report` and `html` show
sweeps, `annotations` and `summary` are for a forge, and `renderer` offers them; all of them use the
texts of `words` and the lines of `rows`. `record` writes and reads sweep.json, and `file_names` has
the names of files. A sweep uses the following modules, in this order; all their functions are pure:

* `plan` makes the plan from the points of the undisturbed run. `classes` groups equivalent points,
  and ranks that pass the same points. `epochs` finds the certain order of points, `sharing` the
  files that several ranks use, and `lock_holders` the points of a lock's holder. From these the
  families make `choices`.
* `judge` returns the outcome of a disturbance. `rest` skips disturbances that would show nothing
  new.
* `weaknesses` reduces the runs to weaknesses, and selects the runs to repeat; `acceptances` marks
  the weaknesses that the project accepts. `mendings` has the patterns that remove weaknesses, and
  `mend_command` prints them. `own_kinds` returns the words for kinds of faults.

`local_decisions` finds the decisions that each rank takes from data that it alone sees.
`remains` reads the remains of a world that its events lack: `order` finds collectives
that cannot match, `saved` damaged files, `sayings` new output of ranks.
`replicas` has ranks state values that must be equal on all of them, `replicated_arrays` finds such
arrays of jax, and `random_states` notes who restores random numbers. `replayed` finds
out whether a replayed run is wrong, as its sweep did.
`rating` finds out how much a weakness matters. `reproduce` shows one without this plugin, and
`references` names public reports of the faults.
"""

from __future__ import annotations

import argparse
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
    from pytest_multihost.core.services import ServiceKind
    from pytest_multihost.hookspecs import Commands

SIGNATURE = (
    "multihost_sweep(families=None, *, budget=None, decisions=(), values=(), batches=()): run this"
    " multihost test again and again, each time with one injected fault, to find the hang that it"
    " hides. `families`: some of {families}; `budget`: seconds; `decisions`,"
    " `values`: functions, as 'module:function', that return another truth value or NaN on one"
    " rank; `batches`: data loaders, as 'module:name', whose data end early on one rank."
)


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer `--multihost-sweep`, `--multihost-sweep-budget` and `--multihost-sweep-show`."""
    from pytest_multihost.extensions.sweep.options import BUDGET, SHOW, SWEEP

    return [SWEEP, BUDGET, SHOW]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare an option of earlier versions, which names its replacement."""
    parser.addoption("--multihost-sweep-continue", action="store_true", help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker.

    Raises:
        pytest.UsageError: An option is of an earlier version.
    """
    from pytest_multihost.extensions.sweep.families import FAMILIES

    if config.getoption("multihost_sweep_continue"):
        from pytest_multihost.core.pytest_plugin.usage_errors import usage_error

        raise usage_error(
            "--multihost-sweep-continue is gone: each sweep begins anew."
            " --multihost-sweep-budget=SECONDS gives it more time."
        )
    config.addinivalue_line("markers", SIGNATURE.format(families=", ".join(FAMILIES)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load the kinds of faults in the process that forks the ranks: each rank would do it again."""
    is_asked = bool(session.config.getoption("multihost_sweep", None))
    if is_asked or any(item.get_closest_marker("multihost_sweep") for item in session.items):
        session.config.hook.pytest_multihost_faults()


@hookimpl(tryfirst=True)  # before another plugin waits for other processes
def pytest_multihost_collected(session: pytest.Session) -> None:
    """Check that every test with the marker runs as a world."""
    if any(item.get_closest_marker("multihost_sweep") for item in session.items):
        from pytest_multihost.extensions.sweep.marker import check_markers

        check_markers(session)


@hookimpl
def pytest_multihost_plan(item: pytest.Item, settings: Settings) -> Sequence[str]:
    """Read the marker of a test."""
    from pytest_multihost.extensions.sweep.marker import plan_sweep_of

    return plan_sweep_of(item, settings)


@hookimpl(wrapper=True)
def pytest_multihost_prepare(item: pytest.Item) -> Generator[None, WorldSpec, WorldSpec]:
    """Begin to start the lanes, and make the undisturbed run record its points.

    A world that is replayed may be the witness of a sweep, so its ranks state the values that must
    be alike.
    """
    from pytest_multihost.extensions.sweep.marker import REQUEST

    request, spec = item.stash.get(REQUEST, None), (yield)
    is_replay = bool(item.config.getoption("multihost_replay", None))
    if request is None and not is_replay:
        return spec
    from pytest_multihost.extensions.sweep.replicas import stating_replicas

    stating = stating_replicas(spec)
    if request is None:
        return stating
    from pytest_multihost.extensions.sweep.choices import BESIDE, STARTS
    from pytest_multihost.extensions.sweep.local_decisions.service import watching
    from pytest_multihost.extensions.sweep.marker import thread_classes
    from pytest_multihost.extensions.sweep.rating.launcher import listening
    from pytest_multihost.extensions.sweep.run import sweeps_of

    sweeps_of(item.config).prepare()
    beside = (*BESIDE, *STARTS, *thread_classes())
    recorded = listening(stating)
    if "differs" in request.families:
        recorded = watching(recorded, item.config.rootpath)
    return replace(
        recorded,
        tells_points=True,
        told_calls=(*spec.told_calls, *request.decisions, *request.values, *beside),
        told_batches=(*spec.told_batches, *request.batches),
    )


@hookimpl
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the services of worlds that are swept."""
    from pytest_multihost.extensions.sweep.local_decisions.service import WATCH
    from pytest_multihost.extensions.sweep.rating.launcher import LAUNCHER, LISTENER
    from pytest_multihost.extensions.sweep.replicas import REPLICAS

    return [REPLICAS, LAUNCHER, LISTENER, WATCH]


@hookimpl
def pytest_multihost_analyse(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Keep the records and remains of an undisturbed run, before its directory is removed.

    Of a world that is replayed, find out whether it is wrong.
    """
    from pytest_multihost.extensions.sweep.marker import REMAINS, REQUEST, SEEN

    if item.stash.get(REQUEST, None) is not None:
        from pytest_multihost.extensions.sweep.local_decisions.service import read_records
        from pytest_multihost.extensions.sweep.remains import read_remains

        result = attempt.judged.result
        item.stash[REMAINS] = read_remains(result, attempt.directory, attempt.scratch)
        item.stash[SEEN] = read_records(attempt.scratch, range(result.spec.size))
    elif item.config.getoption("multihost_replay", None):
        from pytest_multihost.extensions.sweep.replayed import analyse_replay

        return analyse_replay(item, attempt)
    return None


@hookimpl
def pytest_multihost_explore(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Sweep a test whose undisturbed run is over."""
    from pytest_multihost.extensions.sweep.marker import REQUEST

    request = item.stash.get(REQUEST, None)
    if request is None:
        return None
    from pytest_multihost.extensions.sweep.run import sweeps_of

    return sweeps_of(item.config).explore(item, request, attempt)


@hookimpl
def pytest_multihost_renderers() -> Sequence[Renderer]:
    """Show sweeps in pages, annotations and summaries."""
    from pytest_multihost.extensions.sweep.renderer import RENDERER

    return [RENDERER]


@hookimpl
def pytest_multihost_commands(commands: Commands) -> None:
    """Add ``multihost pattern`` and ``multihost reproduce``."""
    from pytest_multihost.extensions.sweep.mend_command import add_mend
    from pytest_multihost.extensions.sweep.reproduce.command import add_reproduce

    add_mend(commands)
    add_reproduce(commands)
