"""Commands on folders in which a name leads to something that is no ordinary file."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from foreign import job_dumps


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


THINGS: Mapping[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "sparse": _sparse,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "full": lambda path: path.symlink_to("/dev/full"),
    "kmsg": lambda path: path.symlink_to("/proc/kmsg"),
    "mem": lambda path: path.symlink_to("/proc/self/mem"),
    "shadow": lambda path: path.symlink_to("/etc/shadow"),
    "loop": lambda path: path.symlink_to(path),
    "nothing": lambda path: path.symlink_to("/nonexistent/file"),
}


def _dump(folder: Path, thing: Path) -> list[str]:
    """A dump of rank 1 that is the thing, beside an honest one."""
    job_dumps(folder, 2, 6, late=1)
    (folder / "trace_rank_1").unlink()
    shutil.move(thing, folder / "trace_rank_1")
    return ["explain", str(folder)]


def _frame(folder: Path, thing: Path) -> list[str]:
    """A dump whose frames name the thing as their file."""
    job_dumps(folder, 2, 6, late=1)
    for path in folder.glob("trace_rank_*"):
        content = pickle.loads(path.read_bytes())  # noqa: S301 - written above
        for entry in content["entries"]:
            entry["frames"] = [{"name": "step", "filename": str(thing), "line": 1}]
        path.write_bytes(pickle.dumps(content, protocol=2))
    return ["explain", str(folder)]


def _artifacts(name: str) -> Callable[[Path, Path], list[str]]:
    def make(folder: Path, thing: Path) -> list[str]:
        shutil.move(thing, folder / name)
        return ["report" if name == "sweep.json" else "explain", str(folder)]

    return make


PLACES: Mapping[str, Callable[[Path, Path], list[str]]] = {
    "dump": _dump,
    "frame": _frame,
    "facts.json": _artifacts("facts.json"),
    "sweep.json": _artifacts("sweep.json"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("thing", THINGS)
def test_a_command_ends_and_shows_nothing_of_another_file(
    thing: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither blocks nor reads without end, and its error is a sentence, not a traceback."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    THINGS[thing](tmp_path / "thing")
    arguments = PLACES[place](folder, tmp_path / "thing")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest_multihost.core.command.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    output = ended.stdout + ended.stderr
    assert "Traceback" not in output
    assert "root:" not in output  # a line of /etc/shadow
    assert ended.returncode in {0, 1}  # it has read what it could
