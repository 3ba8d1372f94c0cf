"""What a failed world looks like in words. No colour, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.model.diagnosis import Diagnosis
from pytest_multihost.model.hosts import host_count
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.replay import token
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.user_code import SourceContext
from pytest_multihost.outcome import Finding, RankFinding
from pytest_multihost.outcome.faults import fault_notes, firings
from pytest_multihost.report.text.page import clipped, facts_lines, world_lines

WIDTH = 160
"""The widest line of a page, unless it is to be copied."""


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the report."""

    title: str
    text: str


def sections(
    result: WorldResult,
    finding: Finding,
    diagnosis: Diagnosis | None,
    *,
    context: SourceContext,
    files: str,
    width: int = WIDTH,
) -> list[Section]:
    """Return what is to be read under the headline rank's own traceback.

    Args:
        result: What was observed.
        finding: What was found.
        diagnosis: Why it hung or broke, where that is to be told.
        context: Names files, and reads lines of them.
        files: Where the artifacts are.
        width: Columns there are.
    """
    lines = [*world_lines(result, finding, diagnosis, context, width=width - 2)]
    lines += [f"left behind and ended: {command}" for command in result.leftovers]
    shown = [clipped(f"  {line}", width) for line in lines]
    if result.spec.faults:
        notes = fault_notes(result) if diagnosis is None else ()  # it tells them itself
        told = [*facts_lines("fault", _fault_lines(result), width - 2)]
        shown += [f"  {line}" for line in (*told, *facts_lines("note", notes, width - 2))]
        replay = f"pytest '{result.spec.nodeid}' --multihost-replay {token(result.spec)}"
        shown.append(f"  replay    {replay}")  # to be copied
    shown.append(f"  files     {files}")
    return [Section(_title(result), "\n".join(shown)), *_other_failures(finding)]


def _fault_lines(result: WorldResult) -> list[str]:
    """Return each fault with when it first happened to which rank."""
    lines = []
    for index, fault in enumerate(result.spec.faults):
        times = [
            f"rank {rank} at +{found[0] - result.started_s:.2f} s"
            for rank, found in firings(result, index).items()
        ]
        lines.append(f"{fault!r}: {', '.join(times) if times else 'never fired'}")
    return lines


def _title(result: WorldResult) -> str:
    size, backend = result.spec.size, result.spec.backend
    count = host_count(result.spec.hosts, size)
    hosts = f" on {count} hosts" if count > 1 else ""
    return f"world of {size} rank{'s' if size > 1 else ''}{hosts}, {backend}"


def _other_failures(finding: Finding) -> list[Section]:
    """Return the full text of failures that are neither the headline's nor a symptom."""
    parts = []
    groups: dict[tuple[object, ...], list[RankFinding]] = {}
    for each in finding.ranks:
        groups.setdefault(each.identity, []).append(each)
    for group in sorted(groups.values(), key=lambda group: (len(group), group[0].facts.rank)):
        first = group[0]
        ranks = {each.facts.rank for each in group}
        if finding.headline in ranks or first.error is None or first.outcome == "collateral":
            continue
        title = f"{rank_set(ranks)}: {first.error.type}"
        parts.append(Section(title, first.error.text))
    return parts
