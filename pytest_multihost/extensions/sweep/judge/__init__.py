"""Judges disturbed runs; all functions are pure.

`judge` returns the outcome of a disturbance. `decisions` finds the line at which a rank decided,
`unreported` what is wrong although no rank says so, `assertions` those of the test itself that
failed, and `depends_on_time` those of these that do not count.
"""

from pytest_multihost.extensions.sweep.judge.judge import NOTHING, judge_run

__all__ = ["NOTHING", "judge_run"]
