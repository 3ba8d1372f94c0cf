"""Small files that travel from a machine whose disk we cannot see: logs, stacks, slot pages."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

MAX_FILE = 64 << 20
"""Bytes of a file that travel; of a longer one, the end."""


def pack(paths: Iterable[Path]) -> tuple[dict[str, int], bytes]:
    """Return the sizes of those files that are there by name, and a payload with their contents."""
    sizes, content = {}, b""
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_FILE))
            data = file.read(MAX_FILE)
            sizes[path.name] = len(data)
            content += data
    return sizes, zlib.compress(content, 1)


def unpack(sizes: Mapping[str, int], payload: bytes) -> dict[str, bytes]:
    """Return the contents of files by name."""
    content = zlib.decompress(payload) if sizes else b""
    files, start = {}, 0
    for name, size in sizes.items():
        files[Path(name).name] = content[start : start + size]
        start += size
    return files


def write_files(sizes: Mapping[str, int], payload: bytes, directory: Path) -> None:
    """Write files into a directory, under their bare names."""
    for name, data in unpack(sizes, payload).items():
        (directory / name).write_bytes(data)
