"""The search for the smallest size that hangs."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.simulated.smallest import How, Sizes, find_smallest, sizes_to_try

pytestmark = pytest.mark.unit


def test_sizes_below_the_one_that_hung_are_tried_from_the_smallest_on() -> None:
    """A small world is the cheapest, and the easiest to understand."""
    assert sizes_to_try(24) == [2, 4, 8, 16]
    assert sizes_to_try(16) == [2, 4, 8]


def test_the_search_ends_at_the_first_size_that_hangs() -> None:
    """It passes with two stages and hangs with four."""
    ends: dict[int, How] = {2: "fails", 4: "fails", 8: "passes", 16: "hangs", 32: "hangs"}
    found = find_smallest(64, ends.get, has_time=lambda: True)
    assert found.smallest == 16
    assert found.text == (
        "16 is the smallest of the sizes tried that hangs; it passes at 8; it fails at 2, 4"
    )


def test_a_search_without_time_says_nothing_of_smaller_sizes() -> None:
    """The size that hung is then the smallest known."""
    assert find_smallest(64, lambda _: "hangs", has_time=lambda: False).smallest == 64


def test_what_gloo_does_is_told() -> None:
    """It need not agree: a simulated world has no network."""
    assert Sizes((), 16, "hangs").text.endswith("real gloo processes hang at 16, too")
    assert Sizes((), 16, "passes").text.endswith("with real gloo processes it passes at 16")
