"""The keys of all stores, and of jax's coordination service."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.simulated.key_values import KeyValues

pytestmark = pytest.mark.unit


def test_only_the_first_of_two_sets_a_new_key() -> None:
    """Even to the same value."""
    keys = KeyValues()
    assert [keys.answer("set_new", ["a", b"1"]) for _ in range(2)] == [True, False]
    assert keys.answer("get_now", ["a"]) == b"1"


def test_a_key_that_is_missing_is_not_waited_for() -> None:
    """It may have been deleted since somebody has listed it."""
    keys = KeyValues()
    assert not keys.lacks("get_now", ["a"])
    assert keys.answer("get_now", ["a"]) is None
    assert keys.answer("items", ["a"]) == []


def test_nothing_can_be_added_to_a_value_that_is_no_number() -> None:
    """A negative number is one; the value stays as it was."""
    keys = KeyValues()
    keys.answer("set", ["a", b"-4"])
    assert keys.answer("add", ["a", 1]) == -3
    keys.answer("set", ["a", b"abc"])
    with pytest.raises(ValueError, match="b'abc' is not a number"):
        keys.answer("add", ["a", 1])
    assert keys.answer("get", ["a"]) == b"abc"


def test_a_folder_is_read_at_once() -> None:
    """So that no key is deleted between its listing and its reading."""
    keys = KeyValues()
    for key in ("a/x", "ab", "a/y"):
        keys.answer("set", [key, key.encode()])
    assert keys.answer("items", ["a/"]) == [("a/x", b"a/x"), ("a/y", b"a/y")]
