"""The parts that services of the world have in a rank, and the clock that a part may provide."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pluggy

from pytest_multihost.core.import_path import import_path
from pytest_multihost.core.model.event import RankEventBody, ValueStated, now
from pytest_multihost.core.model.json_values import JsonObject
from pytest_multihost.core.model.spec import RankSpec


@dataclass(frozen=True, slots=True, eq=False)
class WorldClock:
    """The clock of a world.

    In a world with `clock="jump"` all processes share one clock. If only time can end their waits,
    it jumps to the end of the earliest wait. Otherwise it is the machine's clock.
    """

    _jumps: Callable[[], int] = int
    _is_jumping: Callable[[], bool] = bool
    _ahead_s: Callable[[], float] = float

    def __repr__(self) -> str:
        """Return the time and the jumps, as in "<WorldClock: 1234.5 s after 3 jumps>"."""
        return f"<WorldClock: {self.now():.1f} s after {self.jumps} jumps>"

    def now(self) -> float:
        """Return the world's time in seconds, equal to `time.monotonic()` in its ranks."""
        return now()

    @property
    def jumps(self) -> int:
        """How often it has jumped; always 0 with `clock="real"`."""
        return self._jumps()

    @property
    def is_jumping(self) -> bool:
        """Whether it jumps whenever it can: not with `clock="real"`, nor while jumps are paused."""
        return self._is_jumping()

    @property
    def ahead_s(self) -> float:
        """How far it is ahead of the machine's clock, and so of the times of files."""
        return self._ahead_s()


class NoTerminalError(RuntimeError):
    """A debugger was started in a rank that cannot get a terminal."""


Send = Callable[[RankEventBody], None]
"""Sends an event to the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTest:
    """The test or script that a rank is about to run.

    Attributes:
        send: Sends an event to the controller.
        await_performed: Waits until a fault, given by its number in the world, has been performed
            outside the rank; returns an error message, or "".
        ask: Sends a message to a service, given by its name, and returns the service's answer.
        plugins: All plugins, and their hooks.
        root: The directory that frames are shown relative to.
        ready_s: When the rank was ready for the test, in monotonic seconds.
        modules: Modules of the test that are not in `sys.modules`.
    """

    send: Send
    await_performed: Callable[[int], str]
    ask: Callable[[str, JsonObject], JsonObject]
    plugins: pluggy.PluginManager
    root: str
    ready_s: float
    modules: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """The part of a service in a rank.

    Attributes:
        clock: The world's clock, if the service changes it.
        delay: Called before the rank starts its backend, with the sender of events.
        start: Called before the first fixture of a test is set up, and before any part's `begin`.
            A SettingError that it raises fails the test.
        sync_point: Called when the test passes a sync point, with its name.
        over: Called when the test's body is over, however it has ended, and again before the rank
            reports that.
        state: Returns values that all ranks are to have at the end of the test's body.
        after_failure: Called once the test has failed in this rank, after the report and before
            any teardown. It may end the process.
        begin: Called before the first fixture of a test is set up.
        end: Called when the test's body has returned.
        parked: Called after the rank has reported to the controller that the test's body is over.
        debug: Connects a debugger (`pdb.Pdb`) that is about to stop in this rank with the user.
    """

    clock: WorldClock | None = None
    delay: Callable[[Send], None] | None = None
    start: Callable[[RankTest], None] | None = None
    sync_point: Callable[[str], None] | None = None
    over: Callable[[], None] | None = None
    state: Callable[[], Iterable[ValueStated]] | None = None
    after_failure: Callable[[], None] | None = None
    begin: Callable[[], None] | None = None
    end: Callable[[], None] | None = None
    parked: Callable[[], None] | None = None
    debug: Callable[[Any], None] | None = None


JoinService = Callable[[RankSpec], RankPart]
"""The function that `ServicePart.rank` names; called before anything else in a rank."""

_parts: list[RankPart] = []
"""The parts in this process, which is a rank for its whole life."""


def join_services(spec: RankSpec) -> None:
    """Let this process, a new rank, take part in the services of its world.

    Raises:
        Exception: This rank cannot take part in a service, which may raise anything.
    """
    joins: list[JoinService] = [
        import_path(each.rank) for each in spec.world.services.values() if each.rank
    ]
    _parts[:] = [join(spec) for join in joins]


def current_clock() -> WorldClock:
    """Return the clock of this rank's world: the machine's, unless a service provides another."""
    return next((each.clock for each in _parts if each.clock is not None), WorldClock())


def delay_backend(send: Send) -> None:
    """Let the services' parts in this rank act before its backend starts."""
    for part in _parts:
        if part.delay is not None:
            part.delay(send)


def begin_test(test: RankTest) -> None:
    """Let the services' parts in this rank know that its test begins.

    A part whose `begin` cannot do its work does not fail the test.

    Raises:
        SettingError: The world asks for something of a service that this rank cannot have.
    """
    for part in _parts:
        if part.start is not None:
            part.start(test)
    for part in _parts:
        if part.begin is not None:
            with contextlib.suppress(Exception):
                part.begin()


def end_test() -> None:
    """Let the services' parts in this rank know that the body of its test has returned."""
    for part in _parts:
        if part.end is not None:
            with contextlib.suppress(Exception):
                part.end()


def pass_sync_point(name: str) -> None:
    """Let the services' parts in this rank act at a sync point of the test."""
    __tracebackhide__ = True
    for part in _parts:
        if part.sync_point is not None:
            part.sync_point(name)


def leave_body() -> None:
    """Let the services' parts in this rank know that the test's body is over; may be repeated."""
    for part in _parts:
        if part.over is not None:
            part.over()


def park_services() -> None:
    """Let the services' parts in this rank know that the controller knows of the body's end."""
    for part in _parts:
        if part.parked is not None:
            with contextlib.suppress(Exception):
                part.parked()


def connect_debugger(debugger: Any) -> None:  # noqa: ANN401 - pdb.Pdb, or the class of --pdbcls
    """Let the services' parts in this rank connect a debugger with the user.

    Raises:
        NoTerminalError: None does, and a rank itself has no terminal.
    """
    connecting = [part.debug for part in _parts if part.debug is not None]
    if not connecting:
        raise NoTerminalError(
            "the debugger in a rank needs a terminal, and this run lends it none: its standard"
            " input is not one, or the plugin that lends it is switched off."
            " Run pytest in a terminal, without -n."
        )
    for connect in connecting:
        connect(debugger)


def stated_by_services() -> Iterator[ValueStated]:
    """Yield the values that the services' parts in this rank state at the end of a test's body.

    A part that cannot state a value states no more, and the test goes on.
    """
    for part in _parts:
        if part.state is not None:
            with contextlib.suppress(Exception):
                yield from part.state()


def leave_to_services_after_failure() -> None:
    """Let the services' parts in this rank act after the test has failed in it."""
    for part in _parts:
        if part.after_failure is not None:
            part.after_failure()
