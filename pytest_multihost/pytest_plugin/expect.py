"""The `multihost_expect` marker: a test that passes only if its world hangs as described."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import get_args

import pytest

from pytest_multihost.model.errors import shown
from pytest_multihost.model.operation import group_by_value, rank_set
from pytest_multihost.model.verdict import Diagnosis, Kind, Status
from pytest_multihost.outcome import Finding
from pytest_multihost.outcome.own_failures import has_xfailed, own_failures
from pytest_multihost.pytest_plugin.marks import Check, as_tuple, check_values, is_seconds, must_be


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a test requires of the diagnosis of its world; None where any value will do."""

    kind: str | None = None
    culprits: tuple[int, ...] | None = None
    waiting: tuple[int, ...] | None = None
    match: str | None = None
    within: float | None = None

    def __str__(self) -> str:
        """Return it as the marker gives it: "kind=straggler, culprits=[0]"."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return ", ".join(
            f"{name}={list(value) if isinstance(value, tuple) else value}"
            for name, value in given.items()
            if value is not None
        )


def read_expectation(item: pytest.Item) -> tuple[Expectation | None, list[str]]:
    """Return what a test's marker expects, and every problem with the marker."""
    mark = item.get_closest_marker("multihost_expect")
    if mark is None:
        return None, []
    given = {**({"kind": mark.args[0]} if mark.args else {}), **mark.kwargs}
    problems = list(check_values(given, _CHECKS))
    if len(mark.args) > 1:
        problems.append(f"takes one positional argument, kind, not {len(mark.args)}")
    if not given:
        problems.append("says nothing that could be expected; give it kind=, culprits= or match=")
    if problems:
        return None, problems
    ranks = {
        name: tuple(sorted(as_tuple(given[name])))
        for name in ("culprits", "waiting")
        if given.get(name) is not None
    }
    return Expectation(**{**given, **ranks}), []


def _are_ranks(value: object) -> bool:
    """Whether a value is a rank or a list of ranks; an empty one expects that there are none."""
    return all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in as_tuple(value))


def _check_match(value: object) -> str | None:
    try:
        re.compile(value)  # type: ignore[call-overload]
    except (TypeError, OverflowError, RecursionError, re.error) as error:
        return f"must be a regular expression, not {shown(value)}: {error}"
    return None


_KINDS = get_args(Kind)
_CHECKS: Mapping[str, Check] = {
    "kind": must_be(_KINDS.__contains__, f"one of {', '.join(_KINDS)}"),
    "culprits": must_be(_are_ranks, "a rank or a list of ranks"),
    "waiting": must_be(_are_ranks, "a rank or a list of ranks"),
    "match": _check_match,
    "within": must_be(is_seconds, "a positive number of seconds, at most 1e9"),
}


def _differences(expected: Expectation, diagnosis: Diagnosis | None) -> Iterator[str]:
    """Yield how a diagnosis differs from what is expected."""
    if diagnosis is None:
        yield "nothing hung"
        return
    for name in ("kind", "culprits", "waiting"):
        want, got = getattr(expected, name), getattr(diagnosis, name)
        if want is not None and want != got:
            yield f"{name} is {_shown(got)}, not {_shown(want)}"
    if expected.match is not None and not re.search(expected.match, diagnosis.summary):
        yield f"the summary has no match for {expected.match!r}"
    if expected.within is not None and diagnosis.detected_after_s > expected.within:
        took = f"{diagnosis.detected_after_s:.1f} s"
        yield f"the verdict took {took}, not {expected.within:g} s at most"


def _shown(value: str | tuple[int, ...]) -> str:
    return value if isinstance(value, str) else rank_set(value) or "nobody"


def apply_expectation(
    finding: Finding, expected: Expectation, diagnosis: Diagnosis | None
) -> Finding:
    """Return the finding of a test that must hang as expected: passed if it did, else failed."""
    if finding.status not in ("passed", "failed", "error", "xfailed", "xpassed"):
        return finding  # skipped: nothing was run
    differences = "; ".join(_differences(expected, diagnosis))
    if differences or diagnosis is None:
        got = f"{finding.outcome}: {finding.reason}" if diagnosis is None else diagnosis.summary
        reason = f"expected {expected}; {differences} ({got})"
        return replace(finding, status="failed", reason=reason, when="call")
    own = group_by_value((text, each) for each, text in own_failures(finding, diagnosis))
    if not own:
        status: Status = "xfailed" if has_xfailed(finding, diagnosis) else "passed"
        return replace(finding, status=status, when="call")
    told = (f"{rank_set(e.facts.rank for e in ranks)}: {text}" for text, ranks in own.items())
    first = next(iter(own.values()))[0]
    return replace(
        finding,
        status="failed",
        reason=f"ended as expected ({diagnosis.summary}), but {'; '.join(told)}",
        headline=first.facts.rank if first.outcome in ("failed", "error") else None,
        when="call",
    )
