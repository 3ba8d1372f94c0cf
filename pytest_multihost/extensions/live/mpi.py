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
    "Comm_create",
    "Comm_dup",
    "Comm_free",
    "Comm_split",
    "Exscan",
    "File_close",
    "File_open",
    "File_read_all",
    "File_read_at_all",
    "File_write_all",
    "File_write_at_all",
    "Finalize",
    "Gather",
    "Gatherv",
    "Reduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Scan",
    "Scatter",
    "Scatterv",
    "Win_create",
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
)

_KINDS: Mapping[str, OperationKind] = {
    **dict.fromkeys(_COLLECTIVES, "collective"),
    **dict.fromkeys(_TRANSFERS, "transfer"),
    **dict.fromkeys(_REQUESTS, "transfer"),
}
"""The operations of MPI that wait, by their names without the prefix ``MPI_``."""

_METHODS: Mapping[str, str] = {
    **{each: each for each in _KINDS if not each.startswith(("Comm_", "File_", "Finalize"))},
    **{each.lower(): each for each in (*_COLLECTIVES, *_TRANSFERS) if "_" not in each},
    **{each.removeprefix("Comm_").capitalize(): each for each in _KINDS if "Comm_" in each},
    "waitall": "Waitall",
}
"""The methods of mpi4py that perform them: pickled objects have names in lower case. `wait` is a
method of too many other things."""

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
) -> Operation | None:
    """Return the operation that a line of the user's performs by mpi4py; None if it performs none.

    Args:
        source: The text of the line.
        values: The variables of its function, as text.
        lines: The whole file: it may say that the communicator is the one of all ranks.
    """
    for communicator, method in _CALL.findall(source):
        name = _METHODS.get(method)
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
