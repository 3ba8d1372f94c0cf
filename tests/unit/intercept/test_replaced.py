"""The values that take the place of results."""

from __future__ import annotations

import math

import pytest

from pytest_multihost.intercept.targets import Replaced

numpy = pytest.importorskip("numpy", reason="the arrays are numpy's")


def test_a_number_takes_the_place_of_each_element() -> None:
    """The array keeps its shape."""
    result = Replaced(math.inf).of(numpy.ones((2, 3)))
    assert result.shape == (2, 3)
    assert numpy.isinf(result).all()
    assert numpy.isnan(Replaced(math.nan).of(numpy.ones(2))).all()


@pytest.mark.parametrize("value", [False, True, 0, 1])
def test_a_truth_takes_the_place_of_truths(value: object) -> None:
    """The array keeps its type, so that its methods work."""
    result = Replaced(value).of(numpy.array([True, False]))
    assert result.dtype == bool
    assert result.tolist() == [bool(value)] * 2


def test_any_other_value_is_returned_as_it_is() -> None:
    """Also in place of an array."""
    assert Replaced(None).of(numpy.ones(2)) is None
    assert Replaced(True).of(numpy.ones(2)) is True
    assert Replaced(2).of("text") == 2
