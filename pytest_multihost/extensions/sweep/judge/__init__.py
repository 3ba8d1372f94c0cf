"""Judges disturbed runs; all functions are pure.

`judge` makes the judged run. `disturbed_world` has what is known of its world, `outcome` finds out
whether a rank waits in vain or something is wrong, and `lines` which ranks wait for which, and
where. `decisions` finds the line at which a rank decided. `unreported` finds what is wrong although
no rank says so: `assertions` finds those of the test itself that failed, and `depends_on_time`
those of them that do not count.
"""

from pytest_multihost.extensions.sweep.judge.judge import NOTHING, judge_run

__all__ = ["NOTHING", "judge_run"]
