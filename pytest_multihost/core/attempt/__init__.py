"""An attempt: the one path from a world that runs to the records that its reader gets.

* `observe`: run a world, and watch it. `progress`: the line about it meanwhile.
* `judge`: what happened, and which rank is to blame.
* `write`: verdict, history, facts and page.
* `rejudge`: the same judgement again, from the records alone.

Tests, scripts, worlds of a sweep, replays and ``multihost explain`` are its callers.
"""
