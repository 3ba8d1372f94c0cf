"""mpi-pytest: from a plain pytest, mpiexec for each test; under mpiexec, all tests in one go."""

import os

import pytest
import work
from mpi4py import MPI


@pytest.mark.parallel(int(os.environ["RANKS"]))
def test_one(value):
    world = MPI.COMM_WORLD
    assert world.allreduce(value) == world.size * value
    work.note_memory(value)
