"""Reads the file in which a project accepts known weaknesses, each with a reason."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.core.model.errors import shown
from pytest_multihost.core.model.json_values import JsonError, from_json, to_json
from pytest_multihost.core.option import Settings
from pytest_multihost.core.pytest_plugin.options import ACCEPTED, ACCEPTED_NAME

_EXAMPLE = """Each entry has the form
[[accepted]]
test = "tests/test_restore.py::*"
culprit = "src/storage.py:write_marker"
reason = "the launcher ends the job"
"""


def read_acceptances(root: Path, settings: Settings) -> tuple[Acceptance, ...]:
    """Return the entries of the file that the settings name, or of the usual one if it exists.

    Raises:
        pytest.UsageError: The file cannot be read, or an entry, which the error names, is wrong.
    """
    named = settings.get(ACCEPTED)
    path = root / (named or ACCEPTED_NAME)
    if named is None and not path.exists():
        return ()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{ACCEPTED.flag}: {path}: {error}\n{_EXAMPLE}") from error
    if set(data) - {"accepted"} or not isinstance(data.get("accepted", []), list):
        seen = f"it has {', '.join(map(repr, data))}, and takes only [[accepted]]"
        raise pytest.UsageError(f"{ACCEPTED.flag}: {path}: {seen}.\n{_EXAMPLE}")
    return tuple(_acceptances(path, data.get("accepted", [])))


def _acceptances(path: Path, entries: Sequence[object]) -> Iterator[Acceptance]:
    for number, entry in enumerate(entries, 1):
        try:
            found = from_json(Acceptance, entry)
            unknown = set(entry) - set(to_json(found))  # type: ignore[call-overload] # a mapping
            problem = f"there is no key {shown(min(unknown))}" if unknown else ""
            problem = problem or ("" if found.reason.strip() else "it needs a reason")
        except JsonError as error:
            problem = str(error)
        if problem:
            where = f"{ACCEPTED.flag}: {path}: entry {number}: {problem}"
            raise pytest.UsageError(f"{where}.\n{_EXAMPLE}")
        yield found
