"""A rank's life: the one test, run through pytest, and everything that pytest needs for it.

Apart from this sub-package nothing in a rank imports pytest: a program may call
`pytest_multihost.current_world()` in production, where it must cost nothing.
"""

from pytest_multihost.rank.agent.lifecycle import (
    FindItem,
    arrive,
    live,
    prepare_pytest,
    run_rank,
    start_backend,
    tell_interrupted,
)

__all__ = [
    "FindItem",
    "arrive",
    "live",
    "prepare_pytest",
    "run_rank",
    "start_backend",
    "tell_interrupted",
]
