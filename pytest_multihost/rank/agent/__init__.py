"""A rank's life: the one test, run through pytest, and everything that pytest needs for it.

Apart from this sub-package nothing in a rank imports pytest: a program may call
`pytest_multihost.current_world()` in production, where it must cost nothing.

`lifecycle` is the way through it, `hooks` are those in a rank.
"""

from pytest_multihost.rank.agent.lifecycle import (
    FindItem,
    prepare_pytest,
    run_rank,
    run_test_and_exit,
)
from pytest_multihost.rank.stages import send_interrupted, start_backend, start_rank

__all__ = [
    "FindItem",
    "prepare_pytest",
    "run_rank",
    "run_test_and_exit",
    "send_interrupted",
    "start_backend",
    "start_rank",
]
