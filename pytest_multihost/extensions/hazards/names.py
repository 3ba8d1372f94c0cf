"""The names of rules, and of what to do about hazards."""

from __future__ import annotations

from typing import Final, Literal

Rule = Literal[
    "order",  # two ranks launch collectives of two groups in different orders
    "threads",  # two threads of a rank are inside calls of one group at a time
    "unwaited",  # nobody waits for an asynchronous operation
    "skipped",  # a member of a group did not enter the last collective of the others
    "racing",  # two threads launch collectives of two groups, on two ranks in different orders
    "unguarded",  # a call that can fail on some ranks only, and then nobody tells the others
    "programs",  # two processes start jax programs, or meet at barriers, in different orders
    "buffered",  # transfers of two ranks that end only because they take no turns
]
"""What hazards are looked for; docs/hazards.md describes each."""

HazardMode = Literal["off", "warn", "fail"]
"""What to do about hazards: nothing, a warning each, or to fail the test."""

DEFAULT_RULES: Final[tuple[Rule, ...]] = ("order", "threads", "unwaited", "skipped")
"""The rules that have shown no false alarm."""
