"""Services: participants of a running world that are not ranks, and the actions they request.

The engine runs one loop over ranks and services, and knows no service by name. The services for
held ranks and for the end of a script are built in. Extensions add others, such as a clock that
jumps, through the hook `pytest_multihost_services`.

A service decides in the controller. The server and the ranks have no plugin manager, so the world's
spec names a service's code there by import paths: see `model.spec.ServicePart`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import Event, EventBody, Gate
from pytest_multihost.core.model.messages import FaultRequest, ToRank
from pytest_multihost.core.model.result import ServiceRecord
from pytest_multihost.core.model.spec import ServicePart, WorldSpec
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.preload import PreloadedLibrary
from pytest_multihost.core.watch import Watchdog
from pytest_multihost.core.watch.kernel import TimeSource

if TYPE_CHECKING:
    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.host_kind import Hosts


def _do_nothing(_now: float) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action that a service requests from the engine.

    Attributes:
        perform: Called first, with the time: the service's own part, in this process.
        events: Events to record in the history: rank and body.
        to_ranks: Messages, each with the rank that gets it.
        to_server: Requests for actions that a rank cannot perform itself.
        gates: Gates to open for single ranks.
        moves_at_s: The ranks are about to move, at this time: earlier snapshots are not evidence of
            a hang. None: they are not.
        is_certain: Whether to perform it even if a rank has sent something since the decision.
    """

    perform: Callable[[float], None] = _do_nothing
    events: tuple[tuple[int, EventBody], ...] = ()
    to_ranks: tuple[tuple[int, ToRank], ...] = ()
    to_server: tuple[FaultRequest, ...] = ()
    gates: tuple[tuple[int, Gate], ...] = ()
    moves_at_s: float | None = None
    is_certain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The input of a service's decision, made while no event of a rank is unread.

    Attributes:
        deadline_s: The world's next deadline, at which it is ended.
        horizon_s: The same, or the world's horizon if that comes first.
        is_last: Whether this deadline is that of the timeout or the start-up timeout, and not of a
            grace period.
    """

    now: float
    facts: Sequence[RankFacts]
    deadline_s: float
    horizon_s: float
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service of a running world; by default it does nothing.

    Attributes:
        interval_s: Returns the longest time from one call of `due` to the next.
        on_event: Returns an event that has arrived as the history is to have it.
        on_request: Returns a request to the server as the server is to have it.
        after: Returns the actions that follow from an event at once. The facts include the event.
        due: Returns the actions to perform now. They are dropped if a rank sends something first,
            except certain ones; then `due` is called again.
        is_acting: Returns whether the service influences ranks at a time. Then their waits are not
            a hang, and `due` is called only for services that are acting or only observe.
        only_observes: Whether `due` returns nothing but actions of ranks.
        may_end: Returns whether the ranks may tear down, once all test bodies are over.
        has_proof: Returns whether the service has proven that nothing can move before a time.
        permits_proof: Returns whether nothing that the service does by itself can move a rank
            before a time. While it can, the watchdog's observations prove no hang.
        check: Called in every turn; raises LaunchError if a process of the service has ended, so
            that the world can show nothing any more.
        held_s: Returns for how long, from one time to another, it has held up the world, so that
            deadlines are later by this time.
        record: Returns a record of its actions, given the times of the world's start and end.
        time: The source of the world's time, if this service provides it.
        close: Called when the world is over.
    """

    name: str
    interval_s: Callable[[], float] = lambda: math.inf
    on_event: Callable[[Event], Event] = lambda event: event
    on_request: Callable[[FaultRequest], FaultRequest] = lambda request: request
    after: Callable[[Event, Sequence[RankFacts]], Sequence[Action]] = lambda _event, _facts: ()
    due: Callable[[Turn], Sequence[Action]] = lambda _turn: ()
    is_acting: Callable[[float], bool] = lambda _now: False
    only_observes: bool = False
    may_end: Callable[[], bool] = lambda: True
    has_proof: Callable[[float], bool] = lambda _deadline_s: False
    permits_proof: Callable[[float], bool] = lambda _deadline_s: True
    check: Callable[[], None] = lambda: None
    held_s: Callable[[float, float], float] = lambda _since_s, _until_s: 0.0
    record: Callable[[float, float], ServiceRecord | None] = lambda _started_s, _ended_s: None
    time: TimeSource | None = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """A library that must be loaded into ranks when their interpreter starts.

    Attributes:
        setting: The setting that needs it, such as "clock='jump'".
        instead: The setting that does without it, such as "clock='real'".
        is_optional: Whether the setting does with less where the library cannot be loaded.
    """

    library: PreloadedLibrary
    setting: str
    instead: str = ""
    is_optional: bool = False

    def require(self) -> None:
        """Check that this machine has the library.

        Raises:
            LaunchError: The library is not available.
        """
        if not self.is_optional and (why := self.library.why_missing()):
            raise LaunchError(
                f"{self.setting} needs a library that is not available here",
                seen=f"{why[:1].upper()}{why[1:]}.",
                remedy=f"Install a C compiler, or name one in CC; or say {self.instead}.",
            )

    def problems(self, launch: str) -> list[str]:
        """Return why a launch mode such as "fork" cannot load it; empty if it can."""
        if launch != "fork" or self.is_optional:
            return []
        why = (
            "needs a library that is loaded when an interpreter starts, and forked ranks start none"
        )
        return [f"{self.setting} {why}: leave out --multihost-launch=fork."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The world for which a service is opened.

    Attributes:
        scratch: The world's own directory. Services prefix the names of their files in it with
            "service-", and faults of files spare these.
        primary_leaves_last: Whether rank 0 may exit only after the others.
    """

    spec: WorldSpec
    scratch: Path
    watchdog: Watchdog
    primary_leaves_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKind:
    """A kind of service. Plugins offer theirs through the hook `pytest_multihost_services`.

    Attributes:
        name: Its name in the spec of a world that has it.
        open: Opens it for a world, in the controller, before the ranks are started; None if this
            world does not need it.
        part: Its entry in a world's spec: its code in other processes, and its settings.
        asked_by: The setting and value by which a test requests it, such as ("clock", "jump").
        is_implied: Whether it is opened for every world, without being named in the spec.
        needed_by: Returns whether a world needs it though no setting asks for it; its spec names
            it.
    """

    name: str
    open: Callable[[Opening], Service | None]
    part: ServicePart = field(default_factory=ServicePart)
    preload: Preload | None = None
    asked_by: tuple[str, str] | None = None
    is_implied: bool = False
    needed_by: Callable[[WorldSpec], bool] = lambda _spec: False


def asked_for(
    groups: Iterable[Sequence[ServiceKind]], settings: Mapping[str, object]
) -> list[ServiceKind]:
    """Return the kinds of services that a test or script requests by its settings.

    Args:
        groups: The kinds that each plugin offers.
        settings: The values of its settings, by their names.
    """
    offered = [each for group in groups for each in group]
    return [each for each in offered if each.asked_by and each.asked_by in settings.items()]


def services_of_world(
    hosts: Hosts, backend: Backend, asked: Iterable[ServiceKind]
) -> Mapping[str, ServicePart]:
    """Return the services of a world by name: of its hosts, of its backend, and by request.

    Args:
        asked: The requested ones, see `asked_for`. Of two with one name the later counts.
    """
    requested = {each.name: each.part for each in asked}
    return {**hosts.services, **backend.services, **requested}


def with_needed(spec: WorldSpec, kinds: Iterable[ServiceKind]) -> WorldSpec:
    """Return the spec of a world with the services that it needs; those stand before the others.

    Args:
        kinds: The kinds that exist. Of two with the same name the first counts.
    """
    known = {each.name: each for each in reversed([*kinds])}
    needed = {name: each.part for name, each in known.items() if each.needed_by(spec)}
    if needed.keys() <= spec.services.keys():
        return spec
    return replace(spec, services={**needed, **spec.services})


def preloads_of(spec: WorldSpec, kinds: Iterable[ServiceKind]) -> tuple[Preload, ...]:
    """Return the libraries that the services of a world preload into its ranks."""
    named = {each.name: each.preload for each in kinds if each.name in spec.services}
    return tuple(each for each in named.values() if each is not None)


def open_services(kinds: Collection[ServiceKind], opening: Opening) -> tuple[Service, ...]:
    """Open the services of a world; implied ones come first.

    Args:
        kinds: The kinds that exist. Of two with the same name the first counts.

    Raises:
        LaunchError: The world needs a service that does not exist here.
    """
    known = {each.name: each for each in reversed([*kinds])}
    needed = opening.spec.services
    if missing := sorted(needed.keys() - known.keys()):
        raise LaunchError(
            f"the world needs the service {missing[0]!r}, which no plugin offers",
            seen=f"Offered: {', '.join(sorted(known)) or 'none'}.",
        )
    chosen = [each for each in known.values() if each.is_implied or each.name in needed]
    chosen.sort(key=lambda each: (not (each.is_implied or each.needed_by(opening.spec)), each.name))
    opened = [each.open(opening) for each in chosen]
    return tuple(each for each in opened if each is not None)
