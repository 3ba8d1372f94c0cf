"""Functions that ranks run for others in threads of their own, called by torch.distributed.rpc.

A diagnosis may be about such a thread. Then what the main thread does, such as a wait in
rpc.shutdown, says nothing about the hang.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_multihost.model.operation import CALLEE_SCOPE, Operation

_FETCH = "to_here"


def called_functions(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return those of a rank's operations that are functions which it runs for others."""
    return tuple(each for each in operations if each.is_open and each.scope == CALLEE_SCOPE)


def is_call_of(name: str, function: Operation) -> bool:
    """Return whether an operation of this name may be a call of that function."""
    return name == _FETCH or name.endswith(f"({function.detail})")
