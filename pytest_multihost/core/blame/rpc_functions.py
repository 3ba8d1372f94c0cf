"""Functions that ranks run for others in threads of their own, called by torch.distributed.rpc.

A diagnosis may be about such a thread. Then the state of the main thread, such as a wait in
rpc.shutdown, says nothing about the hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.model.operation import CALLEE_SCOPE, RPC_KINDS, Operation, rpc_name
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import Dump, ThreadStack
from pytest_multihost.core.model.verdict import OperationName, WaitsFor

_CALLEE = "torch/distributed/rpc/internal.py"
_FETCH = "to_here"


def called_functions(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return the operations of a rank that are functions which it runs for others."""
    return tuple(each for each in operations if each.is_open and each.scope == CALLEE_SCOPE)


def is_call_of(name: str, function: Operation) -> bool:
    """Return whether an operation of this name may be a call of that function."""
    return name in {_FETCH, *(rpc_name(kind, function.detail) for kind in RPC_KINDS)}


def operations_in_calls(
    result: WorldResult,
    culprits: Sequence[int],
    operation: OperationName | None,
    waits_for: Sequence[WaitsFor],
) -> Mapping[int, Operation]:
    """Return the operation of each RPC thread that a diagnosis is about, by rank.

    For a culprit it is the function that the rank runs, for another rank the operation that the
    function waits in.

    Args:
        operation: The operation in which the others wait for the culprits.
    """
    found: dict[int, Operation] = {}
    for wait in waits_for:
        own = _last_seen_in(wait.rank, result)
        threads = {each.thread for each in called_functions(own)}
        for each in own:
            name = OperationName(each.name, each.sequence, each.group)
            if each.is_open and each.thread in threads and name == wait.operation:
                found.setdefault(wait.rank, each)
    for rank in culprits if operation is not None else ():
        own = _last_seen_in(rank, result)
        for each in called_functions(own):
            if rank not in found and operation and is_call_of(operation.name, each):
                found[rank] = each
    return found


def _last_seen_in(rank: int, result: WorldResult) -> Sequence[Operation]:
    seen = result.last_seen_of(rank)
    return seen.operations if seen is not None else ()


def thread_of(dump: Dump, operation: Operation) -> ThreadStack | None:
    """Return the RPC thread of a dump that is in `operation`; None if it is unknown."""
    threads = [each for each in dump.threads if _runs_for_caller(each)]
    if operation.scope == CALLEE_SCOPE:
        known = (e for e in threads if any(f.function == operation.detail for f in e.frames))
    else:
        known = (e for e in threads if operation.frame in e.frames)
    return next(known, threads[0] if len(threads) == 1 else None)


def with_threads(dumps: Iterable[Dump], operations: Mapping[int, Operation]) -> tuple[Dump, ...]:
    """Return the dumps; the thread in a rank's operation replaces its main thread."""
    found = []
    for dump in dumps:
        operation = operations.get(dump.rank)
        thread = thread_of(dump, operation) if operation is not None else None
        shown = replace(dump, threads=(thread,), lacks_main=False) if thread is not None else dump
        found.append(shown)
    return tuple(found)


def _runs_for_caller(thread: ThreadStack) -> bool:
    return any(each.file.endswith(_CALLEE) for each in thread.frames)
