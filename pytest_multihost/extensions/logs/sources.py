"""The inputs of a job's logs: files, compressed ones, folders of a launcher, standard input."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from pytest_multihost.core.model.regular_file import open_regular

MAX_FILES = 20_000
"""The most files of a folder that are read."""

_LOG = re.compile(
    r"\.(?:log|out|err|txt|gz)$|\.o\d+$|^(?:stdout|stderr|error\.json)", re.IGNORECASE
)
_RANK = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_TORCHRUN = re.compile(r"(?:^|/)attempt_(\d+)/(\d{1,6})/(?:stdout\.log|stderr\.log|error\.json)$")
_GZIP = b"\x1f\x8b"
_TEXT_BYTES = 4096
_MAX_CONTROLS = 0.05


@dataclass(frozen=True, slots=True)
class Source:
    """One input.

    Attributes:
        path: The file; None for standard input.
        rank: The rank that wrote it, if its name says so.
        attempt: Which start of the job by torchrun it belongs to.
        machine: Of which machine `rank` is the number; empty if it is that of the job.
    """

    path: Path | None
    name: str
    rank: int | None = None
    attempt: int = 0
    machine: str = ""


STDIN = Path("-")


def is_log_file(path: Path) -> bool:
    """Return whether a file has text or nothing, also if it is compressed."""
    try:
        with opened(Source(path, str(path))) as stream:
            start = stream.read(_TEXT_BYTES)
    except (OSError, EOFError, ValueError):
        return False
    controls = sum(start.count(bytes([each])) for each in (0, 1, 2, 3, 4, 5, 6, 14, 15, 16))
    return controls <= _MAX_CONTROLS * len(start) and b"\0" not in start


def is_log_folder(directory: Path) -> bool:
    """Return whether a folder has files that are named like logs."""
    return next(_files(directory), None) is not None


def sources_of(paths: Sequence[Path]) -> tuple[Source, ...]:
    """Return the inputs that the user names; of a folder of torchrun's, only the last attempt."""
    found: list[Source] = []
    for path in paths:
        if path == STDIN:
            found.append(Source(None, "standard input"))
        elif path.is_dir():
            files = [_source(each, each.relative_to(path)) for each in _files(path)]
            last = max((each.attempt for each in files), default=0)
            found += [each for each in files if each.attempt == last]
        else:
            is_alone = [each.name for each in paths].count(path.name) == 1
            found.append(_source(path, Path(path.name) if is_alone else path))
    if len({each.machine for each in found} - {""}) <= 1:
        return tuple(replace(each, machine="") for each in found)
    return tuple(found)


def size_of(sources: Sequence[Source]) -> int | None:
    """Return the bytes of all inputs; None if one of them is standard input or compressed."""
    paths = [each.path for each in sources]
    if any(each is None or each.suffix == ".gz" for each in paths):
        return None
    return sum(each.stat().st_size for each in paths if each is not None)


def _source(path: Path, name: Path) -> Source:
    text = name.as_posix()
    if made := _TORCHRUN.search(path.as_posix()):
        machine = path.as_posix()[: made.start()]
        return Source(path, text, int(made[2]), int(made[1]), machine or ".")
    of = _RANK.search(path.name)
    return Source(path, text, int(of[1]) if of else None)


def _files(directory: Path) -> Iterator[Path]:
    count = 0
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if _LOG.search(name) and not path.is_symlink() and path.is_file():
                yield path
                count += 1
                if count >= MAX_FILES:
                    return


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """Open an input for reading, and decompress it if need be.

    Raises:
        OSError: It cannot be read.
    """
    if source.path is None:
        stdin = io.BufferedReader(cast("io.RawIOBase", sys.stdin.buffer))
        is_packed = stdin.peek(2)[:2] == _GZIP
        yield cast("BinaryIO", gzip.GzipFile(fileobj=stdin)) if is_packed else stdin
        return
    with open_regular(source.path) as file:
        if file.read(2) == _GZIP:
            file.seek(0)
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("BinaryIO", io.BufferedReader(unpacked))
            return
        file.seek(0)
        yield file
