"""The directories that the ranks of a world share, in the world's scratch directory."""

from __future__ import annotations

from pathlib import Path


def make_shared_directories(scratch: Path) -> None:
    """Make the directory behind `shared_tmp_path`, and that of multiprocessing's sockets.

    Raises:
        OSError: They cannot be made.
    """
    shared_directory(scratch).mkdir()
    Path(sockets_directory(scratch)).mkdir()


def shared_directory(scratch: Path) -> Path:
    """Return the directory behind `shared_tmp_path`."""
    return scratch / "shared"


def sockets_directory(scratch: str | Path) -> str:
    """Return the directory for the sockets that multiprocessing makes in the ranks."""
    return f"{scratch}/sockets"
