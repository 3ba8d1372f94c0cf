"""Archives of the files of ranks, which a peer sends if the controller does not see its files."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from pytest_multihost.core.files import write
from pytest_multihost.core.model.foreign_bytes import (
    MAX_MEMBERS,
    UnreadableError,
    open_archive,
    read_member,
)
from pytest_multihost.core.model.setting_values import MAX_RANKS

Files = Mapping[str, bytes]
"""The contents of files by name."""

MAX_FILE = 64 << 20
"""Maximum number of bytes sent of a file; a longer file loses its beginning."""


def pack(paths: Iterable[Path]) -> bytes:
    """Return a zip archive of the files that exist."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as files:
        for path in paths:
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_FILE))
                files.writestr(path.name, file.read(MAX_FILE))
    return archive.getvalue()


_NAME = re.compile(r"rank-(0|[1-9]\d{0,4})\.[A-Za-z][A-Za-z0-9._-]{0,60}")
"""The names of the files of a rank, and its number in them."""

_MAX_FILES = 20
"""The most files of a rank in an archive."""


def members(
    payload: bytes, ranks: Collection[int], max_bytes: Mapping[str, int] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files in an archive, one after the other.

    Args:
        ranks: The ranks whose files it may have.
        max_bytes: The files that it may have, by the ends of their names, with their maximum sizes;
            None: files with any end.

    Raises:
        UnreadableError: It is not an archive, or has other files or larger ones.
    """
    if not payload:
        return
    limits, left = max_bytes or {"": MAX_FILE}, 2 * MAX_FILE * len(ranks)
    most = min(MAX_MEMBERS, _MAX_FILES * len(ranks))
    with open_archive(io.BytesIO(payload), max_members=most) as archive:
        for member in archive.infolist():
            found = _NAME.fullmatch(member.filename)
            limit = next((n for end, n in limits.items() if member.filename.endswith(end)), 0)
            if found is None or int(found[1]) not in ranks or not limit:
                raise UnreadableError(f"it was not asked for {member.filename[:100]!r}")
            yield member.filename, read_member(archive, member, max_bytes=min(limit, left))
            left -= member.file_size


def write_files(
    payload: bytes,
    directory: Path,
    ranks: Collection[int] = range(MAX_RANKS),
    *,
    moved: tuple[str, str] | None = None,
) -> None:
    """Write an archive's files into a directory; a file that cannot be written is skipped.

    Args:
        ranks: The ranks whose files they may be.
        moved: A folder that the files name, and the folder to name in its place.

    Raises:
        UnreadableError: It is not an archive of such files.
    """
    for name, data in members(payload, ranks):
        if moved is not None:
            there, here = (f"{folder}/".encode() for folder in moved)
            data = data.replace(there, here)  # noqa: PLW2901 - the same file
        with contextlib.suppress(OSError):
            write(directory / name, data)
