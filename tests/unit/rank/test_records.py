"""What a rank tells of an exception."""

from __future__ import annotations

from pytest_multihost.core.rank.raised_errors import clear_frames, raised_error


def causes(error: BaseException) -> list[str]:
    """Return what is told of the exceptions behind one."""
    return list(raised_error(error, root="/", text="").causes)


def caught(error: BaseException, behind: BaseException, *, handled: BaseException) -> BaseException:
    """Return `error`, raised from `behind` while another was handled."""
    try:
        try:
            raise handled
        except type(handled):
            raise error from behind
    except type(error) as found:
        return found


def test_an_exception_is_told_with_what_it_was_raised_from_the_last_first() -> None:
    """Named as Python's own traceback names it last."""
    first, second = OSError("no device"), RuntimeError("timed out")
    second.__cause__ = first
    error = caught(ValueError("step 3"), second, handled=KeyError("other"))
    assert causes(error) == ["RuntimeError: timed out", "OSError: no device"]


def test_an_exception_is_told_with_what_was_being_handled() -> None:
    """Nobody has said "from", but it was raised on the way."""
    error = ValueError("step 3")
    error.__context__ = RuntimeError("timed out")
    assert causes(error) == ["RuntimeError: timed out"]


def test_what_a_program_hides_is_not_told() -> None:
    """It says "from None": what it handled has nothing to do with it."""
    error = ValueError("step 3")
    error.__context__ = RuntimeError("timed out")
    error.__suppress_context__ = True
    assert causes(error) == []


def test_a_chain_without_an_end_is_told_once() -> None:
    """A program can make one by hand."""
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert causes(one) == ["ValueError: two"]


def test_a_long_chain_and_long_words_are_cut() -> None:
    """What a rank tells has bounds."""
    error = last = ValueError("0")
    for _ in range(100):
        last.__cause__ = last = ValueError("x" * 100_000)
    found = causes(error)
    assert len(found) == 8
    assert max(map(len, found)) < 3_000


def test_an_exception_that_cannot_be_printed_is_told_all_the_same() -> None:
    """Its type is known."""

    class Broken(Exception):  # noqa: N818 - of a user, who may call it anything
        def __str__(self) -> str:
            raise RuntimeError

    error = ValueError("step 3")
    error.__cause__ = Broken()
    assert causes(error) == ["Broken: <its str() raises RuntimeError>"]


def test_a_circle_of_contexts_is_cleared_and_comes_to_an_end() -> None:
    """Code may set `__context__` itself; a rank must not hang as it reports an error."""
    first, second = ValueError("first"), KeyError("second")
    first.__context__, second.__context__ = second, first
    clear_frames(first)


def test_a_raise_of_the_users_own_is_told_apart_from_a_call_that_failed() -> None:
    """Only the first is an exception that no runtime made; raised again, it is still the call's."""
    failed = []
    for error in (ValueError("bad"), None):
        try:
            if error is not None:
                raise error
            int("bad")
        except ValueError as found:
            failed.append(found)
    again = caught(failed[1], RuntimeError("first"), handled=KeyError("other"))
    told = [raised_error(each, root="/", text="").is_by_user for each in (*failed, again)]
    assert told == [True, False, False]
