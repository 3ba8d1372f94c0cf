"""What all reports say of a clock that jumps."""

from __future__ import annotations

from pytest_multihost.model.result import WorldResult


def clock_texts(result: WorldResult) -> list[str]:
    """Return what a world's clock has done and why it did not jump at times; empty if it is real.

    The reasons that have lasted longest come first.
    """
    if result.clock is None:
        return []
    clock, real_s = result.clock, result.ended_s - result.started_s - result.clock.jumped_s
    jumps = f"{clock.jumps} jump{'s' if clock.jumps != 1 else ''}"
    return [
        f"jumped {clock.jumped_s:.1f} s in {jumps}; the world took {real_s:.1f} s",
        *(f"real time for {each.for_s:.1f} s: {each.why}" for each in clock.doubts),
    ]
