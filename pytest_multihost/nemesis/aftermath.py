"""What faults have left on the machine: what their pages tell, and what has to be removed.

Done by the controller, before the stacks are taken and when a world has ended: a rank that hangs,
or was killed, tells nothing and removes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_multihost.model.event import Event
from pytest_multihost.model.result import WorldResult
from pytest_multihost.nemesis.io_shim.page import IoPage
from pytest_multihost.nemesis.memory import remove_group
from pytest_multihost.nemesis.slow_files import page_path


def heal_files(scratch: Path, ranks: Iterable[int]) -> None:
    """Take all I/O rules from ranks that are to be asked for their stacks, or to be ended."""
    for rank in ranks:
        with contextlib.suppress(OSError, ValueError):
            page = IoPage.open(page_path(scratch, rank))
            page.clear()
            page.close()


def settle(result: WorldResult, scratch: Path) -> WorldResult:
    """Remove what ranks that are gone have left, and return the result with what their pages tell.

    Args:
        result: Of a world that has ended.
        scratch: The world's directory, where the pages lie.
    """
    if any(fault.params.get("oom_kill") for fault in result.spec.faults):
        for event in result.history:
            if event.kind == "forked":
                remove_group(event.detail["pid"])
    history = result.history
    for event in untold(history, scratch):
        history = _with(history, event)
    return replace(result, history=history)


def untold(history: Sequence[Event], scratch: Path) -> Iterator[Event]:
    """Yield the beginnings of faults that only the counters of their rules have seen."""
    phases = {
        (event.rank, event.detail["index"], event.detail["phase"]): event
        for event in history
        if event.kind == "fault"
    }
    for (rank, index, phase), armed in phases.items():
        if phase == "armed" and (rank, index, "begun") not in phases:
            rules = armed.detail.get("rules", ())
            if first_s := _first_s(page_path(scratch, rank), rules):
                about = {name: armed.detail[name] for name in ("index", "fault", "at")}
                yield Event(first_s, rank, "fault", {**about, "phase": "begun"})


def _first_s(page: Path, rules: Iterable[int]) -> float | None:
    """Return when one of a page's rules struck first, in monotonic seconds."""
    with contextlib.suppress(OSError, ValueError):
        opened = IoPage.open(page)
        counts = opened.fired()
        opened.close()
        moments = [counts[number].first_ns for number in rules if counts[number].first_ns]
        return min(moments) / 1e9 if moments else None
    return None


def _with(history: Sequence[Event], new: Event) -> tuple[Event, ...]:
    """Return a history with an event at its place among those of its rank."""
    later = (i for i, e in enumerate(history) if e.rank == new.rank and e.at_s > new.at_s)
    place = next(later, len(history))
    return (*history[:place], new, *history[place:])
