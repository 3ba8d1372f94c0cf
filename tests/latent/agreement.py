"""How ranks of gloo agree on whether all went well: what robust programs have and others lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def written_by_primary(world, folder: Path, texts: dict[str, str]) -> None:
    """Let the primary write files; return once all are there, or raise on all ranks."""
    dist.barrier()  # so that for every rank they are new
    errors = [None]
    if world.is_primary:
        try:
            for name, text in texts.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
        except OSError as error:
            errors = [repr(error)]
    dist.broadcast_object_list(errors)
    if errors[0] is not None:
        raise RuntimeError(errors[0])
