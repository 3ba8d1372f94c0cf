"""How ranks of gloo agree on whether all went well: what robust programs have and others lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


class FailedSomewhereError(RuntimeError):
    """Something failed on at least one rank; raised on all of them."""


def any_rank(is_so: bool) -> bool:
    """Return whether something is so on any rank."""
    flag = torch.tensor(int(is_so))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


@contextmanager
def all_or_none(what: str) -> Iterator[None]:
    """Raise on all ranks if the body has failed on one of them."""
    error: Exception | None = None
    try:
        yield
    except Exception as caught:  # noqa: BLE001 - whatever it is, all are to hear of it
        error = caught
    if any_rank(error is not None):
        raise FailedSomewhereError(what) from error
