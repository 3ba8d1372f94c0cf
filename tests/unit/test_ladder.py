"""Ways of launching: the cheapest that is sound, and never back down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.launch.server import FallbackLauncher
from pytest_multihost.model.errors import LaunchError, UnsoundForkError
from pytest_multihost.testing import make_spec

NOWHERE = Path("/nonexistent")


@dataclass
class Rung:
    """A launcher that raises what it is given, and notes what it was asked."""

    name: str
    opens: Exception | None = None
    starts: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.asked.append("open")
        if self.opens is not None:
            raise self.opens

    def start(self, *_: object, **__: object) -> str:
        self.asked.append("start")
        if self.starts is not None:
            raise self.starts
        return f"a world by {self.name}"

    def close(self) -> None:
        self.asked.append("close")


def ladder(*launchers: Any) -> FallbackLauncher:  # noqa: ANN401 - stands for a launcher
    """Return a ladder of fakes."""
    return FallbackLauncher(list(launchers))


def unsound(seen: str) -> UnsoundForkError:
    """Return the error of a rung that cannot be used."""
    return UnsoundForkError("it cannot be forked", seen=seen)


def start(of: FallbackLauncher) -> Any:  # noqa: ANN401 - what the fake returns
    """Start a world."""
    return of.start(make_spec(2), directory=NOWHERE, scratch=NOWHERE)


def test_the_cheapest_sound_way_is_used() -> None:
    """Nobody asks a rung further up."""
    fork, server = Rung("fork"), Rung("server")
    found = ladder(fork, server)
    found.open()
    assert (found.name, start(found), found.reasons) == ("fork", "a world by fork", [])
    assert server.asked == []


def test_an_unsound_way_is_left_with_its_reason() -> None:
    """The header says what forced the next rung."""
    fork, server = Rung("fork", unsound("2 threads")), Rung("server")
    found = ladder(fork, server)
    found.open()
    assert (found.name, found.reasons) == ("server", ["2 threads"])
    assert fork.asked == ["open", "close"]


def test_a_way_can_become_unsound_between_two_worlds() -> None:
    """The world that finds out is started on the next rung, and so are all after it."""
    fork, server = Rung("fork", starts=unsound("a jax backend")), Rung("server")
    found = ladder(fork, server)
    found.open()
    assert start(found) == start(found) == "a world by server"
    assert fork.asked == ["open", "start", "close"]


def test_where_no_way_is_sound_the_last_reason_is_raised() -> None:
    """There is nothing left to step up to."""
    found = ladder(
        Rung("fork", unsound("threads")), Rung("server", unsound("a module-level array"))
    )
    with pytest.raises(UnsoundForkError, match="a module-level array"):
        found.open()


def test_a_way_that_fails_is_not_unsound() -> None:
    """A server that could not be started says nothing of the next rung."""
    fork, server = Rung("fork", LaunchError("no ports")), Rung("server")
    with pytest.raises(LaunchError, match="no ports"):
        ladder(fork, server).open()
    assert server.asked == []


def test_closing_ends_the_server_in_use() -> None:
    """The others have none."""
    fork, server = Rung("fork", unsound("threads")), Rung("server")
    found = ladder(fork, server)
    found.open()
    found.close()
    assert server.asked == ["open", "close"]
