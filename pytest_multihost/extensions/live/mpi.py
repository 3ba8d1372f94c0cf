"""Derives the MPI operation that a rank polls in, from its line and its native frames.

MPI's libraries spin while they wait, so their ranks seem to compute. mpi4py is compiled: Python's
stack ends at the user's line, whose text shows the operation. With native frames the functions of
MPI's own interface show it as well.

A rank that spins uses the processor whether or not it gets on. It counts as waiting only if its
frames and all their variables are the same each time that one looks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.model.operation import Operation, OperationKind
from pytest_multihost.core.model.stack import NativeThread
from pytest_multihost.extensions.live.waits import as_of_some

_COLLECTIVES = [
    "Allgather",
    "Allgatherv",
    "Allreduce",
    "Alltoall",
    "Alltoallv",
    "Alltoallw",
    "Barrier",
    "Bcast",
    "Cart_create",
    "Comm_accept",
    "Comm_connect",
    "Comm_create",
    "Comm_create_group",
    "Comm_disconnect",
    "Comm_dup",
    "Comm_dup_with_info",
    "Comm_free",
    "Comm_spawn",
    "Comm_spawn_multiple",
    "Comm_split",
    "Comm_split_type",
    "Dist_graph_create",
    "Dist_graph_create_adjacent",
    "Exscan",
    "File_close",
    "File_open",
    "File_preallocate",
    "File_read_all",
    "File_read_all_end",
    "File_read_at_all",
    "File_read_at_all_end",
    "File_read_ordered",
    "File_set_size",
    "File_set_view",
    "File_sync",
    "File_write_all",
    "File_write_all_end",
    "File_write_at_all",
    "File_write_at_all_end",
    "File_write_ordered",
    "Finalize",
    "Gather",
    "Gatherv",
    "Graph_create",
    "Init",
    "Init_thread",
    "Intercomm_create",
    "Intercomm_merge",
    "Neighbor_allgather",
    "Neighbor_allgatherv",
    "Neighbor_alltoall",
    "Neighbor_alltoallv",
    "Neighbor_alltoallw",
    "Reduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Scan",
    "Scatter",
    "Scatterv",
    "Win_allocate",
    "Win_allocate_shared",
    "Win_create",
    "Win_create_dynamic",
    "Win_fence",
    "Win_free",
]
_TRANSFERS = [
    "Mprobe",
    "Mrecv",
    "Probe",
    "Recv",
    "Rsend",
    "Send",
    "Sendrecv",
    "Sendrecv_replace",
    "Ssend",
]
_REQUESTS = (
    "Wait",
    "Waitall",
    "Waitany",
    "Waitsome",
    "Win_complete",
    "Win_flush",
    "Win_flush_all",
    "Win_lock",
    "Win_lock_all",
    "Win_start",
    "Win_unlock",
    "Win_unlock_all",
    "Win_wait",
)

_KINDS: Mapping[str, OperationKind] = {
    **dict.fromkeys(_COLLECTIVES, "collective"),
    **dict.fromkeys(_TRANSFERS, "transfer"),
    **dict.fromkeys(_REQUESTS, "transfer"),
}
"""The operations of MPI that wait, by their names without the prefix ``MPI_``."""

_OF_OBJECTS = (
    "allgather allreduce alltoall barrier bcast exscan gather neighbor_allgather neighbor_alltoall"
    " reduce scan scatter"
)
_METHODS: Mapping[str, str] = {
    **{
        each: each for each in _KINDS if not each.startswith(("Comm_", "File_", "Win_", "Finalize"))
    },
    **{each: each.capitalize() for each in _OF_OBJECTS.split()},
    **{each.lower(): each for each in _TRANSFERS if "_" not in each},
    **{each.removeprefix("Comm_").capitalize(): each for each in _KINDS if "Comm_" in each},
    "Create_cart": "Cart_create",
    "Create_graph": "Graph_create",
    "Create_dist_graph": "Dist_graph_create",
    "Create_dist_graph_adjacent": "Dist_graph_create_adjacent",
    "Create_intercomm": "Intercomm_create",
    "Merge": "Intercomm_merge",
    "waitall": "Waitall",
}
"""The methods of mpi4py that perform them: pickled objects have names in lower case. `wait` is a
method of too many other things, so the class must be known."""

_WAITS = ("wait", "Wait")

_CLASSES: Mapping[str, str] = {"Win": "Win_", "File": "File_", "Request": "", "Prequest": ""}
"""How the names of operations begin that are methods of other classes than a communicator."""

_OBJECT = re.compile(r"<mpi4py\.MPI\.(\w+)")
_CALL = re.compile(r"([\w.\[\]]+)\.(\w+)\(")
_NATIVE = re.compile(r"P?MPI_(\w+?)(_c)?")
_PEER = re.compile(r"\b(?:root|source|dest)\s*=\s*(\w+)")
_DIGITS = re.compile(r"\d{1,6}", re.ASCII)
_WORLD = "COMM_WORLD"
_LIBRARY = re.compile(r"/libmpi[\w-]*\.so|/mpi4py/")


def uses_mpi(maps: str) -> bool:
    """Return whether a process has loaded a library of MPI.

    Args:
        maps: The text of its memory's maps (proc(5)).
    """
    return _LIBRARY.search(maps) is not None


def operation_of_line(
    source: str,
    values: Mapping[str, str],
    lines: Sequence[str],
    *,
    size: int,
    at_s: float,
    is_own: bool = True,
) -> Operation | None:
    """Return the operation that a line performs by mpi4py; None if it performs none.

    Args:
        values: The variables of its function, as text.
        lines: The whole file: it may say that the communicator is the one of all ranks.
        is_own: Whether the line is the user's: in a library's, which may use sockets as well, the
            class of the object must be known.
    """
    for communicator, method in _CALL.findall(source):
        if not is_own and not _OBJECT.match(values.get(communicator, "")):
            continue
        name = _name(method, values.get(communicator, ""))
        if method in _WAITS and not name and _is_request(communicator, lines):
            name = "Wait"
        if name is None:
            continue
        found = _operation(name, size=size, at_s=at_s)
        if other := _PEER.search(source):
            number = _number(values.get(other[1], other[1]))
            is_transfer = found.kind == "transfer"
            found = replace(found, peer=number) if is_transfer else replace(found, root=number)
        if found.kind == "transfer":
            return found
        if _WORLD in communicator or _is_world(communicator, lines):
            return replace(found, has_members=True)
        return as_of_some(replace(found, detail=communicator))
    return None


def _is_request(variable: str, lines: Sequence[str]) -> bool:
    """Return whether a file assigns only results of starts of operations to a variable."""
    assigned = re.compile(
        rf"\s*{re.escape(variable)}\s*(?::[^=]*)?=\s*(?:[\w.\[\]]+\.[iI](\w+)\()?"
    )
    given = {match[1] for line in lines if (match := assigned.match(line))}
    return bool(given) and all(each and each.capitalize() in _KINDS for each in given)


def _name(method: str, shown: str) -> str | None:
    """Return the operation that a method of an object performs; None if it performs none.

    Args:
        shown: The object as text; empty if it is not a variable of the function.
    """
    found = _OBJECT.match(shown)
    if shown and found is None:  # a socket has a method `recv`, too
        return None
    if found is None or found[1] not in _CLASSES:
        return _METHODS.get(method)
    name = f"{_CLASSES[found[1]]}{method.lower()}"
    name = f"{name[:1].upper()}{name[1:]}"
    return name if name in _KINDS else None


def _is_world(communicator: str, lines: Sequence[str]) -> bool:
    """Return whether a file gives the communicator of all ranks to a name, and no other one."""
    assigned = re.compile(rf"\s*{re.escape(communicator)}\s*(?::[^=]*)?=\s*([\w.]+)")
    given = {match[1].rpartition(".")[2] for line in lines if (match := assigned.match(line))}
    return given == {_WORLD}


def _number(text: str) -> int | None:
    return int(text) if _DIGITS.fullmatch(text) else None


def operation_of_frames(
    threads: Sequence[NativeThread], *, size: int, at_s: float
) -> Operation | None:
    """Return the operation that native frames of a thread show; None if they show none."""
    for thread in threads:
        matches = (_NATIVE.fullmatch(each) for each in reversed(thread.symbols))
        names = (match[1] for match in matches if match is not None)
        if name := next((each for each in names if each in _KINDS), None):
            return as_of_some(_operation(name, size=size, at_s=at_s))
    return None


def _operation(name: str, *, size: int, at_s: float) -> Operation:
    return Operation(
        name=f"MPI_{name}",
        kind=_KINDS[name],
        group=tuple(range(size)),
        has_members=False,
        sequence=0,
        since_s=at_s,
        waited_s=at_s,
        source="python-frames",
    )
