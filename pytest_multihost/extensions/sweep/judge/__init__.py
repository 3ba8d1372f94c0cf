"""Judges disturbed runs; all functions are pure.

`judge` makes the judged run. `disturbed_world` has the facts about its world, `outcome` finds out
whether a rank waits in vain or something is wrong, and `lines` which ranks wait for which, and
where. `decisions` finds the line at which a rank decided. `unreported` finds errors although
no rank reports them: `assertions` finds the test's own failed ones, and `depends_on_time`
assertions that do not count.
"""

from pytest_multihost.extensions.sweep.judge.judge import NOTHING, judge_run

__all__ = ["NOTHING", "judge_run"]
