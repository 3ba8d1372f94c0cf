"""What was found on several machines, as one job."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.live.joined import Machine, joined_job
from pytest_multihost.extensions.live.processes import Job
from pytest_multihost.testing import MultihostError

pytestmark = pytest.mark.unit


def machine(host: str, pids: dict[int, int], size: int = 4, **job: bool) -> Machine:
    """Return a machine with some ranks of a job."""
    return Machine(host, Job(pids, size, "torchrun", **job), "", (host,))


def test_ranks_of_several_machines_are_those_of_one_job() -> None:
    """Process ids may be equal: each is that of its machine."""
    job = joined_job([machine("alpha", {0: 10, 1: 11}), machine("beta", {3: 11, 2: 10})])
    assert (job.size, job.pids) == (4, {0: 10, 1: 11, 2: 10, 3: 11})
    assert job.title == "ranks 0,1 on alpha: processes 10 11; ranks 2,3 on beta: processes 10 11"


def test_a_machine_without_ranks_is_noted() -> None:
    """It is not known whether there should be some."""
    job = joined_job([machine("alpha", {0: 10}, 2), Machine("beta", None, "nothing runs")])
    assert job.notes == ("no ranks on beta: nothing runs",)


def test_no_ranks_at_all_are_an_error() -> None:
    """There is nothing to look at."""
    with pytest.raises(MultihostError, match="no machine has ranks") as found:
        joined_job([Machine("alpha", None, "nothing runs"), Machine("beta", None, "nor here")])
    assert found.value.seen == "no ranks on alpha: nothing runs\nno ranks on beta: nor here"


@pytest.mark.parametrize(
    "other",
    [machine("beta", {1: 20}), machine("beta", {2: 20}, 8)],
    ids=["rank", "size"],
)
def test_two_jobs_are_an_error(other: Machine) -> None:
    """A rank that is on two machines, and another number of ranks, are not of one job."""
    with pytest.raises(MultihostError, match="not those of one job"):
        joined_job([machine("alpha", {0: 10, 1: 11}), other])


def test_ranks_that_a_user_has_numbered_need_no_common_size() -> None:
    """Each process knows only the numbers that it was told."""
    parts = (
        machine("alpha", {0: 10}, 1, is_size_known=False),
        machine("beta", {2: 12}, 3, is_size_known=False),
    )
    assert joined_job(parts).size == 3


def test_the_same_processes_count_once() -> None:
    """Mpirun may start several that look on one machine."""
    first = machine("alpha", {0: 10, 1: 11})
    assert machine("alpha", {0: 10, 1: 11}).is_seen_by(first)
    assert not machine("beta", {0: 10, 1: 11}).is_seen_by(first)
