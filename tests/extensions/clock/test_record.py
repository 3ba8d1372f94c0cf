"""What verdicts and pages say of a clock that has jumped."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.clock.record import ClockDoubt, ClockRecord

pytestmark = pytest.mark.unit

DOUBT = ClockDoubt("rank 0: <main> waits for a pipe", 1001.0, 1005.0, 3.25)


def test_the_lines_say_how_far_it_has_jumped_and_why_it_did_not_at_times() -> None:
    """And how long the world took in real time."""
    found = ClockRecord(12, 1799.9, (DOUBT,)).of_world(1000.0, 2802.4)
    assert found.lines == (
        "jumped 1799.9 s in 12 jumps; the world took 2.5 s",
        "real time for 3.2 s: rank 0: <main> waits for a pipe",
    )
    assert "in 1 jump;" in ClockRecord(1, 1.0).of_world(0.0, 1.0).lines[0]
    assert "Times on this page are those of the ranks' clock" in found.lead


def test_the_verdict_has_the_same_as_numbers_from_the_start_of_the_world() -> None:
    """As docs/results.md says."""
    found = ClockRecord(12, 1799.9, (DOUBT,)).of_world(1000.0, 2802.4).verdict
    doubt = {"since_s": 1.0, "until_s": 5.0, "for_s": 3.25, "why": DOUBT.why}
    numbers = {"jumps": 12, "jumped_s": 1799.9, "real_s": 2.5, "doubts": [doubt]}
    assert found == {"clock": "jump", "clock_jumps": numbers}
