"""The type of a kind of fault: its parameters, its effect on a rank, and how it is undone."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, TypeGuard

from pytest_multihost.core.model.errors import shown
from pytest_multihost.core.model.fault import (
    Fault,
    FaultFacts,
    FaultParams,
    Point,
    PointKind,
)
from pytest_multihost.core.model.setting_values import MAX_SECONDS
from pytest_multihost.core.model.spec import Host, RankSpec

_MAX_NUMBER = 1 << 63
Check = Callable[[object], str | None]
"""Returns the kind of value wanted, or None if the value is valid."""


OnePer = Literal["", "rank", "point", "path", "host"]

Conflicts = Callable[[Sequence[Fault], Sequence[Host], int], list[str]]
"""Returns why hosts cannot have faults: see `FaultKind.conflicts`."""


class Announcement(TypedDict, total=False):
    """A rank's report to the controller about a fault before performing it.

    The rank may not be able to report anything afterwards: it may be stopped, dead, or cut off.

    Attributes:
        until_s: When it will be over by itself, in monotonic seconds.
        pause: How the server is to stop and continue the rank: the fields of `model.event.Pause`.
        kills: Whether the rank dies of it.
        service: The service of the world whose part in the server performs it.
        hold: How long the controller is to hold the rank: the fields of `model.event.Hold`.
    """

    until_s: float
    pause: Mapping[str, float | None]
    kills: bool
    service: str
    hold: Mapping[str, float | None]


@dataclass(slots=True, kw_only=True)
class Strike:
    """One fault that happens to this rank now.

    Attributes:
        place: The spec of this rank and its world.
        passed: The point that was passed, with the name and call that it had this time.
        detail: The announcement to the controller, see `FaultKind.announce`.
        begun: Reports to the controller that the fault has happened; called by kinds with
            `tells_itself`.
        armed: For such a kind: reports to the controller, in JSON values, that it waits to happen.
            `rules` are the numbers of rules in the rank's page of I/O rules: their counters show
            whether it has happened even if the rank can no longer report it. `note` is a remark for
            the verdict.
        healing: Closed when the test's body is over; undoes its entries, last first.
        performed: For a kind that a service performs: waits until it has done so, and returns the
            error; empty if there is none.
        more_modules: Modules of the test that are not in `sys.modules`.
        ready_s: When this rank was ready for the test, in monotonic seconds. No rank had begun it
            then; others may have by the time at which this one does.
        ahead_s: Returns how far the world's clocks are ahead of the times of files.
        met: Reports to the controller that the user's code, which is on the stack, meets the
            effect of the fault.
    """

    fault: Fault
    place: RankSpec
    passed: Point
    detail: Announcement
    begun: Callable[[], None]
    armed: Callable[..., None]
    healing: contextlib.ExitStack
    performed: Callable[[], str] = str
    more_modules: tuple[object, ...] = ()
    ready_s: float = 0.0
    ahead_s: Callable[[], float] = float
    met: Callable[[], None] = lambda: None

    @property
    def rank(self) -> int:
        """This rank."""
        return self.place.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """A kind of fault. Third parties offer theirs through the hook `pytest_multihost_faults`.

    Attributes:
        name: As in ``faults.other(name, ...)``.
        perform: Performs it, in the rank, in the thread that passes the point. It registers with
            ``strike.healing`` how to undo its changes. If it returns a function, that performs the
            rest in a thread of its own, while the rank goes on.
        params: Its parameters: a check for each name.
        announce: Returns the announcement to the controller, from the parameters and the time in
            monotonic seconds.
        lasts: Whether it goes on until it is undone; else it is over when `perform` returns.
        tells_itself: Whether `perform` arranges the call of ``strike.begun()`` for the moment when
            the fault takes effect, say at the first file that it slows down.
        points: The kinds of points to which it can be bound; empty: to all.
        lacking: The part that this machine lacks for it, if any: the test is skipped.
        service: The service of the world that performs it, outside the rank; empty: none.
        conflicts: Returns why a test cannot have its faults of this kind, from all its faults
            (ranks are numbers), its hosts and its number of ranks. Called once for all kinds with
            the same function.
        is_before_test: Whether it is performed before the test, by the process that starts the
            rank: its point is never passed, and `perform` is never called.
        is_exclusive: Whether at most one exclusive fault can happen at one point.
        stops_process: Whether it stops the process and continues it. Two such kinds exclude each
            other on a rank.
        one_per: The thing that has at most one fault of this kind: a rank, a point of a rank, a
            value of its parameter ``path`` on a rank, a host.
        needs_shim: Whether a preloaded library must apply it to the files of C libraries.
        needs_fresh_interpreters: Whether each rank must be an interpreter of its own.
        sentence: The words for its effect, in the report of a sweep, without a full stop. It may
            contain `{who}`, the rank in words; `{what}` and `{name}`, the point in words and its
            name alone; `{at}`, when it is passed; `{then}`, from when on; `{often}`, whether once;
            the parameters `{error}`, `{path}`, `{seconds}`, `{way}`, `{value}`, `{least}` and
            `{read}`; and its other parameters by their names.
        mending: The section of docs/patterns.md for its findings; empty: the section on late ranks.
    """

    name: str
    perform: Callable[[Strike], Callable[[], None] | None]
    params: Mapping[str, Check] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    announce: Callable[[FaultParams, float], Announcement] = lambda _params, _now_s: {}
    lasts: bool = False
    tells_itself: bool = False
    points: frozenset[PointKind] = frozenset()
    lacking: Callable[[Fault], str | None] = lambda _fault: None
    service: str = ""
    conflicts: Conflicts | None = None
    is_before_test: bool = False
    is_exclusive: bool = False
    stops_process: bool = False
    one_per: OnePer = ""
    needs_shim: bool = False
    needs_fresh_interpreters: bool = False
    sentence: str = ""
    mending: str = ""

    @property
    def facts(self) -> FaultFacts:
        """The facts about this kind that the spec of a world contains."""
        return FaultFacts(
            is_before_test=self.is_before_test,
            needs_shim=self.needs_shim,
            needs_fresh_interpreters=self.needs_fresh_interpreters,
        )

    def problems(self, params: FaultParams) -> list[str]:
        """Return the problems of `params`."""
        found = [f"takes no {name}" for name in params if name not in self.params]
        found += [f"needs {name}" for name in sorted(self.required - params.keys())]
        for name, check in self.params.items():
            if name in params and (wanted := check(params[name])) is not None:
                found.append(f"{name} must be {wanted}, not {shown(params[name])}")
        return found


def kinds_by_name(groups: Iterable[Sequence[FaultKind]]) -> dict[str, FaultKind]:
    """Return the kinds by name; if two have one name, the first counts.

    Args:
        groups: The kinds of each plugin, the plugin registered last first.
    """
    kinds = [kind for group in groups for kind in group]
    return {kind.name: kind for kind in reversed(kinds)}


def error_number(name: object) -> int:
    """Return the number of an error of the operating system, 0 if there is none."""
    found = getattr(errno, name, 0) if isinstance(name, str) and name.startswith("E") else 0
    return found if isinstance(found, int) else 0


def must_be(wanted: str, is_valid: Callable[[Any], bool]) -> Check:
    """Return a check for values of which `is_valid` is true, and which `wanted` describes."""
    return lambda value: None if is_valid(value) else wanted


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a number, neither infinite nor too large for the kernel."""
    is_bool = isinstance(value, bool)
    return isinstance(value, int | float) and not is_bool and abs(value) < _MAX_NUMBER


seconds = must_be(
    "a number of seconds from 0 to 1e9",
    lambda each: is_number(each) and 0 <= each <= MAX_SECONDS,
)
positive = must_be("a number above 0", lambda each: is_number(each) and each > 0)
whole = must_be(
    "a whole number of at least 0",
    lambda each: is_number(each) and isinstance(each, int) and each >= 0,
)
error_name = must_be("the name of an error, as 'EIO'", lambda each: error_number(each) > 0)
text = must_be("a text", lambda each: isinstance(each, str) and each != "")
truth = must_be("True or False", lambda each: isinstance(each, bool))
