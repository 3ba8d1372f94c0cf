"""Native frames of ranks for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.result import RankSnapshot, WorldResult
from pytest_multihost.core.report.layout import INDENT, Section, Span

_MAX_FRAMES = 12
_MAX_SYMBOL = 120


def native_sections(result: WorldResult) -> Iterator[Section]:
    """Yield a section for each distinct native stack of the ranks' main threads."""
    ranks = result.snapshots[-1].ranks if result.snapshots else ()
    found = group_by_value((symbols, each.rank) for each in ranks if (symbols := _symbols(each)))
    for symbols, group in found.items():
        shown = [each[:_MAX_SYMBOL] for each in symbols[:_MAX_FRAMES]]
        if (more := len(symbols) - _MAX_FRAMES) > 0:
            shown.append(f"and {more} more")
        title = f"native frames of {result.spec.names.of(group)}, main thread, innermost first"
        yield Section(title, tuple((INDENT, Span(each)) for each in shown))


def _symbols(seen: RankSnapshot) -> tuple[str, ...]:
    return seen.native[0].symbols if seen.native else ()
