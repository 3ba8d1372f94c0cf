"""Ends the process of a rank whose test has failed, as Python ends the process of a job.

Python prints the exception, destroys the variables of the frames that it has left, waits for
threads, and runs the handlers registered with `atexit`. Each of these may wait for another rank.
jax registers a handler that waits for all processes; the harness has removed that one.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from os import _exit  # by name: a test may replace it in its module
from typing import Any

from pytest_multihost.core.cpython_private import run_exit_handlers, wait_for_threads
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.services import RankPart


def join(_spec: RankSpec) -> RankPart:
    """Return the part that ends this process after a failure."""
    return RankPart(after_failure=end_process)


def join_as_listener(_spec: RankSpec) -> RankPart:
    """Write warnings and errors of `logging` into this rank's log.

    pytest handles them itself, so that Python's last handler, which prints them, is not asked.
    """
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    return RankPart()


def end_process() -> None:
    """End this process with exit code 1, as after an exception that no code has handled."""
    error = getattr(sys, "last_value", None)  # pytest keeps the exception of the test here
    if isinstance(error, BaseException):
        with contextlib.suppress(Exception):  # the test may have set a hook of its own
            sys.excepthook(type(error), error, error.__traceback__)
        traceback.clear_frames(error.__traceback__)
    try:
        wait_for_threads()
        run_exit_handlers()
        _shut_down_jax()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _exit(1)


def _shut_down_jax() -> None:
    jax: Any = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        jax.distributed.shutdown()
