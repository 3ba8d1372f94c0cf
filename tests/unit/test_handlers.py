"""Which exceptions certainly fail a test: those that no frame of its stack can handle."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from pytest_multihost.rank.recorder.handlers import fails_test


def ask() -> bool:
    """Return what is found for an exception from the call of this function."""
    return fails_test(sys._getframe(1))


def in_try() -> bool:
    """Handle an exception."""
    try:
        return ask()
    except ValueError:
        return False


def in_finally() -> bool:
    """Let it pass, after something else."""
    try:
        found = ask()
    finally:
        print("over")
    return found


def in_with() -> bool:
    """Suppress it."""
    with contextlib.suppress(ValueError):
        return ask()
    return False


def in_caller() -> bool:
    """Call one that handles nothing, with a manager around."""
    with contextlib.nullcontext():
        return plain()


def in_generator() -> bool:
    """Be asked for a value."""

    def generate() -> Iterator[bool]:
        with contextlib.suppress(ValueError):
            yield ask()

    return next(generate())


def in_raises() -> bool:
    """Expect it, with the form of `raises` that takes a function."""
    found: list[bool] = []

    def fail() -> None:
        found.append(ask())
        int("no number")

    pytest.raises(ValueError, fail)  # noqa: RUF061 - this form is the point
    return found[0]


def in_thread() -> bool:
    """Do it in another thread."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    thread.join()
    return found[0]


def plain() -> bool:
    """Handle nothing."""
    return ask()


def before_try() -> bool:
    """Handle only what comes later."""
    found = ask()
    try:
        print(found)
    except ValueError:
        return False
    return found


def in_handler() -> bool:
    """Handle only what came before."""
    try:
        int("no number")
    except ValueError:
        print("handled")
    return ask()


def in_loop() -> bool:
    """Do it several times."""
    for _ in range(2):
        found = ask()
    return found


@pytest.mark.parametrize("call", [plain, before_try, in_handler, in_loop])
def test_an_exception_that_nothing_handles_fails_the_test(call: Callable[[], bool]) -> None:
    """From the call on, up to pytest."""
    assert call()


@pytest.mark.parametrize(
    "call",
    [in_try, in_finally, in_with, in_caller, in_generator, in_raises, in_thread],
)
def test_an_exception_that_may_be_handled_need_not_fail_the_test(call: Callable[[], bool]) -> None:
    """What a handler does is not looked at; another thread's exception is its own affair."""
    assert not call()


def test_it_is_asked_again_at_another_line() -> None:
    """One function can call twice, inside a handler's reach and outside of it."""
    outside = ask()
    with contextlib.nullcontext():
        inside = ask()
    assert (outside, inside) == (True, False)
