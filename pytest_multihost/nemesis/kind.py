"""What a kind of fault is to us: what it takes, what it does, what it leaves to be undone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_multihost.model.fault import Fault
from pytest_multihost.model.spec import RankSpec

Check = Callable[[object], str | None]
"""Returns what a value must be, or None when it is that."""


@dataclass(slots=True, kw_only=True)
class Strike:
    """One fault that happens to this rank now.

    Attributes:
        fault: Which.
        place: This rank's place in its world.
        detail: What the controller was told of it, see `FaultKind.announce`.
        begun: Tells the controller that it has happened, for a kind that tells by itself.
        armed: For such a kind: tells the controller, in JSON values, that it waits for its moment.
            `rules` are those of the rank's page of I/O rules whose counters say that it has
            happened, also where no rank lives to tell; `note` is what the reader should know.
        healing: Undone, last first, when the test's body is over.
        performed: For a kind that is performed from outside: waits until that is done, and returns
            what went wrong, empty if nothing did.
    """

    fault: Fault
    place: RankSpec
    detail: Mapping[str, Any]
    begun: Callable[[], None]
    armed: Callable[..., None]
    healing: contextlib.ExitStack
    performed: Callable[[], str] = str

    @property
    def rank(self) -> int:
        """This rank."""
        return self.place.rank


def _nothing(params: Mapping[str, Any], now_s: float) -> dict[str, Any]:  # noqa: ARG001 - as any
    return {}


def _no_lack(fault: Fault) -> str | None:  # noqa: ARG001 - as any
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """A kind of fault. Third parties offer theirs through the hook `pytest_multihost_faults`.

    Attributes:
        name: As in ``faults.other(name, ...)``.
        perform: Does it, in the rank, in the thread that passes the point. What it changes it
            gives to ``strike.healing`` to be undone.
        params: What it takes: a check for each name.
        required: Names that must be given.
        announce: From parameters and the time in monotonic seconds, what the controller is told
            before it is performed. `until_s`: when it will be over by itself. `pause`: how the
            rank is to be stopped and continued from outside. `kills`: whether the rank dies.
            `network`: that the server is to disturb the network between hosts.
        lasts: Whether it goes on until it is undone; else it is over when `perform` returns.
        tells_itself: Whether `perform` sees to it that ``strike.begun()`` is called when it really
            happens, say at the first file that it slows down.
        lacking: What this machine lacks for it, if anything: the test is skipped.
    """

    name: str
    perform: Callable[[Strike], None]
    params: Mapping[str, Check] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    announce: Callable[[Mapping[str, Any], float], dict[str, Any]] = _nothing
    lasts: bool = False
    tells_itself: bool = False
    lacking: Callable[[Fault], str | None] = _no_lack

    def problems(self, params: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with `params`."""
        found = [f"takes no {name}" for name in params if name not in self.params]
        found += [f"needs {name}" for name in sorted(self.required - params.keys())]
        for name, check in self.params.items():
            if name in params and (wanted := check(params[name])) is not None:
                found.append(f"{name} must be {wanted}, not {params[name]!r}")
        return found


def is_number(value: object) -> bool:
    """Whether `value` is a finite number."""
    is_any = isinstance(value, int | float) and not isinstance(value, bool)
    return is_any and math.isfinite(value)  # type: ignore[arg-type]


def seconds(value: object) -> str | None:
    """Check a duration."""
    is_good = is_number(value) and value >= 0  # type: ignore[operator]
    return None if is_good else "a number of seconds, at least 0"


def positive(value: object) -> str | None:
    """Check a number above 0."""
    is_good = is_number(value) and value > 0  # type: ignore[operator]
    return None if is_good else "a number above 0"


def whole(value: object) -> str | None:
    """Check a whole number that may be 0."""
    is_good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return None if is_good else "a whole number of at least 0"


def text(value: object) -> str | None:
    """Check a text that is not empty."""
    return None if isinstance(value, str) and value else "a text"


def truth(value: object) -> str | None:
    """Check a truth value."""
    return None if isinstance(value, bool) else "True or False"
