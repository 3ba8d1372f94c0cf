"""Match weaknesses with those that a project accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from pytest_multihost.model.sweep import Acceptance, Weakness
from pytest_multihost.model.verdict import Place


def apply_acceptances(
    weaknesses: Sequence[Weakness], accepted: Sequence[Acceptance], *, nodeid: str
) -> tuple[tuple[Weakness, ...], tuple[Acceptance, ...]]:
    """Mark the weaknesses that are accepted.

    Args:
        weaknesses: All that a sweep of one test has found.
        accepted: The entries of the project's file.
        nodeid: The test.

    Returns:
        The weaknesses, and the entries for this test that no weakness meets.
    """
    mine = [each for each in accepted if _is_for(each.test, nodeid)]
    met: list[Acceptance] = []
    found = []
    for weakness in weaknesses:
        fitting = [each for each in mine if _accepts(each, weakness)]
        met += fitting
        found.append(replace(weakness, accepted=fitting[0].reason) if fitting else weakness)
    return tuple(found), tuple(each for each in mine if each not in met)


def _is_for(test: str, nodeid: str) -> bool:
    """Return whether an entry is for a test; a name without parameters is for all of them.

    The brackets of parameters are no glob, so an exact node id is compared first.
    """
    names = (nodeid, nodeid.partition("[")[0])
    return test in names or any(fnmatchcase(each, test) for each in names)


def _accepts(acceptance: Acceptance, weakness: Weakness) -> bool:
    witness = weakness.witness
    is_culprit = _is_at(acceptance.culprit, witness.culprit)
    return is_culprit and (
        acceptance.waiting is None or _is_at(acceptance.waiting, witness.waiting)
    )


def _is_at(line: str, place: Place | None) -> bool:
    """Return whether ``file:function`` or ``file:text of the line`` names a place."""
    if place is None:
        return False
    file, _, text = line.partition(":")
    wanted = " ".join(text.split())
    names = (place.function, place.function.rpartition(".")[2], " ".join(place.source.split()))
    return _is_end_of_path(file.strip(), place.file) and wanted in names


def _is_end_of_path(end: str, path: str) -> bool:
    """Return whether a path ends with whole parts of another."""
    parts = PurePosixPath(end).parts
    return bool(parts) and PurePosixPath(path).parts[-len(parts) :] == parts
