"""Finds the lines of code that a weakness is about, for all reports of a sweep."""

from __future__ import annotations

from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.report.layout import Role, Row
from pytest_multihost.extensions.sweep.result import DisturbedRun
from pytest_multihost.extensions.sweep.words import operation_text, place_text, ranks_at_culprit


def weakness_rows(run: DisturbedRun) -> list[Row]:
    """Return rows for the disturbed ranks, for culprits at another line, and for waiting ranks.

    The first row is that of the disturbed ranks.
    """
    fault, passed = run.disturbance.fault, run.disturbance.passed
    disturbed = fault.ranks if isinstance(fault.ranks, tuple) else (passed.rank,)
    if fault.is_first:  # the run names that rank if the others wait for it
        disturbed = run.culprits or (passed.rank,)
    role: Role = "culprit" if set(disturbed) & set(run.culprits or disturbed) else "plain"
    rows = [_row(disturbed, role, "injected", place_text(fault), passed.where)]
    others = tuple(each for each in run.waiting_ranks if each not in run.culprits)
    if run.culprit is not None and not _is_same(run.culprit, passed.where):
        state = _state_of_culprit(run)
        is_shared = state == "waiting" and not others
        details = operation_text(run.operation) if is_shared else ""
        there = ranks_at_culprit(run) or disturbed
        rows.append(_row(there, "culprit", state, details, run.culprit))
    if run.library is not None:
        rows.append(_row(run.culprits or disturbed, "culprit", "failed", "", run.library))
    if others:
        state = "entered" if run.outcome == "mismatched" else "waiting"
        rows.append(_row(others, "waiting", state, operation_text(run.operation), run.waiting))
    return rows


def _state_of_culprit(run: DisturbedRun) -> str:
    """Return the action of the culprits at their line."""
    if run.has_decided:
        return "decided"
    if run.outcome == "mismatched":
        return "entered"
    if set(run.culprits) & set(run.waiting_ranks):
        return "waiting"
    return "failed" if run.outcome == "left waiting" else "waited for"


def _row(ranks: tuple[int, ...], role: Role, state: str, details: str, place: Place | None) -> Row:
    if place is None:
        return Row(ranks, role, state, details, "")
    where = f"{place.file}:{place.line}"
    return Row(ranks, role, state, details, where, place.function, place.source)


def _is_same(one: Place, other: Place | None) -> bool:
    return other is not None and (one.file, one.line) == (other.file, other.line)


def state_text(row: Row) -> str:
    """Return a row's state with its details, such as "waiting in barrier #4"."""
    if row.state == "waiting" and row.details:
        return f"waiting in {row.details}"
    return f"{row.state} {row.details}".rstrip()
