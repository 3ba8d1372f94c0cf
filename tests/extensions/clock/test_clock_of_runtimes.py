"""Timeouts of real libraries, with a clock that jumps: the programs of tests/clock/timeouts.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.extensions.clock.page import find_clock_library, why_clock_missing

PROGRAMS = Path(__file__).parents[2] / "clock" / "timeouts.py"

LEAST_S = 5.0
"""Each program waits for longer than this."""


@pytest.mark.skipif(find_clock_library() is None, reason=why_clock_missing())
@pytest.mark.parametrize("programs", ["jax or orbax", "not jax and not orbax"])
def test_timeouts_come_without_being_waited_for(programs: str, run_worlds) -> None:
    """Each program asserts which error comes; the clock has jumped most of the way there."""
    source = PROGRAMS.read_text(encoding="utf-8")
    worlds = run_worlds(source, "--multihost-clock=jump", "-k", programs, timeout=300)
    assert worlds.verdicts, worlds.stdout
    for name, verdict in worlds.verdicts.items():
        assert verdict["status"] == "passed", f"{name}: {worlds.stdout}"
        assert verdict["clock_jumps"]["jumped_s"] > LEAST_S, name
