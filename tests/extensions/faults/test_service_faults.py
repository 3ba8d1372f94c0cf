"""Faults that a service of the world performs, as the rank that passes their point tells them."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.faults.points import Binding, Points
from pytest_multihost.faults.kind import FaultKind
from pytest_multihost.testing import START, Fault, FaultChanged, RankEventBody, RankSpec, make_spec

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("service", "phases"),
    [("", ["begun", "ended"]), ("network", ["begun"])],
    ids=["rank", "service"],
)
def test_the_rank_ends_only_what_it_has_performed_itself(service: str, phases: list[str]) -> None:
    """A service ends its faults when all ranks have left the test's body, not only this one."""
    sent: list[RankEventBody] = []
    kind = FaultKind(
        name="mine",
        perform=lambda _: None,
        announce=lambda _params, _now_s: {"service": service} if service else {},
        lasts=True,
        service=service,
    )
    spec = RankSpec(world=make_spec(2), rank=0, directory="", scratch="", ports=(1, 2))
    points = Points(spec, sent.append, [Binding(0, Fault("mine", (0,)), kind)], lambda _: "")
    points.pass_point(START.point)
    points.heal()
    changes = [each for each in sent if isinstance(each, FaultChanged)]
    assert [each.phase for each in changes] == phases
    assert changes[0].service == service
