"""Ranks that run another jitted program than the others."""

from __future__ import annotations

from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.causes import odd_ones
from pytest_multihost.core.model.operation import group_by_value


def as_other_program(cause: Cause) -> Cause:
    """Return a mismatch if a minority of the ranks runs another jitted program than the others.

    If all members are in one, nothing moves, and a minority is at another line or in a function of
    another name, they are likely in two programs. Programs known from native frames alone have no
    names.
    """
    if cause.kind != "transport" or cause.culprits or cause.cut is not None:
        return cause
    inside = [
        (wait.operation.name if wait.operation.is_program else wait.operation.frame, wait.rank)
        for wait in cause.waits
        if wait.operation is not None
        and cause.operation is not None
        and wait.operation.is_same_as(cause.operation)
        and (wait.operation.source == "native-frames" or wait.operation.is_program)
        and (wait.operation.frame is not None or wait.operation.is_program)
    ]
    odd = odd_ones(group_by_value(inside)) if inside else ()
    if not odd or {rank for _, rank in inside} != {*cause.waiting}:
        return cause
    waiting = tuple(rank for rank in cause.waiting if rank not in odd)
    return replace(cause, kind="mismatch", culprits=odd, waiting=waiting)
