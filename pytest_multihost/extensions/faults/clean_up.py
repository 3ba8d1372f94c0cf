"""Clean up after faults, and report faults that happened unseen.

The controller does this, before it takes stacks and when a world has ended: a rank that hangs or
was killed can neither report anything nor remove its files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_multihost.core.model.event import Event, FaultChanged, Forked
from pytest_multihost.core.services import MachinePart
from pytest_multihost.extensions.faults.io_shim import IoPage
from pytest_multihost.extensions.faults.pressure import MEMORY_PRESSURE, remove_cgroup
from pytest_multihost.extensions.faults.slow_io import page_path


def join_machine(scratch: Path) -> MachinePart:
    """Return a machine's part in the faults of its ranks.

    Args:
        scratch: The world's own directory on the machine.
    """
    return MachinePart(
        before_stacks=lambda ranks: heal_files(scratch, ranks),
        clean_up=lambda history: clean_up_faults(history, scratch),
    )


def heal_files(scratch: Path, ranks: Iterable[int]) -> None:
    """Remove all I/O rules of ranks, before their stacks are taken or they are ended.

    The shim reads the rules from shared memory, so this works whatever state the rank is in; a
    thread that it has put to sleep wakes soon, and shows its own stack instead of the shim's.
    """
    for rank in ranks:
        with (
            contextlib.suppress(OSError, ValueError),
            contextlib.closing(IoPage.open(page_path(scratch, rank))) as page,
        ):
            page.clear()


def clean_up_faults(history: Sequence[Event], scratch: Path) -> list[Event]:
    """Remove the remains of ranks, and return the beginnings of faults that they have not reported.

    Args:
        history: The history of a world that has ended.
        scratch: The world's directory, which holds the pages of I/O rules.
    """
    killed = {
        event.rank
        for event in history
        if isinstance(event.body, FaultChanged)
        and event.body.kills
        and event.body.fault == MEMORY_PRESSURE.name
    }
    for event in history:
        if isinstance(event.body, Forked) and event.rank in killed:
            remove_cgroup(event.body.pid)
    return list(_unreported_faults(history, scratch))


def _unreported_faults(history: Sequence[Event], scratch: Path) -> Iterator[Event]:
    """Yield the beginnings of faults that only the counters of their I/O rules show.

    A fault like `slow_io` is armed at its point and happens at the first matching call, perhaps in
    a forked child or in a rank that could no longer report it.
    """
    phases = {
        (event.rank, event.body.index, event.body.phase): event.body
        for event in history
        if isinstance(event.body, FaultChanged)
    }
    for (rank, index, phase), armed in phases.items():
        if phase != "armed" or (rank, index, "begun") in phases:
            continue
        with contextlib.suppress(OSError, ValueError):  # the page may be gone or damaged
            with contextlib.closing(IoPage.open(page_path(scratch, rank))) as page:
                counts = page.fired()
            if times_ns := [ns for number in armed.rules if (ns := counts[number].first_ns)]:
                begun = FaultChanged(index=index, fault=armed.fault, at=armed.at, phase="begun")
                yield Event(min(times_ns) / 1e9, rank, begun)
