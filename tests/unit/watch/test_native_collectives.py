"""The collectives of C++ code: what flight recorders have and slot pages lack."""

from __future__ import annotations

from pytest_multihost.core.watch.probes.native_collectives import native_collectives
from pytest_multihost.testing import FLIGHT_SCOPE, RUNTIME_SCOPE, CallSite, History, Scope


def history(scope: Scope, *times_s: float) -> History:
    """Return what rank 0 has entered in a group of two, at these times."""
    site = CallSite("all_reduce", detail="f32[4]")
    return History(0, ((0, 1), 0, scope), 1, (site,), (0,) * len(times_s), times_s)


def test_calls_of_python_are_left_out() -> None:
    """Each has entered the first collective after it."""
    recorded = history(RUNTIME_SCOPE, 1.0, 4.0)
    flight = history(FLIGHT_SCOPE, 0.5, 1.001, 2.0, 3.0, 4.001, 5.0)
    (found,) = native_collectives([recorded], [flight])
    assert [each.sequence for each in found.recent] == [1, 3, 4, 6]
    assert {each.source for each in found.recent} == {"flight-recorder"}


def test_a_rank_that_python_alone_moves_has_none() -> None:
    """Its pages show all."""
    flight = history(FLIGHT_SCOPE, 1.001, 2.001)
    assert native_collectives([history(RUNTIME_SCOPE, 1.0, 2.0)], [flight]) == ()


def test_other_groups_are_not_mixed_up() -> None:
    """The harness's barriers have the same members."""
    recorded = history(Scope("harness"), 1.0)
    (found,) = native_collectives([recorded], [history(FLIGHT_SCOPE, 1.001)])
    assert len(found.recent) == 1
