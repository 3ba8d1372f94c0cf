"""pytest-isolate-mpi: mpirun for each test."""

import os

import pytest
import work


@pytest.mark.mpi(ranks=int(os.environ["RANKS"]))
def test_one(mpi_ranks, comm, value):
    assert comm.allreduce(value) == comm.size * value
    work.note_memory(value)
