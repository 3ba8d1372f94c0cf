"""Reads the file in which a project accepts known weaknesses, each with a reason."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.core.model.errors import shown
from pytest_multihost.core.model.json_values import JsonError, from_json, to_json
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.regular_file import read_regular
from pytest_multihost.core.option import ACCEPTED, ACCEPTED_NAME, Settings
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error

_MAX_BYTES, _MAX_PARTS, _MAX_KEYS, _MAX_SHOWN = 1 << 20, 100, 10, 200
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
        data = parse_toml(read_regular(path, max_bytes=_MAX_BYTES).decode())
    except (OSError, ValueError) as error:
        why = printable(str(error)[:_MAX_SHOWN])
        raise usage_error(f"{ACCEPTED.flag}: {path}: {why}\n{_EXAMPLE}") from error
    if set(data) - {"accepted"} or not isinstance(data.get("accepted", []), list):
        keys = printable(", ".join([*data][:_MAX_KEYS]))
        seen = f"it has {keys[:_MAX_SHOWN]}, and only [[accepted]] is allowed"
        raise usage_error(f"{ACCEPTED.flag}: {path}: {seen}.\n{_EXAMPLE}")
    return tuple(_acceptances(path, data.get("accepted", [])))


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a foreign TOML text.

    Raises:
        ValueError: It is not TOML, or nested too deep.
    """
    for number, line in enumerate(text.splitlines(), 1):
        # `tomllib` takes time that grows with the square of the number of parts of a key.
        if max(map(line.count, ".[{=")) > _MAX_PARTS:
            raise ValueError(f"line {number} has more than {_MAX_PARTS} signs of one kind")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deep") from None


def _acceptances(path: Path, entries: Sequence[object]) -> Iterator[Acceptance]:
    for number, entry in enumerate(entries, 1):
        try:
            found = from_json(Acceptance, entry)
            unknown = set(entry) - set(to_json(found))  # type: ignore[call-overload] # a mapping
            problem = f"there is no key {shown(min(unknown))}" if unknown else ""
            problem = problem or ("" if found.reason.strip() else "it needs a reason")
        except JsonError as error:
            problem = printable(str(error)[:_MAX_SHOWN])
        if problem:
            where = f"{ACCEPTED.flag}: {path}: entry {number}: {problem}"
            raise usage_error(f"{where}.\n{_EXAMPLE}")
        yield found
