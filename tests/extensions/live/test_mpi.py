"""Which operation of MPI a line of the user's performs, and whether a rank that spins waits."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.live.mpi import operation_of_frames, operation_of_line, uses_mpi
from pytest_multihost.testing import NativeThread, Operation

WORLD = ("comm = MPI.COMM_WORLD",)


def in_line(source: str, lines: tuple[str, ...] = WORLD, **values: str) -> Operation | None:
    """Return the operation of a line in a file with these lines."""
    return operation_of_line(source, values, lines, size=4, at_s=1.0)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("total = comm.allreduce(loss)", "MPI_Allreduce"),
        ("comm.Bcast(weights, root=0)", "MPI_Bcast"),
        ("comm.Barrier()", "MPI_Barrier"),
        ("parts = comm.gather(part)", "MPI_Gather"),
        ("comm.neighbor_allgather(part)", "MPI_Neighbor_allgather"),
    ],
)
def test_a_method_of_a_communicator_is_a_collective(source: str, name: str) -> None:
    """Those of pickled objects have names in lower case."""
    found = in_line(source)
    assert found is not None
    assert (found.name, found.kind, found.has_members) == (name, "collective", True)


def test_the_peer_of_a_receive_is_its_argument() -> None:
    """A number, or a variable with one."""
    line = "x = comm.recv(source=left)"
    found = [in_line(line, left="2"), in_line(line), in_line("x = comm.recv(source=3)")]
    assert [each.peer for each in found if each is not None] == [2, None, 3]


def test_a_communicator_that_is_made_is_not_of_all_ranks() -> None:
    """Nor is one that a file makes twice."""
    for lines in (("comm = world.Split(color)",), (*WORLD, "comm = comm.Split(1)"), ()):
        found = in_line("comm.allreduce(1)", lines)
        assert found is not None
        assert not found.has_members


@pytest.mark.parametrize("source", ["x = f(y)", "work.wait()", "lock.acquire()", ""])
def test_other_methods_are_no_operations_of_mpi(source: str) -> None:
    """`wait` is a method of many things."""
    assert in_line(source) is None


@pytest.mark.parametrize(
    ("source", "shown", "name"),
    [
        ("it.wait()", "<mpi4py.MPI.Request at 0x7f12>", "MPI_Wait"),
        ("it.Fence()", "<mpi4py.MPI.Win at 0x7f12>", "MPI_Win_fence"),
        ("it.Read_all(part)", "<mpi4py.MPI.File at 0x7f12>", "MPI_File_read_all"),
        ("it.Create_cart((2, 2))", "<mpi4py.MPI.Intracomm at 0x7f12>", "MPI_Cart_create"),
        ("it.Neighbor_alltoall(a, b)", "<mpi4py.MPI.Cartcomm at 0x7f12>", "MPI_Neighbor_alltoall"),
        ("it.recv(1024)", "<socket.socket at 0x7f12>", None),
        ("it.wait()", "<threading.Event at 0x7f12>", None),
        ("it.finalize()", "", None),
        ("it.init(key)", "", None),
    ],
)
def test_the_class_of_an_object_tells_which_operation_its_method_is(
    source: str, shown: str, name: str | None
) -> None:
    """An innocent: a socket and an event have methods of the same names."""
    found = in_line(source, it=shown) if shown else in_line(source)
    assert (found.name if found is not None else None) == name


def test_a_variable_of_a_module_is_a_request_if_its_file_says_so() -> None:
    """An innocent: an event is waited for by the same method, and so is what may be either."""
    begun, event = "    req: Any = comm.irecv(source=1)", "req = threading.Event()"
    found = in_line("x = req.wait()", (*WORLD, begun))
    assert found is not None
    assert (found.name, found.kind) == ("MPI_Wait", "transfer")
    assert in_line("x = req.wait()", (*WORLD, event)) is None
    assert in_line("x = req.wait()", (*WORLD, begun, event)) is None


def test_a_line_of_a_library_is_an_operation_if_it_has_a_communicator() -> None:
    """An innocent: a library that receives from a connection."""

    def in_library(source: str, **values: str) -> Operation | None:
        return operation_of_line(source, values, (), size=4, at_s=1.0, is_own=False)

    assert in_library("return comm.allreduce(n)", comm="<mpi4py.MPI.Intracomm at 0x7f12>")
    assert in_library("return self.connection.recv(n)", self="<Client at 0x7f12>") is None


def test_native_frames_show_the_interface_of_mpi() -> None:
    """The outermost function counts: a collective is made of messages."""
    thread = NativeThread(1, ("MPIR_Wait_state", "MPI_Recv_c", "PMPI_Allreduce", "_PyEval"))
    found = operation_of_frames([thread], size=4, at_s=1.0)
    assert found is not None
    assert found.name == "MPI_Allreduce"
    assert operation_of_frames([NativeThread(1, ("MPI_Type_commit",))], size=4, at_s=1.0) is None


def test_a_process_uses_mpi_if_it_has_loaded_its_library() -> None:
    """mpi4py's or the library itself; a method `gather` of anything else is none of MPI's."""
    assert uses_mpi("7f00-7f01 r-xp 0 00:00 1 /usr/lib/libmpi.so.40")
    assert not uses_mpi("7f00-7f01 r-xp 0 00:00 1 /usr/lib/libmpich-doc/readme")
