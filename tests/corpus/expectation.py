"""Decorators of the corpus: how a program runs, and which verdict on it is right.

An expectation is data on the marker `corpus`, which benchmarks/corpus.py reads. The contract is
docs/results.md. Where it leaves more than one answer, `also` lists the others and `why` says why
it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import pytest

from pytest_multihost.core.model.role import Role, place_roles, ranks_of

Test = TypeVar("Test", bound=Callable[..., object])

Kind = Literal[
    "straggler",
    "livelock",
    "finished",
    "raised",
    "died",
    "stopped",
    "gil_held",
    "mismatch",
    "deadlock",
    "transport",
    "stuck",
    "unknown",
]
By = Literal["exit", "raise", "stopped", "mismatch", "proof", "deadline"]

NO_ROLES: Mapping[str, int] = {}

HANG_TIMEOUT_S = 25.0
"""Long enough to tell a proof from the deadline, shorter than gloo's 30 s under jax."""

DEADLINE_TIMEOUT_S = 8.0
"""For what only time can tell."""

INNOCENT_TIMEOUT_S = 60.0

SHORT = "PYTEST_MULTIHOST_CORPUS_TIMEOUT"
"""Seconds: while programs are written, every hang ends then."""

_OUTCOMES: Mapping[str, str] = {"died": "crashed", "raised": "failed"}


def hang(
    kind: Kind,
    *,
    backend: str,
    ranks: int = 0,
    roles: Mapping[str, int] = NO_ROLES,
    culprits: Sequence[int | str] = (),
    waiting: Sequence[int | str] | None = None,
    by: Sequence[By] = ("proof",),
    outcome: Sequence[str] = (),
    where: str | None = None,
    waits_at: str | None = None,
    sides: Mapping[Sequence[int], str] | None = None,
    also: Sequence[Mapping[str, Any]] = (),
    why: str = "",
    timeout: float | None = None,
    **multihost: Any,  # noqa: ANN401 - further keys of the multihost marker
) -> Callable[[Test], Test]:
    """Mark a program that hangs, or in which ranks wait for one that is gone.

    Args:
        kind: The diagnosis.
        backend: How it is formed.
        ranks: Size of the world, if it has no roles.
        roles: The numbers of ranks of its roles; the others arguments may name these, as in
            "engine" and "engine:1".
        culprits: Who is to be named.
        waiting: Who waits for them, directly or through others; None where the contract leaves
            open who is counted, as in a cycle.
        by: Ways by which it may be detected; the first is the fastest possible.
        outcome: Of the world; by default what follows from the kind.
        where: Part of the source line that `where` is to show.
        waits_at: Part of a source line at which a rank waits, where the culprit has no line: it has
            finished, or there is none.
        sides: The first divergence: ranks, and part of the source line at which they began what the
            others did not; of a library's line where all were in the same line of the user's.
        also: Further diagnoses that are right, as {"kind", "culprits"}.
        why: Why the contract leaves them; needed with `also`.
        timeout: Seconds until the world's deadline.
        multihost: Further keys of the multihost marker.
    """
    if also and not why:
        message = "say why there is more than one right answer"
        raise ValueError(message)
    usual = HANG_TIMEOUT_S if by[0] != "deadline" else DEADLINE_TIMEOUT_S
    seconds = float(os.environ.get(SHORT) or timeout or usual)
    answers = [{"kind": kind, "culprits": list(culprits)}, *also]
    ranks = sum(roles.values()) or ranks
    if roles:
        multihost = {**multihost, "roles": roles}
    expected = {
        "is_hang": True,
        "answers": [
            {"kind": each["kind"], "culprits": _numbers(each["culprits"], roles)}
            for each in answers
        ],
        "waiting": None if waiting is None else _numbers(waiting, roles),
        "by": list(by),
        "outcomes": list(outcome) or [_OUTCOMES.get(kind, "hung")],
        "statuses": ["failed", "error"],
        "where": where,
        "waits_at": waits_at,
        "sides": None if sides is None else [[list(ranks), line] for ranks, line in sides.items()],
        "why": why,
        "ranks": ranks,
        "backend": backend,
    }
    return _marked(expected, ranks=ranks, backend=backend, timeout=seconds, **multihost)


def _numbers(named: Sequence[int | str], roles: Mapping[str, int]) -> list[int]:
    """Return ranks with numbers in place of names of roles."""
    places = place_roles({name: Role(size) for name, size in roles.items()}, "")
    each_of = [ranks_of(e, places) if isinstance(e, str) else (e,) for e in named]
    return sorted(rank for each in each_of for rank in each)


def innocent(
    *,
    backend: str,
    ranks: int = 0,
    roles: Mapping[str, int] = NO_ROLES,
    status: str = "passed",
    outcome: str | None = None,
    timeout: float = INNOCENT_TIMEOUT_S,
    **multihost: Any,  # noqa: ANN401 - further keys of the multihost marker
) -> Callable[[Test], Test]:
    """Mark a program that looks like a hang and is none: nobody may be accused.

    Args:
        backend: How it is formed.
        ranks: Size of the world, if it has no roles.
        roles: The numbers of ranks of its roles.
        status: What pytest reports.
        outcome: Of the world; by default the status.
        timeout: Seconds until the world's deadline.
        multihost: Further keys of the multihost marker.
    """
    ranks = sum(roles.values()) or ranks
    if roles:
        multihost = {**multihost, "roles": roles}
    expected = {
        "is_hang": False,
        "answers": [],
        "waiting": None,
        "by": [],
        "outcomes": [outcome or status],
        "statuses": [status],
        "where": None,
        "waits_at": None,
        "sides": None,
        "why": "",
        "ranks": ranks,
        "backend": backend,
    }
    return _marked(expected, ranks=ranks, backend=backend, timeout=timeout, **multihost)


def _marked(expected: Mapping[str, Any], **multihost: Any) -> Callable[[Test], Test]:  # noqa: ANN401
    if "roles" in multihost:
        del multihost["ranks"]

    def mark(test: Test) -> Test:
        marked = pytest.mark.corpus(**expected)(test)
        return pytest.mark.multihost(**multihost)(marked)

    return mark
