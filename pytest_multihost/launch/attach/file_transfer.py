"""Small files that travel from a machine whose disk we cannot see: logs, stacks, slot pages."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_multihost.launch.wire.framing import Frame

MAX_FILE = 64 << 20
"""Bytes of a file that travel; of a longer one, the end."""


def pack(paths: Iterable[Path]) -> tuple[dict[str, Any], bytes]:
    """Return what to add to a frame's header, and its payload, to send files that are there."""
    sizes, content = {}, b""
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_FILE))
            data = file.read(MAX_FILE)
            sizes[path.name] = len(data)
            content += data
    return {"files": sizes}, zlib.compress(content, 1)


def unpack(frame: Frame) -> dict[str, bytes]:
    """Return the files in a frame by name; none where it carries none."""
    sizes: Mapping[str, int] = frame.header.get("files", {})
    content = zlib.decompress(frame.payload) if sizes else b""
    files, start = {}, 0
    for name, size in sizes.items():
        files[Path(name).name] = content[start : start + size]
        start += size
    return files


def write_files(frame: Frame, directory: Path) -> None:
    """Write the files in a frame into a directory."""
    for name, data in unpack(frame).items():
        (directory / name).write_bytes(data)
