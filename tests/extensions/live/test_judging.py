"""Which ranks of a team of xdist's workers have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_multihost.extensions.live.processes import Job
from pytest_multihost.extensions.live.watch.judging import Team, with_gone

pytestmark = pytest.mark.unit

JOB = Job({0: 40, 2: 42}, 3, "process 30", is_size_known=False)


def test_a_rank_that_is_absent_has_ended_if_a_worker_has() -> None:
    """Two of three run the test, and one has ended while it ran it."""
    found = with_gone(JOB, Team((40, 42), gone=1, size=3))
    assert (found.ended, found.size) == ({1}, 3)


def test_the_last_rank_may_have_ended() -> None:
    """The numbers of the others have no hole."""
    job = Job({0: 40, 1: 41}, 2, "process 30", is_size_known=False)
    found = with_gone(job, Team((40, 41), gone=1, size=3))
    assert (found.ended, found.size) == ({2}, 3)


@pytest.mark.parametrize(
    "team",
    [
        Team((40, 42), size=3),
        Team((40, 42), gone=1, size=4),
        Team((40, 42), gone=1),
    ],
    ids=["late", "another is late", "the number of workers is unknown"],
)
def test_a_rank_that_may_come_has_not_ended(team: Team) -> None:
    """It may be in an earlier test, or be no rank at all."""
    assert with_gone(JOB, team) == JOB


def test_no_rank_has_ended_where_the_numbers_are_guessed() -> None:
    """The free number may be another worker's."""
    job = replace(JOB, is_guess=True)
    assert with_gone(job, Team((40, 42), gone=1, size=3)) == job


def test_a_worker_that_was_replaced_is_no_rank_that_has_ended() -> None:
    """The new one runs the test as the same rank."""
    job = Job({0: 40, 1: 44, 2: 42}, 3, "process 30", is_size_known=False)
    assert with_gone(job, Team((40, 42, 44), gone=1, size=3)) == job
