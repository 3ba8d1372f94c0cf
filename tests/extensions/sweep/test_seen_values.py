"""Values of ranks, shortened so that they can be compared."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest

from pytest_multihost.extensions.sweep.local_decisions.summary import seen

pytestmark = pytest.mark.unit


class Broken:
    """An object that raises whatever it is asked for."""

    def __getattr__(self, name: str) -> object:
        raise OSError(name)


@pytest.mark.parametrize(
    ("value", "sort", "is_measured"),
    [
        (None, "none", False),
        (True, "truth", False),
        (3, "whole", False),
        (0.5, "number", True),
        ("text", "text", False),
        (Path("/a"), "text", False),
        ([1, 2], "list", False),
        ({"loss": [0.5]}, "list", True),
        (deque([0.5]), "list", True),
        (random.Random(0), "generator", False),
        (object(), "other", False),
        (Broken(), "other", False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_has_a_sort(value: object, sort: str, is_measured: bool) -> None:
    """It is measured if any of its numbers has a fraction."""
    found = seen(value)
    assert (found.sort, found.is_measured) == (sort, is_measured)


def test_equal_values_have_equal_digests() -> None:
    """Of sets in any order; other values have others."""
    assert seen({"a", "b", "c"}).digest == seen({"c", "b", "a"}).digest
    assert seen([0.5, [1, 2]]).digest == seen((0.5, (1, 2))).digest
    different = [0.5, [0.5], [0.5, 1], [[0.5], 1], [[0.5, 1]], {"a": 0.5}, {"b": 0.5}]
    assert len({seen(each).digest for each in different}) == len(different)
    assert seen(random.Random(1)).digest != seen(random.Random(2)).digest


def test_a_value_with_an_unknown_part_is_unknown() -> None:
    """Its digest is empty, as of lists that are too deep."""
    assert seen([object()]).digest == ""
    assert seen([[[[[1]]]]]).digest == ""
    assert seen([1, object()]).text == "2"


def test_arrays_are_values_of_their_elements() -> None:
    """One element is a number; more are compared by shape, type and content."""
    numpy = pytest.importorskip("numpy", reason="the arrays are numpy's")
    one = seen(numpy.array([0.5]))
    assert (one.sort, one.text, one.is_measured, one.is_array) == ("number", "0.5", True, True)
    assert seen(numpy.bool_(True)).sort == "truth"
    rows = seen(numpy.ones((3, 2)))
    assert (rows.sort, rows.text, rows.is_measured) == ("array", "3", True)
    others = [numpy.ones((2, 3)), numpy.ones((3, 2), "float32"), numpy.zeros((3, 2))]
    assert rows.digest not in {seen(each).digest for each in others}
    assert not seen(numpy.ones(3, int)).is_measured
    assert seen([numpy.ones(3)]).is_array


def test_tensors_are_values_of_their_elements() -> None:
    """Also those that need gradients, or whose type numpy lacks."""
    torch = pytest.importorskip("torch", reason="the tensors are torch's")
    loss = seen(torch.tensor(0.5, requires_grad=True))
    assert (loss.sort, loss.text, loss.is_array) == ("number", "0.5", True)
    assert seen(torch.ones(2, dtype=torch.bfloat16)).digest
    assert seen(torch.ones(2, device="meta")).sort == "other"
    assert seen(torch.ones(5)[1:]).digest == seen(torch.ones(4)).digest
