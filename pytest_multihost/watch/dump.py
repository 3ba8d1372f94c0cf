"""Have ranks write their stacks, and read them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pytest_multihost.analysis.merge import parse_faulthandler
from pytest_multihost.launch.protocol import RunningWorld
from pytest_multihost.model.stack import Dump

BUDGET_S = 2.0
"""How long to wait for the answers. Four idle ranks take 3 ms; a busy machine takes longer."""

_POLL_S = 0.01


def dump_stacks(world: RunningWorld, ranks: Sequence[int], directory: Path) -> tuple[Dump, ...]:
    """Return the stacks of `ranks`, with no threads for those that did not answer in time.

    faulthandler works in a signal handler: it answers with the interpreter lock held, in any
    blocking call, but not in uninterruptible sleep. Asking is for ranks that are to be ended: a
    running rank with several busy threads can crash of it (python/cpython issue 116008).
    """
    if not ranks:
        return ()
    files = {rank: directory / f"rank-{rank}.stacks" for rank in ranks}
    world.request_dumps(ranks)
    _await_answers(list(files.values()))
    return tuple(parse_faulthandler(_read(file), rank=rank) for rank, file in files.items())


def _await_answers(files: Sequence[Path]) -> None:
    """Wait until every file has content and none has grown since the last look."""
    deadline = time.monotonic() + BUDGET_S
    sizes: list[int] = []
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        last, sizes = sizes, [_size(file) for file in files]
        if all(sizes) and sizes == last:
            return


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return ""
