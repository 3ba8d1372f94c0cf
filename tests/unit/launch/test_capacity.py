"""How many ranks fit on a machine."""

from __future__ import annotations

import pytest

from pytest_multihost.core.launch.capacity import RANK_BYTES, Room, look, require_room
from pytest_multihost.testing import LaunchError

AMPLE = Room(memory=1000 * RANK_BYTES, processes=None)


def test_ranks_that_fit_are_not_refused() -> None:
    """Up to the last one."""
    assert AMPLE.problem(1000) == ""


@pytest.mark.parametrize(
    ("room", "what"),
    [
        (Room(memory=100 * RANK_BYTES, processes=None), "0.8 GB of memory"),
        (Room(memory=1000 * RANK_BYTES, processes=100), "100 processes"),
    ],
)
def test_the_scarcest_resource_is_named_with_the_most_ranks_that_fit(room: Room, what: str) -> None:
    """So that the next try is right."""
    with pytest.raises(LaunchError, match="101 ranks do not fit on this machine") as refused:
        require_room(101, room)
    assert what in refused.value.seen
    assert "at most 100 ranks fit" in refused.value.seen


def test_a_crowd_that_fits_is_warned_of_with_the_most_ranks_that_fit() -> None:
    """Before the first rank starts; up to some ranks per core there is no warning."""
    assert AMPLE.warning(128, cores=2) == ""
    warning = AMPLE.warning(129, cores=2)
    assert "129 ranks share 2 cores" in warning
    assert "at most 1000 ranks fit" in warning


def test_this_machine_has_room_for_the_ranks_of_a_test() -> None:
    """The limits of its control group count, if it has any."""
    assert not look().problem(4)
