"""Runs the tests of other harnesses as worlds, unedited (`multihost_adopt`).

* `hookspecs` has the hook that decides about a test, and `adopted` its answers.
* `collect` gives adopted tests the marker `multihost`, and says how many there are; `ids` finds one
  by the id that it has in its harness.
* `processes` are stand-ins, inside a rank, for the processes that a harness would start.
* `torch_classes` and `deepspeed_classes` adopt the tests of classes; `enter` prepares their ranks.
* `calls` adopts calls that start ranks in the middle of a test, `background` those whose ranks run
  while the test goes on, `groups` processes that it starts and joins, and `session_pools` pools
  that the suite keeps; `joined` reads the code after a start, and `refusals` says why a call is not
  adopted.
* `option` names the adapters, and `differences` has the differences for an adopted test.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.core.option import Option
    from pytest_multihost.hookspecs import Commands


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook that adopts a test."""
    from pytest_multihost.extensions.adopt import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@hookimpl
def pytest_multihost_options() -> Sequence[Option[Any]]:
    """Offer `--multihost-adopt`."""
    from pytest_multihost.extensions.adopt.option import ADOPT

    return [ADOPT]


@hookimpl
def pytest_multihost_commands(commands: Commands) -> None:
    """Add `multihost adopt`, which lists the differences."""

    def act(*_: object) -> int:
        from pytest_multihost.extensions.adopt.differences import DIFFERENCES

        print(DIFFERENCES, end="")  # noqa: T201
        return 0

    about = "say what differs for a test of another harness that multihost_adopt runs on ranks"
    commands.add_parser("adopt", help=about).set_defaults(act=act)


@hookimpl(trylast=True)  # after the settings have been read
def pytest_configure(config: pytest.Config) -> None:
    """Register the adapters that the run names."""
    from pytest_multihost.core.pytest_plugin.tally import TALLY
    from pytest_multihost.extensions.adopt.option import ADAPTERS, ADOPT

    for name in config.stash[TALLY].settings.get(ADOPT):
        module = importlib.import_module(ADAPTERS[name])
        config.pluginmanager.register(module, f"multihost_adopt_{name}")


def _adopts(config: pytest.Config) -> bool:
    """Return whether any plugin adopts tests."""
    return bool(config.hook.pytest_multihost_adopt.get_hookimpls())


@hookimpl
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test function once for each of its sizes."""
    if _adopts(metafunc.config):
        from pytest_multihost.extensions.adopt.collect import adopt_definition

        adopt_definition(metafunc)


@hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Find a test of several sizes also by the id that it has in its own harness."""
    import pytest

    try:
        return (yield)
    except pytest.UsageError:
        from pytest_multihost.extensions.adopt.ids import collect_sizes

        if not _adopts(session.config) or not collect_sizes(session):
            raise
        return True


@hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adopt tests before other plugins select from them."""
    if _adopts(config):
        from pytest_multihost.extensions.adopt.collect import adopt_items
        from pytest_multihost.extensions.adopt.ids import WANTED, select

        adopt_items(items)
        if wanted := config.stash.get(WANTED, ()):
            select(items, wanted)


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    """Say how many tests are adopted; with --collect-only, the outcome of each."""
    if not _adopts(config):
        return []
    from pytest_multihost.extensions.adopt.collect import announcement

    return announcement(items, lists_tests=config.option.collectonly)


@hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """In a rank, put it in the place of the processes that the test's harness would start."""
    if _adopts(item.config):
        from pytest_multihost.extensions.adopt.enter import enter

        enter(item)
