"""Reads the files that a test has saved in its ranks' shared folder, after they have ended.

Nothing is changed. The look is bounded in files, bytes and time; anything beyond is not judged.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from pytest_multihost.core.model.json_values import Json
from pytest_multihost.extensions.sweep.saved.formats import (
    MOST_TEXT,
    Format,
    format_of,
    problem_of,
)

MOST_FILES: Final = 1000
MOST_SECONDS: Final = 2.0
"""The maximum of files, and of time, for one look."""

_MOST_NAMES = 200
_MOST_NAME = 255


@dataclass(frozen=True, slots=True)
class SavedFile:
    """One file.

    Attributes:
        problem: Why it cannot be loaded, as a clause; empty if it can.
        names: For a small text or JSON file, the texts in it that may name other files.
    """

    size: int
    form: Format
    problem: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """All files in a folder.

    Attributes:
        by_path: The files by their paths, relative to the folder, with slashes.
        is_all: Whether there were no more files, and time for all.
    """

    by_path: Mapping[str, SavedFile] = field(default_factory=dict)
    is_all: bool = True


def look_at(folder: Path, expected: SavedFiles | None = None) -> SavedFiles:
    """Return the files in a folder.

    Args:
        expected: The files of the undisturbed run: files of the same path are checked as the same
            format, even if they do not begin like it.
    """
    until_s = time.monotonic() + MOST_SECONDS
    formats = {path: each.form for path, each in expected.by_path.items()} if expected else {}
    found: dict[str, SavedFile] = {}
    for path in _paths(folder):
        if len(found) >= MOST_FILES or time.monotonic() > until_s:
            return SavedFiles(found, is_all=False)
        name = path.relative_to(folder).as_posix()
        with suppress(OSError), path.open("rb") as file:
            found[name] = _saved(name, file, formats.get(name))
    return SavedFiles(found)


def _paths(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder, without following links."""
    with suppress(OSError):
        for each in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if each.is_dir(follow_symlinks=False):
                yield from _paths(Path(each.path))
            elif each.is_file(follow_symlinks=False):
                yield Path(each.path)


def _saved(name: str, file: BinaryIO, form: Format | None) -> SavedFile:
    size = os.fstat(file.fileno()).st_size
    begin = file.read(MOST_TEXT)
    form = form or format_of(name, begin, size)
    problem = problem_of(file, form)
    names: tuple[str, ...] = ()
    if form in ("text", "json") and size <= MOST_TEXT and not problem:
        names = _names(begin, form)
    return SavedFile(size, form, problem, names)


def _names(content: bytes, form: Format) -> tuple[str, ...]:
    text = content.decode("utf-8", "replace")
    found = list(_texts(json.loads(text))) if form == "json" else [text, *text.split()]
    names = (each.strip() for each in found)
    return tuple(dict.fromkeys(e for e in names if 0 < len(e) <= _MOST_NAME))[:_MOST_NAMES]


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
