"""The model of a launcher, a service of a world in which a weakness is shown once more.

A rank that has failed ends as a process does (`in_rank`). A launcher such as torchrun then ends all
other ranks. Jobs of jax have none: there the runtime itself ends the other processes.

The engine ends a world soon after a rank has failed. So this service hides failures from it: the
engine sees a report that has passed, and a process that the harness has ended. The real
events are in the service's record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.event import Event, Exited, RaisedError, ReportMade
from pytest_multihost.core.model.event import now as real_clock
from pytest_multihost.core.model.json_values import Json, from_json, to_json
from pytest_multihost.core.model.result import ServiceRecord, WorldResult
from pytest_multihost.core.model.spec import ServicePart, WorldSpec
from pytest_multihost.core.outcome import describe_exit
from pytest_multihost.core.services import Opening, Service, ServiceKind

NAME = "sweep-launcher"
LISTENER_NAME = "sweep-log"

HORIZON_S = 7200.0
"""For how long a wait is followed, in the world's time. No timeout of a runtime is longer."""

_ENDED = -math.inf
"""The time that `held_s` returns once the world is over: every deadline has passed."""

_IN_RANK = "pytest_multihost.extensions.sweep.rating.in_rank"


@dataclass(frozen=True, slots=True)
class RankEnd:
    """A failure of a rank, or the end of its process.

    Attributes:
        how: Whether the test has raised in it, or its process has ended.
        text: The exception, or how the process has ended.
    """

    rank: int
    at_s: float
    how: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherRecord:
    """The observations of a model of a launcher.

    Attributes:
        ends: The failures, and the ends of processes, in order.
        ends_all: Whether the launcher ends all ranks when the process of one ends with an error.
        is_cut: Whether the world was ended because this took too long in real time.
    """

    ends: tuple[RankEnd, ...] = ()
    ends_all: bool = True
    is_cut: bool = False


@dataclass(slots=True)
class LauncherModel:
    """The launcher of one world.

    Attributes:
        most_s: The longest real time for the world.
    """

    ends_all: bool
    most_s: float
    real_now: Callable[[], float] = real_clock
    _ends: list[RankEnd] = field(default_factory=list)
    _began_s: float = 0.0
    _is_cut: bool = False

    def __post_init__(self) -> None:
        """Begin to count the real time."""
        self._began_s = self.real_now()

    def on_event(self, event: Event) -> Event:
        """Note a failure or the end of a process, and return the event without it."""
        match event.body:
            case ReportMade(outcome="failed", error=error) as made:
                self._note(event, "raised", _error_text(error))
                return replace(event, body=replace(made, outcome="passed", error=None))
            case Exited(by_harness=False) as status if status.signal is not None or status.code:
                self._note(event, "exited", describe_exit(status))
                return replace(event, body=replace(status, by_harness=True))
        return event

    def _note(self, event: Event, how: str, text: str) -> None:
        self._ends.append(RankEnd(event.rank, event.at_s, how, text))

    def held_s(self, _since_s: float, _until_s: float) -> float:
        """Return 0 while the world goes on; a time before all deadlines once it is over."""
        has_exited = any(each.how == "exited" for each in self._ends)
        if self.ends_all and has_exited:
            return _ENDED
        self._is_cut = self._is_cut or self.real_now() > self._began_s + self.most_s
        return _ENDED if self._is_cut else 0.0

    def record(self, _started_s: float, _ended_s: float) -> ServiceRecord:
        """Return the service's record of the world."""
        found = LauncherRecord(ends=tuple(self._ends), ends_all=self.ends_all, is_cut=self._is_cut)
        return ServiceRecord(verdict={"launcher": to_json(found)})


def _error_text(error: RaisedError | None) -> str:
    if error is None:
        return "failed"
    return "; ".join((f"{error.type}: {error.message}", *error.causes))


def read_launcher_record(result: WorldResult) -> LauncherRecord:
    """Return the observations of the launcher's model in a world."""
    found: Mapping[str, Json] = result.records[NAME].verdict
    return from_json(LauncherRecord, found["launcher"])


def _open(opening: Opening) -> Service:
    settings = opening.spec.services[NAME].settings
    model = LauncherModel(
        ends_all=bool(settings.get("ends_all")), most_s=float(str(settings.get("most_s")))
    )
    return Service(
        name=NAME,
        interval_s=lambda: 0.5,
        on_event=model.on_event,
        held_s=model.held_s,
        record=model.record,
    )


LAUNCHER = ServiceKind(
    name=NAME, open=_open, part=ServicePart(rank=f"{_IN_RANK}:join", keeps_timeouts=True)
)

LISTENER = ServiceKind(
    name=LISTENER_NAME,
    open=lambda _opening: None,  # all of it is in the ranks
    part=ServicePart(rank=f"{_IN_RANK}:join_as_listener"),
)


def listening(spec: WorldSpec) -> WorldSpec:
    """Return the spec of a world whose ranks log warnings and errors as those of a job do."""
    return replace(spec, services={**spec.services, LISTENER_NAME: LISTENER.part})


def under_launcher(spec: WorldSpec, *, ends_all: bool, most_s: float) -> WorldSpec:
    """Return the spec of a world that ends as a job does.

    Args:
        ends_all: Whether the launcher ends all ranks when the process of one ends with an error.
        most_s: The longest real time for the world.
    """
    part = replace(LAUNCHER.part, settings={"ends_all": ends_all, "most_s": most_s})
    return replace(spec, services={**spec.services, NAME: part}, timeout_s=HORIZON_S)
