"""Session fixtures that the server sets up once, before it forks ranks.

A fixture of a test is set up in each rank, because it may hold things that a fork would break:
threads, sockets, process groups. A model that takes half a minute to load holds none of these. The
setting `multihost_shared_fixtures` names such fixtures. The server sets them up before its first
fork, so all ranks of all tests share their values, copy-on-write, and their teardown runs once, in
the server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_multihost.core.launch.server import fork_problems
from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.core.pytest_private import set_up_session_fixture

SHARED_FIXTURES = "multihost_shared_fixtures"
"""Name of the setting."""

_DESCRIPTORS = Path("/proc/self/fd")


def shared_fixtures(config: pytest.Config) -> Sequence[str]:
    """Return the names of the fixtures to share, from the configuration file."""
    names: Sequence[str] = config.getini(SHARED_FIXTURES)
    return names


def share_fixtures(names: Iterable[str], items: Iterable[pytest.Item]) -> Callable[[], None]:
    """Set up the shared fixtures that the items request; return their teardown.

    An exception of a fixture is not raised here: each rank that requests the fixture raises it.

    Args:
        names: The fixtures' names; a fixture that no item requests is not set up.
        items: The collected items, as pytest has collected them.

    Raises:
        SettingError: A fixture cannot be shared.
    """
    functions = [each for each in items if isinstance(each, pytest.Function)]
    with ExitStack() as teardown:
        for name in names:
            item = next((each for each in functions if name in each.fixturenames), None)
            if item is not None:
                _share(name, item, teardown)
        kept = teardown.pop_all()
    return kept.close


def _share(name: str, item: pytest.Function, teardown: ExitStack) -> None:
    before, sockets = fork_problems(), _sockets()
    try:
        finishers = set_up_session_fixture(name, item)
    except ValueError as error:
        raise _unshareable(name, str(error)) from None
    for finish in finishers:
        teardown.callback(finish)
    left = [each for each in fork_problems() if each not in before]
    if set(_sockets()) - set(sockets):
        left.append("it opens a socket, which all ranks would use at once")
    groups = sys.modules.get("torch.distributed")
    if groups is not None and groups.is_available() and groups.is_initialized():
        left.append("it initialises torch.distributed, which each rank must do itself")
    if left:
        raise _unshareable(name, "; ".join(left))


def _unshareable(name: str, why: str) -> SettingError:
    return SettingError(
        f"the fixture {name!r} cannot be shared by ranks, which are forked after it is set up",
        seen=why,
        remedy=f"Leave it out of {SHARED_FIXTURES}: each rank then sets up its own.",
    )


def _sockets() -> Sequence[str]:
    links = []
    for descriptor in os.listdir(_DESCRIPTORS):
        try:
            links.append(os.readlink(_DESCRIPTORS / descriptor))
        except OSError:  # closed meanwhile: the listing's own descriptor
            continue
    return [each for each in links if each.startswith("socket:")]
