"""Reads lines of source files for reports.

The names of the files come from frames, and frames may come from a dump or from another user's
process. `SourceFiles` therefore reads regular files of moderate size only, and of foreign frames
only files below the folders that the reader has named.
"""

from __future__ import annotations

import io
import os
import site
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pytest_multihost.core.model.regular_file import open_regular

_MAX_BYTES = 2 << 20
_FILES, _LINES = 8, 4096
"""Sizes of the caches: stacks name the same lines thousands of times."""

_ENCODINGS = frozenset({"utf-8", "utf-8-sig", "iso-8859-1"})
"""Encodings that are used as a file names them: any other may take long, or is not an encoding."""

_OWN = os.path.realpath(os.path.join(__file__, *[".."] * 3))  # noqa: PTH118
"""This package's folder: an editable install leaves it outside of the installed packages."""

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The source files of which lines may be read.

    Attributes:
        roots: Only files below these folders are read, after all links are followed; None: any.
        suffix: A file elsewhere is read if its name ends so; empty if none is.
    """

    roots: tuple[str, ...] | None = None
    suffix: str = ""

    def lines(self, file: str) -> Sequence[str]:
        """Return the lines of a file; none if it may not or cannot be read."""
        return _lines(self, file)

    def line(self, file: str, number: int) -> str:
        """Return a line of a file without its indentation; empty if it cannot be read."""
        return _line(self, file, number)

    def has(self, path: str) -> bool:
        """Return whether a file may be read, given its path without links."""
        return (
            self.roots is None
            or any(path.startswith(os.path.join(each, "")) for each in self.roots)  # noqa: PTH118
            or bool(self.suffix and path.endswith(self.suffix))
        )


ANY_SOURCE = SourceFiles()
"""All source files, for frames of the user's own run."""


def files_below(folders: Iterable[str | os.PathLike[str]] | None, suffix: str = "") -> SourceFiles:
    """Return the source files below folders.

    Args:
        folders: The folders that the user has named; without any, the working directory and the
            folders of installed packages.
        suffix: A file elsewhere is read if its name ends so.
    """
    named = [*folders] if folders else [".", *_installed()]
    return SourceFiles(tuple(dict.fromkeys(map(os.path.realpath, named))), suffix)


def _installed() -> set[str]:
    found = {sysconfig.get_path(each) for each in _INSTALLED}
    return found | {*site.getsitepackages(), site.getusersitepackages(), _OWN}


@lru_cache(maxsize=_LINES)
def _line(files: SourceFiles, file: str, number: int) -> str:
    lines = _lines(files, file)
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


@lru_cache(maxsize=_FILES)
def _lines(files: SourceFiles, file: str) -> Sequence[str]:
    try:
        with open_regular(file) as opened:
            if not files.has(_real_path(opened.fileno(), file)):
                return ()
            size = os.fstat(opened.fileno()).st_size
            data = opened.read(size) if size <= _MAX_BYTES else b""
    except OSError:
        return ()
    # Only the ends of lines of Python, so not as `splitlines`, which ends one at a form feed.
    return _decoded(data).replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _real_path(descriptor: int, file: str) -> str:
    """Return the path without links of the open file, which cannot be exchanged meanwhile."""
    if sys.platform == "linux":
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return os.path.realpath(file)


def _decoded(data: bytes) -> str:
    encoding = "utf-8"
    try:
        found, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        encoding = found if found in _ENCODINGS else encoding
    except SyntaxError:  # the encoding is unknown, or not that of the data
        encoding = "utf-8"
    return data.decode(encoding, "replace")
