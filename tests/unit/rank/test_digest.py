"""Digests by which ranks compare values."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytest_multihost.core.rank.digest import digest, short_text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [2.0]}, {"b": [2.0], "a": 1}),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        ([1, 2], (1, 2)),
        (float("nan"), float("nan")),
        (np.ones(3), np.ones(6)[::2]),
        (frozenset({3}), {3}),
    ],
)
def test_equal_values_have_equal_digests(one: object, other: object) -> None:
    """In whatever order a mapping or set keeps its elements, and however an array lies."""
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, True),
        (1, 1.0),
        ("1", 1),
        ([1, 2], [2, 1]),
        ([[1], 2], [1, [2]]),
        ({"a": 1}, {"a": 2}),
        (np.ones(3), np.ones(3, dtype=np.float32)),
        (np.ones((2, 3)), np.ones((3, 2))),
        (np.array([0.0, 1.0]), np.array([1.0, 0.0])),
        ("ab", ["a", "b"]),
        (0.0, -0.0),
    ],
)
def test_different_values_have_different_digests(one: object, other: object) -> None:
    """Also those that Python takes for equal, but that do not have the same type or bits."""
    assert digest(one) != digest(other)


def test_a_value_that_cannot_be_compared_is_an_error_with_help() -> None:
    """A lock, say; the message says what can be passed."""
    with pytest.raises(TypeError, match=r"type lock cannot be compared .* pass numbers, texts"):
        digest([threading.Lock()])


def test_a_text_for_the_reader_is_short() -> None:
    """Of an array the type, the shape and the first elements."""
    assert short_text(3) == "3"
    assert short_text(np.array([1.5, 2.0])) == "float64 (2,) [1.5, 2.0]"
    assert short_text(np.zeros((100, 100))) == "float64 (100, 100) [0.0, 0.0, 0.0, 0.0, ...]"
    assert len(short_text("x" * 10_000)) <= 200
    assert len(short_text(list(range(10_000)))) <= 200
