"""Decorators of the corpus of latent weaknesses: what a program hides, and what lays it bare.

Every program passes as it is. Once one rank is late, fails or sees something else, a latent one
hangs or leaves ranks waiting for one that has failed (its outcome is `waits`), or ends without an
error of the program and is wrong (its outcome is `wrong`). A robust one does neither. An
expectation is data on the marker `latent_corpus`, which benchmarks/latent.py reads.

The lines that a finding is to name carry the comment ``# <- latent``: of the rank that is disturbed
or parts from the others. Lines at which others then wait carry ``# <- waits``. Both are looked for
in the test and in the functions and classes of its module that it uses. A finding in a wrong
program may name the file or the value that is wrong instead.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import pytest

from pytest_multihost.core.model.fault import Fault

Test = TypeVar("Test", bound=Callable[..., object])
Family = Literal["late", "fails", "differs"]
Outcome = Literal["waits", "wrong"]
Check = Callable[[Mapping[str, Any]], None]
"""Looks at what a run has left; takes the test's fixtures, and fails if that is wrong."""

BY_HAND = "PYTEST_MULTIHOST_LATENT_BY_HAND"
"""Set: latent programs run with the fault that is written beside them."""

SWEEP = "PYTEST_MULTIHOST_LATENT_SWEEP"
"""Seconds: every program is swept for so long."""

FAMILIES = ("late", "fails", "differs")

TIMEOUT_S = 20.0
"""Longer than a proof takes, shorter than gloo's 30 s under jax."""

POLLING_TIMEOUT_S = 8.0
"""For programs that poll: what only the deadline can tell."""

LATENT, WAITS = "# <- latent", "# <- waits"


def latent(
    *,
    family: Family,
    ranks: int,
    backend: str,
    outcome: Outcome = "waits",
    by_hand: Fault | None = None,
    seen_by: Check | None = None,
    names: str = "",
    sweep: Mapping[str, Sequence[str]] | None = None,
    timeout: float = TIMEOUT_S,
    **multihost: Any,  # noqa: ANN401 - further keys of the multihost marker
) -> Callable[[Test], Test]:
    """Mark a program that passes and hides a hang or a wrong result.

    Args:
        family: The kind of disturbance that lays it bare.
        ranks: Size of the world.
        backend: How it is formed.
        outcome: What it hides: ranks that wait, or a run that is wrong.
        by_hand: A fault that shows what is hidden; None if no public fault does.
        seen_by: What shows that the run with that fault is wrong; by default the test fails. Called
            in every rank after the test.
        names: Part of the file's or value's name that is wrong, if a finding may name that.
        sweep: Further keys of the sweep's marker: what it cannot know by itself, as
            ``module:function``, and other `families` than the usual ones.
        timeout: Seconds until the world's deadline.
        multihost: Further keys of the multihost marker.
    """
    is_by_hand = by_hand is not None and bool(os.environ.get(BY_HAND))
    faults = [by_hand] if is_by_hand else []
    expected = {
        "family": family,
        "ranks": ranks,
        "backend": backend,
        "outcome": outcome,
        "names": names,
        "has_fault": by_hand is not None,
    }
    asked = {"ranks": ranks, "backend": backend, "timeout": timeout, "faults": faults, **multihost}
    return _marked(expected, asked, sweep or {}, seen_by if is_by_hand else None)


def robust(
    *,
    ranks: int,
    backend: str,
    sweep: Mapping[str, Sequence[str]] | None = None,
    timeout: float = TIMEOUT_S,
    **multihost: Any,  # noqa: ANN401 - further keys of the multihost marker
) -> Callable[[Test], Test]:
    """Mark a program in which no single disturbance leaves ranks waiting or a result wrong.

    Every call that can fail is followed by an agreement on whether it did, so a failure reaches all
    ranks by itself.
    """
    expected = {"family": None, "ranks": ranks, "backend": backend}
    asked = {"ranks": ranks, "backend": backend, "timeout": timeout, **multihost}
    return _marked(expected, asked, sweep or {})


def marked_lines(test: Callable[..., object]) -> dict[str, list[int]]:
    """Return the numbers of the lines of a program that carry each of the two comments."""
    path = inspect.getsourcefile(test)
    if path is None:
        return {}
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a plain name from inspect
        text = file.read()
    lines = text.splitlines()
    spans = _used(ast.parse(text), test.__name__)
    numbers = [number for first, last in spans for number in range(first, last + 1)]
    return {
        comment.split()[-1]: sorted(n for n in numbers if comment in lines[n - 1])
        for comment in (LATENT, WAITS)
    }


def _used(module: ast.Module, name: str) -> list[tuple[int, int]]:
    """Return the first and last line of a function and all of its module that it uses."""
    definitions = {
        each.name: each
        for each in module.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    found: dict[str, tuple[int, int]] = {}
    left = [name]
    while left:
        each = left.pop()
        node = definitions.get(each)
        if node is not None and each not in found:
            found[each] = node.lineno, node.end_lineno or node.lineno
            inner = (one for part in node.body for one in ast.walk(part))
            left += [one.id for one in inner if isinstance(one, ast.Name)]
    return list(found.values())


def _marked(
    expected: Mapping[str, Any],
    asked: Mapping[str, Any],
    sweep: Mapping[str, Sequence[str]],
    seen_by: Check | None = None,
) -> Callable[[Test], Test]:
    budget = os.environ.get(SWEEP)
    swept = {"families": FAMILIES, **sweep, "budget": float(budget or 1)}

    def mark(test: Test) -> Test:
        checks = [seen_by] if seen_by else []
        marked = pytest.mark.latent_corpus(*checks, **expected)(test)
        if budget:
            marked = pytest.mark.multihost_sweep(**swept)(marked)
        return pytest.mark.multihost(**asked)(marked)

    return mark
