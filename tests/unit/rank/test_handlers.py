"""Which exceptions certainly fail a test, and which take the same way through its handlers."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_multihost.core import cpython_private
from pytest_multihost.core.rank.recorder.exception_paths import error_path, fails_test
from pytest_multihost.testing import UNHANDLED


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


# Which way an exception takes

paths: list[str] = []
"""The ways that were found by the calls of `pass_here`."""


def pass_here() -> None:
    """Note the way of an exception from the call of this function."""
    paths.append(str(error_path(sys._getframe(1))))


def ways(call: Callable[[], object]) -> list[str]:
    """Return the ways that are found while a function runs."""
    paths.clear()
    call()
    return list(paths)


def twice_in_try() -> None:
    """Call at two lines, of which one is in another function."""
    with contextlib.suppress(ValueError):
        print()
    try:
        pass_here()
        pass_at_another_line()
    except ValueError:
        return


def pass_at_another_line() -> None:
    """Handle nothing."""
    pass_here()


def in_two_tries() -> None:
    """Call in two handlers' reach."""
    try:
        pass_here()
    except ValueError:
        return
    try:
        pass_here()
    except ValueError:
        return


def handled() -> None:
    """Handle what is raised."""
    try:
        pass_here()
    except ValueError:
        return


def called_at_two_lines() -> None:
    """Go on elsewhere after the same handler."""
    handled()
    handled()


def in_files(folder: Path) -> None:
    """Call with files open, which only close themselves."""
    pass_here()
    with (folder / "a").open("w"):
        pass_here()
    with open(folder / "a", "w"), open(folder / "b", "w"):  # noqa: PTH123 - both forms are meant
        pass_here()
    try:
        with (folder / "a").open():
            pass_here()
        pass_here()
    except ValueError:
        return


def in_other_managers(folder: Path) -> None:
    """Call in managers that may swallow it."""
    pass_here()
    with contextlib.suppress(ValueError):
        pass_here()
    file = (folder / "a").open("w")
    with file, contextlib.nullcontext():
        pass_here()


def in_another_finally() -> None:
    """Call where something else happens on its way."""
    try:
        pass_here()
    finally:
        print("over")


def test_calls_in_reach_of_one_handler_have_one_way() -> None:
    """However deep they are."""
    first, second = ways(twice_in_try)
    assert first == second


@pytest.mark.parametrize("call", [in_two_tries, called_at_two_lines])
def test_another_handler_or_the_same_called_from_elsewhere_is_another_way(
    call: Callable[[], None],
) -> None:
    """Something else follows."""
    first, second = ways(call)
    assert first != second


def test_what_nothing_handles_fails_the_test() -> None:
    """Wherever it is raised."""
    assert set(ways(pass_at_another_line) + ways(pass_here)) == {UNHANDLED}


def test_a_file_that_is_closed_handles_nothing(tmp_path: Path) -> None:
    """What is raised while it is open goes on."""
    outside, once, both, inside, after = ways(lambda: in_files(tmp_path))
    assert (outside, once, both) == (UNHANDLED,) * 3
    assert inside == after != UNHANDLED


def test_other_managers_may_handle_it(tmp_path: Path) -> None:
    """Each in its own way."""
    assert len({*ways(lambda: in_other_managers(tmp_path))}) == 3


def test_what_is_done_on_the_way_makes_another_way() -> None:
    """It may do anything, also to return."""
    assert ways(in_another_finally) != [UNHANDLED]


def test_of_a_library_the_way_has_the_function_that_was_called(tmp_path: Path) -> None:
    """Its handlers raise again, mostly."""
    (tmp_path / "file").touch()

    def copy() -> None:
        shutil.copytree(tmp_path, tmp_path / "copy", copy_function=lambda *_: pass_here())

    [way] = ways(copy)
    assert way == f"copytree|{UNHANDLED}"


def test_who_only_asks_takes_an_error_for_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows depends on who has asked."""

    def stat(*_: object, **__: object) -> None:
        pass_here()
        raise FileNotFoundError

    monkeypatch.setattr(os, "stat", stat)
    first, second = ways(lambda: (os.path.exists("x"), os.path.exists("y")))  # noqa: PTH110
    assert first != second
    assert first.startswith("exists+")


def guarded() -> bool:
    """Return what is found within a `try`."""
    try:
        return fails_test(sys._getframe())
    except ValueError:
        return False


def test_where_tables_cannot_be_read_any_exception_may_be_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no two calls meet the same handler, so each is tried."""
    code, frame = guarded.__code__, sys._getframe()
    cpython_private.handler_of.cache_clear()
    monkeypatch.setattr(cpython_private, "reads_tables", lambda: False)
    assert [cpython_private.is_covered(code, offset) for offset in (0, 2, 40)] == [True] * 3
    assert [cpython_private.handler_of(code, offset) for offset in (0, 2, 40)] == [0, 2, 40]
    assert not guarded()
    assert error_path(frame).is_handled
    monkeypatch.undo()
    cpython_private.handler_of.cache_clear()
